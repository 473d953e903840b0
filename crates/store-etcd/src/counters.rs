//! What went wrong and was healed, counted: numbers that should stay near zero.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why everything was listed anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relist {
    /// The commit counter skipped: whole commits weren't delivered.
    Gap,
    /// Fewer or other events came than the commit announced.
    Missing,
    /// A commit that `head` proves didn't come in time.
    Lag,
    /// What was to be resumed from is no longer kept.
    Compacted,
}

#[derive(Debug, Default)]
pub struct Counters {
    gap: AtomicU64,
    missing: AtomicU64,
    lag: AtomicU64,
    compacted: AtomicU64,
    repeated_events: AtomicU64,
    watches_reopened: AtomicU64,
}

/// Since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub relists_gap: u64,
    pub relists_missing: u64,
    pub relists_lag: u64,
    pub relists_compacted: u64,
    /// Events that etcd sent twice or late; ignored.
    pub repeated_events: u64,
    pub watches_reopened: u64,
    pub failovers: u64,
}

impl Counts {
    /// How often a watch was found to have lied.
    pub fn lies(&self) -> u64 {
        self.relists_gap + self.relists_missing + self.relists_lag
    }
}

impl Counters {
    pub fn relisted(&self, cause: Relist) {
        let counter = match cause {
            Relist::Gap => &self.gap,
            Relist::Missing => &self.missing,
            Relist::Lag => &self.lag,
            Relist::Compacted => &self.compacted,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn repeated(&self, events: u64) {
        self.repeated_events.fetch_add(events, Ordering::Relaxed);
    }

    pub fn reopened(&self) {
        self.watches_reopened.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self, failovers: u64) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            relists_gap: get(&self.gap),
            relists_missing: get(&self.missing),
            relists_lag: get(&self.lag),
            relists_compacted: get(&self.compacted),
            repeated_events: get(&self.repeated_events),
            watches_reopened: get(&self.watches_reopened),
            failovers,
        }
    }
}
