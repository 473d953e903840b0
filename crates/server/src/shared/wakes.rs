//! Wakes watchers when the cache has moved: all of them, but for those of one node, whom only changes of that node's
//! resources concern. So a thousand agents don't wake a thousand times a second for each other's work.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use model::Revision;
use tokio::sync::watch;

use crate::ring::Kept;

pub struct Wakes {
    progress: watch::Sender<Revision>,
    nodes: Mutex<HashMap<String, watch::Sender<Revision>>>,
}

impl Wakes {
    pub fn new() -> Self {
        Self { progress: watch::Sender::new(Revision::ZERO), nodes: Mutex::default() }
    }

    pub fn progress(&self) -> watch::Receiver<Revision> {
        self.progress.subscribe()
    }

    /// Of what concerns that node, and of whatever concerns everybody.
    pub fn node(&self, node: &str) -> watch::Receiver<Revision> {
        self.nodes().entry(node.to_owned()).or_insert_with(|| watch::Sender::new(Revision::ZERO)).subscribe()
    }

    /// Forgets the node where nobody waits for it any more; whoever calls has dropped its receiver.
    pub fn forget(&self, node: &str) {
        let mut nodes = self.nodes();
        if nodes.get(node).is_some_and(|sender| sender.receiver_count() == 0) {
            nodes.remove(node);
        }
    }

    /// The cache has reached that revision by these groups.
    pub fn moved<'a>(&self, revision: Revision, groups: impl Iterator<Item = &'a Kept>) {
        self.progress.send_replace(revision);
        let nodes = self.nodes();
        if nodes.is_empty() {
            return;
        }
        let changes = groups.flat_map(|group| &group.changes);
        let records = changes.flat_map(|change| change.before.iter().chain(&change.after));
        for sender in records.filter_map(|record| nodes.get(record.node()?)) {
            sender.send_replace(revision);
        }
    }

    /// Something that everybody must look at.
    pub fn all(&self, revision: Revision) {
        self.progress.send_replace(revision);
        for sender in self.nodes().values() {
            sender.send_replace(revision);
        }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Revision>>> {
        self.nodes.lock().expect("nothing panics while it holds this")
    }
}
