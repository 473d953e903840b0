//! Scaling, and replacing a template while the service goes on.

use std::time::Duration;

use driftless_tests::{
    Cluster,
    watched::{Records, Watched},
};

use crate::manifests;

const ROLLOUT_MAX: Duration = Duration::from_secs(60);

#[test]
fn scaling_up_and_down_ends_with_exactly_what_was_asked_for() {
    let cluster = Cluster::start();
    cluster.apply_with(manifests::sleeper("web", 3, "v1").as_bytes(), &["--wait"]).ok();
    let three = cluster.instances("web");
    let (mut seen, mut count) = (Vec::new(), three.len());
    for replicas in ["10", "2"] {
        // From before on: the first lines of a watch tell one by one what there is, and may stop short of it anywhere.
        let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
        let mut records = Records::default();
        let mut until = |what: &str, count: usize| {
            instances.until(what, ROLLOUT_MAX, |line| {
                records.take(line);
                (records.instances.len() == count).then_some(())
            });
        };
        until("all there are", count);
        cluster.run(&["scale", "service", "web", "--replicas", replicas]).ok();
        cluster.wait_ready("web", "60s");
        let wanted: usize = replicas.parse().expect("a number");
        until("as many as asked for", wanted);
        count = wanted;
        let now = cluster.instances("web");
        assert_eq!(now.len(), wanted);
        assert!(now.iter().all(|i| i.ready));
        seen.push(now);
    }
    assert!(three.iter().all(|i| seen[0].contains(i)), "scaling up touches nothing that runs");
    assert!(seen[1].iter().all(|i| seen[0].contains(i)), "scaling down touches nothing that stays");
}

#[test]
fn a_new_template_replaces_one_at_a_time_and_never_fewer_than_all_are_ready() {
    let cluster = Cluster::start();
    cluster.apply_with(manifests::sleeper("web", 5, "v1").as_bytes(), &["--wait"]).ok();
    let old = cluster.instances("web");
    let mut watched = Watched::start(&cluster, 5, ROLLOUT_MAX);

    cluster.apply(&manifests::sleeper("web", 5, "v2")).ok();
    watched.until("the rollout ends", |records| records.are_all(5, "v2"));
    cluster.wait_ready("web", "60s");

    assert!(watched.fewest_ready >= 5, "once only {} of 5 were ready", watched.fewest_ready);
    assert!(watched.most_live <= 6, "once {} existed, those still stopping included", watched.most_live);
    let new = cluster.instances("web");
    assert!(new.iter().all(|i| i.version == "v2" && old.iter().all(|o| o.uid != i.uid)));
}
