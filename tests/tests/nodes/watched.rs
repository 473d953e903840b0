//! Every state that the instances were in, by a watch that coalesces nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use driftless_tests::{
    Cluster, Lines,
    cluster::Instance,
    processes::{self, Process},
};
use serde_json::Value;

/// Until what a test waits for; a debug build on a busy machine takes its time.
pub const LONG: Duration = Duration::from_secs(60);

/// A process that does nothing for long; lost with its node as soon as that is called Unknown.
pub fn sleeper(name: &str, replicas: u32, min_available: u32) -> String {
    format!(
        "kind: Service
metadata: {{ name: {name} }}
spec:
  replicas: {replicas}
  min_available: {min_available}
  lost_after: 3s
  template: {{ command: [sleep, '86400'], stop_grace: 1s }}
"
    )
}

/// What must run at most once is stopped by its own supervisor, though the agent hears nothing, or is gone.
pub fn at_most_once() -> String {
    let bound = "on_disconnect: { stop_after: 10s }, stop_grace: 1s";
    sleeper("once", 1, 0).replace("stop_grace: 1s", bound).replace("lost_after: 3s", "lost_after: 3600s")
}

/// The status of an instance of that service, once one is as wanted.
#[track_caller]
pub fn status(cluster: &Cluster, what: &str, service: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    // A watch of its own: it begins with what is.
    let events = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    events.until_json(what, LONG, |e| {
        let resource = &e["resource"];
        let found = resource["metadata"]["owner"]["name"] == service && wanted(&resource["status"]);
        found.then(|| resource["status"].clone())
    })
}

/// The sleeps that run below that cluster.
pub fn sleeps(cluster: &Cluster) -> BTreeSet<i32> {
    let all = processes::below(cluster.dir());
    let is_sleep = |p: &Process| fs::read_to_string(format!("/proc/{}/comm", p.pid)).is_ok_and(|c| c.trim() == "sleep");
    all.into_iter().filter(is_sleep).map(|p| p.pid).collect()
}

/// The instances as a watch tells of them.
#[derive(Default)]
pub struct Records(pub BTreeMap<String, Instance>);

impl Records {
    fn take(&mut self, event: &Value) {
        match event["event"].as_str() {
            Some("put") => {
                let instance = Instance::of(&event["resource"]);
                self.0.insert(instance.name.clone(), instance);
            }
            Some("deleted") => drop(self.0.remove(event["name"].as_str().unwrap_or_default())),
            other => panic!("no event: {other:?}"),
        }
    }

    pub fn ready(&self) -> usize {
        self.0.values().filter(|i| i.ready && !i.deleting).count()
    }

    pub fn on(&self, node: &str) -> usize {
        self.0.values().filter(|i| i.node == node).count()
    }
}

pub struct Watched {
    lines: Lines,
    records: Records,
    /// Counted from the moment on that all are ready.
    pub fewest_ready: usize,
}

impl Watched {
    pub fn start(cluster: &Cluster, ready: usize) -> Self {
        let lines = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
        let mut records = Records::default();
        lines.until_json("the watch shows all ready", LONG, |event| {
            records.take(event);
            (records.ready() == ready).then_some(())
        });
        Self { lines, records, fewest_ready: ready }
    }

    #[track_caller]
    pub fn until(&mut self, what: &str, done: impl Fn(&Records) -> bool) {
        let Self { lines, records, fewest_ready } = self;
        lines.until_json(what, LONG, |event| {
            records.take(event);
            *fewest_ready = (*fewest_ready).min(records.ready());
            done(records).then_some(())
        });
    }
}
