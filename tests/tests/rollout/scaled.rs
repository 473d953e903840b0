//! `scale` and manifests don't fight over the number of replicas.

use driftless_tests::Cluster;

use crate::manifests::{AT_ONCE, SLEEPS, web, without_replicas};

#[test]
fn a_manifest_without_replicas_keeps_what_was_scaled_and_one_with_them_sets_it_as_planned() {
    let cluster = Cluster::start();
    let replicas = || cluster.service("web")["spec"]["replicas"].as_i64();
    cluster.apply_with(without_replicas("v1").as_bytes(), &["--wait"]).ok();
    cluster.run(&["scale", "service", "web", "--replicas", "5"]).ok();
    let described = cluster.run(&["describe", "service", "web"]).ok().stdout;
    assert!(described.contains("spec.replicas: scale"), "{described}");

    cluster.apply_with(without_replicas("v2").as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    assert_eq!(replicas(), Some(5));
    // What changes another field by itself leaves it as it is, too.
    cluster.run(&["rollout", "pause", "web"]).ok();
    cluster.run(&["rollout", "resume", "web"]).ok();
    cluster.apply(&without_replicas("v2")).ok();
    assert_eq!(replicas(), Some(5));

    let one = web(1, "v2", SLEEPS, AT_ONCE);
    let plan = cluster.plan(&one, &[]).exits(10);
    assert!(plan.stdout.contains("spec.replicas: 5 -> 1"), "{}", plan.stdout);
    assert!(plan.stdout.contains("stops 4"), "{}", plan.stdout);
    assert_eq!(replicas(), Some(5), "a plan changes nothing");
    cluster.apply_with(one.as_bytes(), &["--wait"]).ok();
    assert_eq!(replicas(), Some(1));
    let described = cluster.run(&["describe", "service", "web"]).ok().stdout;
    assert!(described.contains("spec.replicas: apply"), "{described}");
}
