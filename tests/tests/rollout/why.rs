//! "Why?" names what holds things up, down the chain.

use driftless_tests::{Cluster, processes::look_until};

use crate::manifests::{SLEEPS, SOON, web};

#[test]
fn what_fits_nowhere_is_told_for_each_node() {
    let cluster = Cluster::start();
    let huge = web(1, "v1", SLEEPS, "").replace("stop_grace: 5s", "resources: { requests: { cpu: '4000' } }");
    let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    cluster.apply(&huge).ok();
    instances.until("the placement has spoken", SOON, |line| line.contains("Unplaceable").then_some(()));
    let why = cluster.run(&["why", "service", "web"]).ok().stdout;
    let node = cluster.run(&["get", "nodes", "-o", "json"]).ok().json()["items"][0]["metadata"]["name"].clone();
    let node = node.as_str().expect("a node has a name");
    assert!(why.contains(&format!("fits on no node: {node}: ")), "{why}");
    assert!(why.contains("4000000m asked for"), "{why}");
    assert!(why.starts_with("service/web: waiting"), "{why}");
    assert!(why.contains("looked after by"), "{why}");
}

#[test]
fn a_deletion_that_hangs_says_what_holds_it() {
    let mut cluster = Cluster::of_parts("memory");
    cluster.apply_with(web(1, "v1", SLEEPS, "").as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let name = cluster.instances("web")[0].name.clone();
    cluster.kill_part("agent");
    let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    cluster.run(&["delete", "service", "web", "--no-wait"]).ok();
    instances.until("it is asked to go", SOON, |line| line.contains("deletionTime").then_some(()));
    let why = cluster.run(&["why", "service", "web"]).ok().stdout;
    assert!(why.contains("waits for 1 instance to stop"), "{why}");
    assert!(why.contains(&name) && why.contains("node n1"), "{why}");
    assert!(why.contains("node/n1"), "the chain goes on to the node: {why}");
}

#[test]
fn a_finalizer_holds_a_deletion_and_why_says_who_can_unblock_it() {
    let cluster = Cluster::start();
    let held = web(1, "v1", SLEEPS, "").replace("labels:", "finalizers: [backup], labels:");
    cluster.apply_with(held.as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    // A manifest that doesn't speak of it leaves it there.
    cluster.apply(&web(1, "v2", SLEEPS, "")).ok();
    let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    let waited = cluster.run(&["delete", "service", "web", "--timeout", "6s"]).exits(5);
    waited.says("waits for backup");
    instances.until("its instances are gone all the same", SOON, |line| line.contains("\"deleted\"").then_some(()));
    let why = look_until("nothing else holds it", SOON, || {
        let why = cluster.run(&["why", "service", "web"]).ok().stdout;
        why.contains("Finalizer").then_some(why)
    });
    assert!(why.starts_with("service/web: blocked (Finalizer): held by finalizer \"backup\""), "{why}");
    assert!(why.contains("whoever put it there takes it off") && why.contains("--drop-finalizer backup"), "{why}");
    // It's on its way out: nothing else of it is changed any more.
    cluster.apply(&web(2, "v3", SLEEPS, "")).exits(4);
    cluster.run(&["scale", "service", "web", "--replicas", "2"]).exits(4);
    cluster.run(&["delete", "service", "web", "--drop-finalizer", "other"]).exits(3).says("has no finalizer other");

    cluster.run(&["delete", "service", "web", "--drop-finalizer", "backup", "--timeout", "60s"]).ok();
    cluster.run(&["get", "service", "web"]).exits(3);
}
