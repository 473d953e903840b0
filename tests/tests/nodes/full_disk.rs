//! The disk below an agent's data dir is full: what runs goes on, the node says so, and it's over once there is room.

use driftless_tests::{
    Cluster, Lines,
    cluster::{Instance, condition},
    disk::Disk,
    processes::{Process, look_until},
};
use serde_json::Value;

use crate::watched::{LONG, sleeper};

/// Until the node's condition reads so; none: it's gone.
#[track_caller]
fn until_node(nodes: &Lines, what: &str, expected: Option<&str>) {
    nodes.until_json(what, LONG, |e| {
        let message = condition(&e["resource"], "DriverWorks").map(|c| c["message"].as_str().unwrap_or_default());
        let right = match (expected, message) {
            (Some(part), Some(message)) => message.contains(part),
            (None, None) => true,
            _ => false,
        };
        right.then_some(())
    });
}

fn nodes(cluster: &Cluster) -> Lines {
    cluster.stream(&["get", "nodes", "-w", "-o", "json"])
}

/// What it writes fills its log, and then the disk.
fn talker(name: &str) -> String {
    let talk = "[sh, -c, 'while :; do echo something to keep; sleep 0.01; done']";
    sleeper(name, 1, 0).replace("[sleep, '86400']", talk)
}

fn started(instance: &Value) -> String {
    let said = condition(instance, "Started").filter(|c| c["status"] == "False");
    said.and_then(|c| c["message"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn a_full_disk_touches_nothing_that_runs_is_told_and_is_over_by_itself() {
    let mut cluster = Cluster::of_nodes(&[]);
    let Some(disk) = Disk::mount(cluster.dir().join("n1")) else { return };
    cluster.start_agent("n1");
    cluster.apply_with(sleeper("web", 2, 0).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    cluster.apply_with(talker("talker").as_bytes(), &["--wait"]).ok();
    let before: Vec<Instance> = ["web", "talker"].iter().flat_map(|name| cluster.instances(name)).collect();
    let processes: Vec<Process> = before.iter().map(|i| cluster.process_of(i)).collect();
    let unharmed = |cluster: &Cluster| {
        assert!(processes.iter().all(|p| p.is_alive()));
        let now: Vec<Instance> = ["web", "talker"].iter().flat_map(|name| cluster.instances(name)).collect();
        assert_eq!(now, before);
    };

    // Found out before anything has to be written.
    disk.fill();
    until_node(
        &nodes(&cluster),
        "the node says that its disk is full",
        Some("the disk below the agent's data dir is full"),
    );
    let shown = cluster.run(&["describe", "node", "n1"]).ok().stdout;
    assert!(shown.contains("DriverWorks") && shown.contains("is full"), "{shown}");
    assert!(cluster.run(&["get", "nodes"]).ok().stdout.contains("CannotWrite"));
    unharmed(&cluster);

    // What is to be started says why it isn't.
    cluster.apply(&sleeper("late", 1, 0)).ok();
    let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    instances.until_json("the new one says why it isn't started", LONG, |e| {
        started(&e["resource"]).contains("the disk below the agent's data dir is full").then_some(())
    });
    let why = cluster.run(&["why", "service", "late"]);
    assert!(why.stdout.contains("is full"), "{}{}", why.stdout, why.stderr);

    // An agent that starts on a full disk finds what runs.
    cluster.kill_part("n1");
    cluster.start_agent("n1");
    until_node(&nodes(&cluster), "the new agent says so too", Some("is full"));
    unharmed(&cluster);
    assert!(cluster.instances("late").iter().all(|i| i.pid == 0), "nothing was started by halves");

    let heard = nodes(&cluster);
    disk.free();
    until_node(&heard, "the node says nothing any more", None);
    cluster.wait_ready("late", "60s");
    unharmed(&cluster);
}

#[test]
fn what_is_deleted_on_a_full_disk_goes_and_makes_room() {
    let mut cluster = Cluster::of_nodes(&[]);
    let Some(disk) = Disk::mount(cluster.dir().join("n1")) else { return };
    cluster.start_agent("n1");
    cluster.apply_with(talker("talker").as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    disk.fill();
    cluster.run(&["delete", "service", "talker", "--timeout", "60s"]).ok();
    // After its record, which goes with the last of its processes.
    look_until("its folder is gone", LONG, || {
        let left = std::fs::read_dir(disk.path().join("instances")).expect("it is there").count();
        (left == 0).then_some(())
    });
}
