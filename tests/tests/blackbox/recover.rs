//! A process dies: it is back in no time, and nobody else noticed.

use std::time::{Duration, Instant};

use driftless_tests::{Cluster, cluster::Instance, http};
use rustix::process::Signal;

use crate::manifests;

/// What is asked for.
const BACK_MAX: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_killed_process_is_back_within_two_seconds_and_the_others_are_not_touched() {
    let cluster = Cluster::start();
    cluster.apply_with(manifests::web("web", 3).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let before = cluster.instances("web");
    assert_eq!(before.len(), 3);
    for instance in &before {
        assert_eq!(http::get(instance.port).expect("it serves"), 200);
    }

    let victim = &before[0];
    let events = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    events.until_json("the watch starts", PATIENCE, |e| (Instance::of(&e["resource"]) == before[2]).then_some(()));
    let killed = Instant::now();
    cluster.process_of(victim).signal(Signal::KILL);
    events.until_json("it is ready again", BACK_MAX, |e| {
        let now = Instance::of(&e["resource"]);
        (now.name == victim.name && now.pid != victim.pid && now.ready).then_some(())
    });
    cluster.wait_ready("web", "2s");
    assert!(killed.elapsed() < BACK_MAX, "took {:?}", killed.elapsed());

    let after = cluster.instances("web");
    assert_eq!(after[1..], before[1..], "the others were not touched");
    assert_eq!(after[0].uid, victim.uid, "the same instance, started again");
    assert_eq!(after[0].restarts, victim.restarts + 1);
    assert_eq!(http::get(after[0].port).expect("it serves"), 200);
}
