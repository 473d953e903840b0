//! Scaling, and replacing a template while the service goes on.

use std::{collections::BTreeMap, time::Duration};

use driftless_tests::{Cluster, Lines, cluster::Instance};
use serde_json::Value;

use crate::manifests;

const ROLLOUT_MAX: Duration = Duration::from_secs(60);

#[test]
fn scaling_up_and_down_ends_with_exactly_what_was_asked_for() {
    let cluster = Cluster::start();
    cluster.apply_with(manifests::sleeper("web", 3, "v1").as_bytes(), &["--wait"]).ok();
    let three = cluster.instances("web");
    let mut seen = Vec::new();
    for replicas in ["10", "2"] {
        cluster.run(&["scale", "service", "web", "--replicas", replicas]).ok();
        cluster.wait_ready("web", "30s");
        let gone = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
        let wanted: usize = replicas.parse().expect("a number");
        let mut records = Records::default();
        gone.until("the others are gone", ROLLOUT_MAX, |line| {
            records.take(line);
            (records.started && records.instances.len() == wanted).then_some(())
        });
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
    let mut watched = Watched::start(&cluster, 5);

    cluster.apply(&manifests::sleeper("web", 5, "v2")).ok();
    watched.until(|records| records.count(|i| i.version == "v2" && i.ready) == 5 && records.instances.len() == 5);
    cluster.wait_ready("web", "10s");

    assert!(watched.fewest_ready >= 5, "once only {} of 5 were ready", watched.fewest_ready);
    assert!(watched.most_live <= 6, "once {} existed, those still stopping included", watched.most_live);
    let new = cluster.instances("web");
    assert!(new.iter().all(|i| i.version == "v2" && old.iter().all(|o| o.uid != i.uid)));
}

/// The instances as a watch tells of them.
#[derive(Default)]
struct Records {
    instances: BTreeMap<String, Instance>,
    started: bool,
}

impl Records {
    fn take(&mut self, line: &str) {
        let event: Value = serde_json::from_str(line).expect("a JSON line");
        self.started = true;
        match event["event"].as_str() {
            Some("put") => {
                let instance = Instance::of(&event["resource"]);
                self.instances.insert(instance.name.clone(), instance);
            }
            Some("deleted") => drop(self.instances.remove(event["name"].as_str().unwrap_or_default())),
            other => panic!("no event: {other:?}"),
        }
    }

    fn count(&self, is: impl Fn(&Instance) -> bool) -> usize {
        self.instances.values().filter(|i| is(i)).count()
    }
}

/// Looks at every state there was, by a watch that coalesces nothing.
struct Watched {
    lines: Lines,
    records: Records,
    fewest_ready: usize,
    most_live: usize,
}

impl Watched {
    /// Counts from the moment on that all are ready.
    fn start(cluster: &Cluster, replicas: usize) -> Self {
        let lines = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
        let mut records = Records::default();
        lines.until("the watch starts", ROLLOUT_MAX, |line| {
            records.take(line);
            (records.count(|i| i.ready) == replicas).then_some(())
        });
        Self { lines, records, fewest_ready: replicas, most_live: replicas }
    }

    fn until(&mut self, done: impl Fn(&Records) -> bool) {
        let Self { lines, records, fewest_ready, most_live } = self;
        lines.until("the rollout ends", ROLLOUT_MAX, |line| {
            records.take(line);
            *fewest_ready = (*fewest_ready).min(records.count(|i| i.ready && !i.deleting));
            *most_live = (*most_live).max(records.instances.len());
            done(records).then_some(())
        });
    }
}
