//! A log that somebody follows, while agents and servers come and go and the instance runs on.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Command,
};

use driftless_tests::{
    Cluster, Lines,
    command::{self, driftless},
    part::Part,
    processes::look_until,
};
use store_etcd::testing::Etcd;

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
        Self::of(cluster, cluster.command(&["logs", "-f", instance]))
    }

    fn of(cluster: &Cluster, command: Command) -> Self {
        let told = cluster.dir().join("follower.err");
        let stderr = File::create(&told).expect("it can be made");
        let lines = Lines::start_with(command, stderr.into());
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
fn logs_come_through_any_server() {
    let runtime = tokio::runtime::Runtime::new().expect("there are threads");
    let etcd = runtime.block_on(Etcd::start());
    let cluster = Cluster::of_nodes_on(&etcd.url(), &["n1"]);
    let other = ["server", "--store", &etcd.url(), "--listen", "127.0.0.1:0", "--name", "other"];
    let mut other = Part::start(cluster.dir(), "other", "", &other);
    cluster.apply_with(counter("web").as_bytes(), &["--wait"]).ok();
    let instance = cluster.instances("web").remove(0).name;
    let logs = || command::run(driftless_with(&other.address(), &["logs", &instance, "--tail", "1"]), b"").ok().stdout;
    assert!(logs().starts_with("line "));

    let mut follower = Follower::of(&cluster, driftless_with(&other.address(), &["logs", "-f", &instance]));
    follower.read_on(5);
    cluster.run(&["delete", "service", "web", "--timeout", "60s"]).ok();
    let Follower { lines, .. } = follower;
    assert_eq!(lines.ends_with(LONG), Some(0));
    other.kill();
}

fn driftless_with(server: &str, arguments: &[&str]) -> Command {
    let mut command = driftless(server);
    command.args(arguments);
    command
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
