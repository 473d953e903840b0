//! What the store doesn't know yet: coalesced by instance, one batch in flight, nothing said twice.
//!
//! A batch leaves as soon as none is in flight, so a single change isn't kept waiting, and what gathers meanwhile rides
//! together in the next one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::v1;
use model::Key;
use prost::Message;

/// Reports in one batch: one store transaction takes as many.
pub const BATCH_MAX: usize = 100;
/// Encoded bytes of one batch, a quarter of what a transaction takes.
pub const BATCH_BYTES_MAX: usize = 256 * 1024;

/// What became of a batch that wasn't committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It may go well next time.
    Retry,
    /// The same will never be taken: something in it is wrong.
    Refused,
}

#[derive(Debug, Default)]
pub struct Outbox {
    waiting: BTreeSet<Arc<str>>,
    /// What the store acknowledged.
    known: BTreeMap<Arc<str>, v1::InstanceReport>,
    in_flight: Vec<(Arc<str>, v1::InstanceReport)>,
    busy: bool,
    sequence: u64,
    node: Option<v1::NodeStatus>,
    node_known: Option<v1::NodeStatus>,
    node_in_flight: Option<v1::NodeStatus>,
    /// The next batch holds no more than that: something in a larger one is refused, and looked for.
    suspects_max: Option<usize>,
}

impl Outbox {
    /// Its status may have changed.
    pub fn mark(&mut self, uid: &Arc<str>) {
        self.waiting.insert(uid.clone());
    }

    pub fn set_node(&mut self, status: v1::NodeStatus) {
        self.node = Some(status);
    }

    /// Nothing more is to be said of it.
    pub fn forget(&mut self, uid: &str) {
        self.waiting.remove(uid);
        self.known.remove(uid);
    }

    /// A new link: the store may have missed anything. The node itself was told with it.
    pub fn start_over(&mut self, all: impl Iterator<Item = Arc<str>>, node: v1::NodeStatus) {
        let sequence = self.sequence;
        *self = Self { waiting: all.collect(), node_known: Some(node), sequence, ..Self::default() };
    }

    /// The next batch, where there is something to say and none is in flight. `now` gives an instance's report as it
    /// should read; none where nothing is to be said of it.
    pub fn next(&mut self, now: impl Fn(&str) -> Option<v1::InstanceReport>) -> Option<v1::ReportBatch> {
        if self.busy {
            return None;
        }
        self.node_in_flight = self.node.clone().filter(|node| self.node_known.as_ref() != Some(node));
        let most = match self.suspects_max {
            None => BATCH_MAX,
            // By itself first.
            Some(_) if self.node_in_flight.is_some() => 0,
            Some(most) => most,
        };
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && self.in_flight.len() < most
            && let Some(uid) = self.waiting.pop_first()
        {
            let Some(report) = now(&uid).filter(|report| self.known.get(&uid) != Some(report)) else { continue };
            bytes += report.encoded_len();
            self.in_flight.push((uid, report));
        }
        if self.in_flight.is_empty() && self.node_in_flight.is_none() {
            return None;
        }
        self.busy = true;
        self.sequence += 1;
        let instances = self.in_flight.iter().map(|(_, report)| report.clone()).collect();
        Some(v1::ReportBatch { sequence: self.sequence, instances, node: self.node_in_flight.clone() })
    }

    /// That batch was committed. What was refused isn't ours (any more): it's told again only when it changes.
    pub fn acknowledged(&mut self, sequence: u64, refused: &[Key]) {
        if !self.is_in_flight(sequence) {
            return;
        }
        let alone = self.in_flight.is_empty();
        for key in refused {
            tracing::debug!(%key, "report refused: its record is gone, or another's");
        }
        for (uid, report) in self.in_flight.drain(..) {
            if report.gone {
                tracing::info!(uid = %uid, "its tree is gone, and its record may go");
            }
            self.known.insert(uid, report);
        }
        self.node_known = self.node_in_flight.take().or(self.node_known.take());
        // The node's own says nothing of the others.
        self.suspects_max = self.suspects_max.filter(|_| alone);
        self.busy = false;
    }

    /// It may or may not have been committed: say it again, as it is then. But what is refused alone isn't said again
    /// before it changes, so that it doesn't keep the others from being told.
    pub fn failed(&mut self, sequence: u64, how: Failed) {
        if !self.is_in_flight(sequence) {
            return;
        }
        let count = self.in_flight.len() + usize::from(self.node_in_flight.is_some());
        match how {
            Failed::Retry => {}
            Failed::Refused if count > 1 => self.suspects_max = Some(self.in_flight.len().div_ceil(2)),
            Failed::Refused => return self.give_up(),
        }
        for (uid, _) in self.in_flight.drain(..) {
            self.known.remove(&uid);
            self.waiting.insert(uid);
        }
        if self.node_in_flight.take().is_some() {
            self.node_known = None;
        }
        self.busy = false;
    }

    fn give_up(&mut self) {
        for (uid, report) in self.in_flight.drain(..) {
            tracing::error!(%uid, "what is seen of this instance can't be reported, and isn't until it changes");
            self.known.insert(uid, report);
        }
        if self.node_in_flight.is_some() {
            tracing::error!("what is seen of the node can't be reported, and isn't until it changes");
        }
        self.node_known = self.node_in_flight.take().or(self.node_known.take());
        self.busy = false;
    }

    /// An answer to a batch of an older link says nothing.
    fn is_in_flight(&self, sequence: u64) -> bool {
        self.busy && sequence == self.sequence
    }
}
