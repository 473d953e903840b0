//! Counters of one replica: what metrics and tests read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Settled,
    Stepped,
    Waiting,
    Blocked,
    Conflict,
    Fenced,
    Unknown,
    Failed,
}

/// Only ever grow.
#[derive(Debug, Default)]
pub struct Stats {
    pub settled: AtomicU64,
    pub stepped: AtomicU64,
    pub waiting: AtomicU64,
    pub blocked: AtomicU64,
    pub conflicts: AtomicU64,
    pub fenced: AtomicU64,
    pub unknown: AtomicU64,
    pub failed: AtomicU64,
    /// Snapshots that the watch began with.
    pub snapshots: AtomicU64,
    /// Lists made since the cache could not be trusted.
    pub relists: AtomicU64,
    /// Resources in which the cache differed from a list: the watch had lied.
    pub divergences: AtomicU64,
    /// Looks put off since the cache had not reached the key's last write.
    pub put_off: AtomicU64,
    pub claims_taken: AtomicU64,
    pub claims_handed_over: AtomicU64,
}

impl Stats {
    pub fn count(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Settled => &self.settled,
            Outcome::Stepped => &self.stepped,
            Outcome::Waiting => &self.waiting,
            Outcome::Blocked => &self.blocked,
            Outcome::Conflict => &self.conflicts,
            Outcome::Fenced => &self.fenced,
            Outcome::Unknown => &self.unknown,
            Outcome::Failed => &self.failed,
        };
        add(counter, 1);
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
