//! The data plane outlives the control plane.

use std::time::Duration;

use driftless_tests::{Cluster, cluster::Instance, http};
use serde_json::Value;

use crate::manifests;

/// Every time a readiness changed: of the service, then of its instances.
fn transitions(cluster: &Cluster) -> Vec<String> {
    let services = cluster.run(&["get", "services,instances", "-o", "json"]).ok().json();
    let items = services["items"].as_array().cloned().unwrap_or_default();
    let conditions = items.iter().flat_map(|i| i["status"]["conditions"].as_array().cloned().unwrap_or_default());
    conditions
        .filter(|c| c["type"] == "Ready")
        .map(|c: Value| format!("{} {}", c["status"], c["lastTransitionTime"]))
        .collect()
}

#[test]
fn instances_outlive_a_killed_control_plane_and_are_adopted() {
    let mut cluster = Cluster::start();
    cluster.apply_with(manifests::web("web", 3).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let before = cluster.instances("web");
    let transitions_before = transitions(&cluster);
    assert!(!transitions_before.is_empty());

    cluster.kill();
    for instance in &before {
        assert_eq!(http::get(instance.port).expect("it serves without a control plane"), 200);
    }
    let processes: Vec<_> = before.iter().map(|i| cluster.process_of(i)).collect();

    cluster.start_again();
    cluster.wait_ready("web", "60s");
    // A write of the new control plane's proves that it acts again, on what it found.
    cluster.run(&["scale", "service", "web", "--replicas", "4"]).ok();
    cluster.wait_ready("web", "60s");
    assert!(processes.iter().all(|p| p.is_alive()), "nothing was restarted");
    let after: Vec<Instance> =
        cluster.instances("web").into_iter().filter(|i| before.iter().any(|b| b.name == i.name)).collect();
    assert_eq!(after, before, "the same uids, pids, ports and restarts");
    let transitions_after = transitions(&cluster);
    let lost: Vec<_> = transitions_before.iter().skip(1).filter(|t| !transitions_after.contains(t)).collect();
    assert!(lost.is_empty(), "an instance's readiness changed: {lost:?} in {transitions_after:?}");
}

#[test]
fn a_control_plane_that_is_stopped_politely_ends_at_once_and_leaves_instances_alone() {
    let mut cluster = Cluster::start();
    cluster.apply_with(manifests::sleeper("calm", 2, "v1").as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("calm");
    let processes: Vec<_> = before.iter().map(|i| cluster.process_of(i)).collect();
    assert_eq!(cluster.stop(), [0]);
    let log = std::fs::read_to_string(cluster.dir().join("dev-1.log")).expect("its log");
    let end = log.split_once("ending").expect("it said that it ends").1;
    assert!(!end.contains("WARN") && !end.contains("ERROR"), "a normal end is nothing to warn of: {end}");
    assert!(processes.iter().all(|p| p.is_alive()));
    cluster.start_again();
    cluster.wait_ready("calm", "60s");
    assert_eq!(cluster.instances("calm"), before);
    // What it stops it stops for good.
    cluster.run(&["delete", "service", "calm", "--timeout", "60s"]).ok();
    processes.iter().for_each(|p| p.wait_gone(Duration::from_secs(1)));
}
