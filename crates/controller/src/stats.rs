//! What one replica counts and measures: for metrics, and for tests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kinds::RECONCILERS;
use telemetry::metrics::{Counter, Gauge, Histogram};

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

impl Outcome {
    pub const ALL: [Self; 8] = [
        Self::Settled,
        Self::Stepped,
        Self::Waiting,
        Self::Blocked,
        Self::Conflict,
        Self::Fenced,
        Self::Unknown,
        Self::Failed,
    ];

    /// A label of metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Stepped => "stepped",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Unknown => "unknown",
            Self::Failed => "failed",
        }
    }
}

/// Only ever grow, but for the gauge.
#[derive(Debug, Default)]
pub struct Stats {
    pub looks: Looks,
    pub fenced: AtomicU64,
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
    /// From a change's stamp to its arrival here.
    pub lag: Histogram,
    /// 1 while a watch is open.
    pub watching: Gauge,
}

impl Stats {
    /// `reconciler`: its place in `RECONCILERS`.
    pub fn count(&self, reconciler: usize, outcome: Outcome) {
        self.looks.0[reconciler].outcomes[outcome as usize].add(1);
        if outcome == Outcome::Fenced {
            add(&self.fenced, 1);
        }
    }
}

/// By reconciler, in the order of `RECONCILERS`.
#[derive(Debug)]
pub struct Looks(Vec<LooksOfOne>);

#[derive(Debug, Default)]
pub struct LooksOfOne {
    pub duration: Histogram,
    /// By `Outcome`, in its order.
    outcomes: [Counter; Outcome::ALL.len()],
}

impl Default for Looks {
    fn default() -> Self {
        Self(RECONCILERS.iter().map(|_| LooksOfOne::default()).collect())
    }
}

impl Looks {
    pub fn of(&self, reconciler: usize) -> &LooksOfOne {
        &self.0[reconciler]
    }

    pub fn iter(&self) -> impl Iterator<Item = &LooksOfOne> {
        self.0.iter()
    }
}

impl LooksOfOne {
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].get()
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
