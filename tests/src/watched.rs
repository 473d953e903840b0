//! The instances as a watch tells of them: every state there was, so that a bound which is broken for a moment is seen.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{Cluster, Lines, cluster::Instance};

#[derive(Default)]
pub struct Records {
    pub instances: BTreeMap<String, Instance>,
}

impl Records {
    pub fn take(&mut self, line: &str) {
        let event: Value = serde_json::from_str(line).expect("a JSON line");
        match event["event"].as_str() {
            Some("put") => {
                let instance = Instance::of(&event["resource"]);
                self.instances.insert(instance.name.clone(), instance);
            }
            Some("deleted") => drop(self.instances.remove(event["name"].as_str().unwrap_or_default())),
            other => panic!("no event: {other:?}"),
        }
    }

    pub fn count(&self, is: impl Fn(&Instance) -> bool) -> usize {
        self.instances.values().filter(|i| is(i)).count()
    }

    /// Exactly so many, all of that version, all ready.
    pub fn are_all(&self, replicas: usize, version: &str) -> bool {
        self.instances.len() == replicas && self.count(|i| i.version == version && i.ready && !i.deleting) == replicas
    }
}

/// Keeps the extremes of what it saw.
pub struct Watched {
    lines: Lines,
    pub records: Records,
    pub fewest_ready: usize,
    /// Those still stopping included.
    pub most_live: usize,
    /// How often each name was made since the start.
    pub made: BTreeMap<String, usize>,
    within: Duration,
}

impl Watched {
    /// Counts from the moment on that all are ready.
    pub fn start(cluster: &Cluster, replicas: usize, within: Duration) -> Self {
        let lines = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
        let mut records = Records::default();
        lines.until("the watch starts", within, |line| {
            records.take(line);
            (records.count(|i| i.ready) == replicas).then_some(())
        });
        Self { lines, records, fewest_ready: replicas, most_live: replicas, made: BTreeMap::new(), within }
    }

    #[track_caller]
    pub fn until(&mut self, what: &str, done: impl Fn(&Records) -> bool) {
        let Self { lines, records, fewest_ready, most_live, made, within } = self;
        lines.until(what, *within, |line| {
            let before: BTreeMap<String, String> =
                records.instances.iter().map(|(name, i)| (name.clone(), i.uid.clone())).collect();
            records.take(line);
            for (name, instance) in records.instances.iter().filter(|(n, i)| before.get(*n) != Some(&i.uid)) {
                assert!(!instance.uid.is_empty());
                *made.entry(name.clone()).or_default() += 1;
            }
            *fewest_ready = (*fewest_ready).min(records.count(|i| i.ready && !i.deleting));
            *most_live = (*most_live).max(records.instances.len());
            done(records).then_some(())
        });
    }
}
