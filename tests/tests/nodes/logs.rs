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

use crate::watched::{LONG, sleeper, status};

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
fn the_log_of_what_will_not_run_again_ends_and_of_what_never_ran_that_is_told() {
    let cluster = Cluster::of_nodes(&["n1"]);
    let once = |name: &str, command: &str| {
        let once = sleeper(name, 1, 0).replace("[sleep, '86400']", command);
        once.replace("stop_grace", "restart: Never, stop_grace")
    };
    let go = cluster.dir().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
    cluster.apply(&once("fails", &format!("[sh, -c, 'echo begin; {wait}; echo end; exit 3']"))).ok();
    status(&cluster, "it runs", "fails", |status| status["phase"] == "Running");
    let follower = cluster.stream(&["logs", "-f", &cluster.instances("fails")[0].name]);
    assert_eq!(follower.next(LONG).as_deref(), Some("begin"));
    fs::write(go, "").expect("the directory can be written");
    assert_eq!(follower.next(LONG).as_deref(), Some("end"));
    assert_eq!(follower.ends_with(LONG), Some(0));

    cluster.apply(&once("typo", "[/no/such/program]")).ok();
    status(&cluster, "it can't be started", "typo", |status| status["conditions"].to_string().contains("CannotStart"));
    let instance = cluster.instances("typo").remove(0).name;
    let told = format!("instance/{instance} was not started yet, so it wrote nothing: command not found");
    for arguments in [&["logs", &instance][..], &["logs", "-f", &instance]] {
        assert_eq!(cluster.run(arguments).ok().says(&told).stdout, "");
    }
}

#[test]
fn of_a_node_that_is_not_heard_no_log_is_waited_for() {
    let cluster = Cluster::of_nodes(&["n1"]);
    cluster.apply_with(counter("web").as_bytes(), &["--wait"]).ok();
    let instance = cluster.instances("web").remove(0).name;
    // Its connections stay open.
    cluster.pause_part("n1");
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("its silence is noted", LONG, |event| {
        event["resource"]["status"]["silentSince"].is_string().then_some(())
    });
    let done = cluster.run(&["logs", &instance]).exits(1).says("the agent of node n1 has had no session since");
    assert!(!done.stderr.contains("server") && !done.stderr.contains("hint"), "{}", done.stderr);
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
