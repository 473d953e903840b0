//! Waiting and deadlines speak of what was declared, and hold through failovers.

use std::time::{Duration, Instant};

use driftless_tests::Cluster;

use crate::manifests::{AT_ONCE, BROKEN, SLEEPS, SOON, condition, web};

#[test]
fn the_progress_deadline_holds_across_controllers_that_die() {
    let mut cluster = Cluster::of_parts("memory");
    let deadline = Duration::from_secs(8);
    let rollout = "progress_deadline: 8s";
    cluster.apply_with(web(2, "v1", SLEEPS, rollout).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    let before = Instant::now();
    cluster.apply(&web(2, "v2", BROKEN, rollout)).ok();
    let declared = Instant::now();
    let watch = |what: &str, reason: &str| {
        services.until_json(what, SOON, |event| (condition(event, "Progressing")?.1 == reason).then_some(()));
    };
    watch("it fails", "InstancesFailing");
    // In the middle of it, one controller after the other.
    cluster.kill_part("c1");
    cluster.start_controller("c2");
    watch("the deadline is missed", "DeadlineExceeded");
    let (took, most) = (declared.elapsed(), before.elapsed());
    assert!(most >= deadline.mul_f32(0.9), "too early: {most:?}");
    // A new controller doesn't start the clock anew: it began when the rollout did.
    let slack = Duration::from_secs(12);
    assert!(took < deadline + slack, "too late: {took:?}");
}

#[test]
fn waiting_right_after_a_change_waits_for_that_change() {
    let cluster = Cluster::start();
    cluster.apply_with(web(3, "v1", SLEEPS, AT_ONCE).as_bytes(), &["--wait"]).ok();
    for version in ["v2", "v3", "v4"] {
        cluster.apply(&web(3, version, SLEEPS, AT_ONCE)).ok();
        cluster.wait_ready("web", "60s");
        let now: Vec<_> = cluster.instances("web").into_iter().filter(|i| !i.deleting).collect();
        assert_eq!(now.len(), 3);
        assert!(now.iter().all(|i| i.version == version && i.ready), "{now:?}");
    }
}
