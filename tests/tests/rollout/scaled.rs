//! What `scale` and `rollout pause` set, manifests that don't speak of it leave alone.

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
    described_for_programs(&cluster);

    cluster.apply_with(without_replicas("v2").as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    assert_eq!(replicas(), Some(5));
    // What changes another field by itself leaves it as it is, too.
    cluster.run(&["rollout", "pause", "service", "web"]).ok();
    cluster.run(&["rollout", "resume", "service/web"]).ok();
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

#[test]
fn a_manifest_that_does_not_name_pause_keeps_a_rollout_paused_and_says_so() {
    let cluster = Cluster::start();
    cluster.apply_with(web(2, "v1", SLEEPS, "").as_bytes(), &["--wait"]).ok();
    cluster.run(&["rollout", "pause", "web"]).ok();
    cluster.apply(&web(2, "v2", SLEEPS, "max_surge: 2")).ok().says("still paused");
    let described = cluster.run(&["describe", "service", "web"]).ok().stdout;
    assert!(described.contains("spec.rollout.pause: rollout pause"), "{described}");
    let stuck = cluster.run(&["wait", "service", "web", "--timeout", "3s"]).exits(5);
    stuck.says("Paused");
    assert!(cluster.instances("web").iter().all(|i| i.version == "v1"), "nothing was replaced");
    cluster.run(&["rollout", "resume", "web"]).ok();
    cluster.wait_ready("web", "60s");
    assert_eq!(cluster.service("web")["spec"]["version"], "v2");
    assert!(!cluster.apply(&web(2, "v2", SLEEPS, "max_surge: 2")).ok().stderr.contains("paused"));
}

/// The same as the verbs say that each part of it is of.
fn described_for_programs(cluster: &Cluster) {
    cluster.wait_ready("web", "60s");
    let told = cluster.run(&["describe", "service", "web", "-o", "json"]).ok().json();
    assert_eq!(told["resource"], cluster.service("web"));
    assert_eq!(told["children"].as_array().map(Vec::len), Some(5));
    let history = cluster.run(&["history", "service", "web", "--limit", "10", "-o", "json"]).ok().json();
    assert_eq!(told["history"], history["entries"]);
    let yaml = cluster.run(&["describe", "service", "web", "-o", "yaml"]).ok().stdout;
    assert!(yaml.contains("\n  kind: Service\n") && yaml.contains("\nhistory:\n"), "{yaml}");
    cluster.run(&["describe", "service", "nobody", "-o", "json"]).exits(3);
}
