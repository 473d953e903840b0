//! Nodes that are not heard any more, and come back.

use driftless_tests::{Cluster, cluster::condition};

use crate::watched::{LONG, Watched, sleeper};

#[test]
fn a_lost_nodes_instances_are_replaced_and_stopped_when_it_returns() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.apply_with(sleeper("web", 3, 2).as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let lost = before.iter().find(|i| i.node == "n1").expect("they are spread over all nodes").clone();
    let process = cluster.process_of(&lost);
    let mut watched = Watched::start(&cluster, 3);

    cluster.kill_part("n1");
    watched.until("it is replaced elsewhere", |r| r.on("n1") == 0 && r.ready() == 3);
    assert!(process.is_alive(), "what runs on a lost node keeps running");
    let releases = cluster.run(&["get", "releases", "-o", "json"]).ok().json();
    assert_eq!(releases["items"].as_array().map(Vec::len), Some(1), "{releases}");

    let gone = cluster.stream(&["get", "releases", "-w", "-o", "json"]);
    cluster.start_agent("n1");
    gone.until_json("the release is cleared", LONG, |e| (e["event"] == "deleted").then_some(()));
    assert!(!process.is_alive(), "the duplicate is stopped before its release is cleared");
    cluster.wait_ready("web", "20s");
    let after = cluster.instances("web");
    assert_eq!(after.len(), 3);
    let kept = before.iter().filter(|i| i.node != "n1");
    assert!(kept.into_iter().all(|i| after.contains(i)), "nothing else was touched: {before:?}, {after:?}");
}

#[test]
fn nothing_is_replaced_when_most_nodes_vanish_at_once() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.apply_with(sleeper("web", 3, 2).as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let placements = cluster.stream(&["get", "placements", "-w", "-o", "json"]);
    cluster.kill_part("n1");
    cluster.kill_part("n2");
    placements.until_json("the alarm is raised", LONG, |e| {
        let held = condition(&e["resource"], "NodesReachable").is_some_and(|c| c["reason"] == "Brake");
        held.then_some(())
    });
    assert!(cluster.run(&["get", "placements"]).ok().stdout.contains("Brake"));
    assert!(cluster.run(&["describe", "placement", "default"]).ok().stdout.contains("more than half of the nodes"));

    // Both are called Unknown 10 s after they fell silent: long after they would have been replaced.
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    let mut unknown = std::collections::BTreeSet::new();
    nodes.until_json("both are Unknown", LONG, |e| {
        let name = e["resource"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == "Unknown") {
            unknown.insert(name);
        }
        (unknown.len() == 2).then_some(())
    });
    let uids = |all: &[driftless_tests::cluster::Instance]| all.iter().map(|i| i.uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&cluster.instances("web")), uids(&before));
}
