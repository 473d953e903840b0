//! A log that somebody follows, while agents and servers come and go and the instance runs on.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use driftless_tests::{Cluster, Lines, processes::look_until};

use crate::watched::{LONG, sleeper};

/// Counts aloud, for ever.
fn counter(name: &str) -> String {
    let count = "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.02; done";
    sleeper(name, 1, 0).replace("[sleep, '86400']", &format!("[sh, -c, '{count}']"))
}

/// Checks that every line comes, and once.
struct Follower {
    lines: Lines,
    told: PathBuf,
    read: u64,
}

impl Follower {
    fn start(cluster: &Cluster, instance: &str) -> Self {
        let told = cluster.dir().join("follower.err");
        let stderr = File::create(&told).expect("it can be made");
        let lines = Lines::start_with(cluster.command(&["logs", "-f", instance]), stderr.into());
        Self { lines, told, read: 0 }
    }

    #[track_caller]
    fn read_on(&mut self, lines: u64) {
        for _ in 0..lines {
            let line = self.lines.next(LONG).unwrap_or_else(|| panic!("no line after {}: {}", self.read, self.told()));
            self.read += 1;
            assert_eq!(line, format!("line {}", self.read));
        }
    }

    fn told(&self) -> String {
        fs::read_to_string(&self.told).expect("it's there")
    }

    #[track_caller]
    fn says(&self, what: &str, times: usize) {
        look_until(what, LONG, || (self.told().matches(what).count() == times).then_some(()));
    }
}

#[test]
fn a_follower_goes_on_over_restarts_of_the_agent_and_of_the_server_and_ends_with_the_instance() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.apply_with(counter("web").as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let mut follower = Follower::start(&cluster, &before[0].name);
    follower.read_on(5);

    cluster.kill_part("n1");
    follower.says("waiting for its log to go on", 1);
    cluster.start_agent("n1");
    follower.says("its log goes on", 1);
    follower.read_on(50);

    cluster.kill_part("server");
    follower.says("waiting for its log to go on", 2);
    cluster.start_server();
    follower.says("its log goes on", 2);
    follower.read_on(50);

    assert_eq!(cluster.instances("web"), before, "it ran on");
    cluster.run(&["delete", "service", "web", "--timeout", "60s"]).ok();
    let Follower { lines, .. } = follower;
    assert_eq!(lines.ends_with(LONG), Some(0));
}
