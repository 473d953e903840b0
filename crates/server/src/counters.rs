//! What a server counts, for metrics. Only ever grows, but for the gauges that say so.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// Every counter by its name.
            pub fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Groups taken over from the backend's watch.
    groups,
    /// Watches of the backend that ended and were opened anew.
    feed_reconnects,
    /// A commit was missing, or one had fewer events than announced.
    head_gaps,
    /// A head was read that the watch didn't reach in time.
    stalls,
    /// Snapshots taken of the whole store.
    relists,
    /// Records that a relist found wrong.
    healed,
    /// Pages of the store compared with the cache.
    audited_pages,
    /// Records that the audit found wrong.
    audit_differences,
    /// Gauge: open watches.
    watchers,
    /// Gauge: those of them that are filtered by a node.
    node_watchers,
    /// Snapshots sent to watchers.
    snapshots_sent,
    /// Groups sent to watchers.
    groups_sent,
    /// Changes that slow watchers were spared.
    coalesced,
    bookmarks_sent,
    /// Heads read from the backend, and reads that shared them.
    heads,
    reads,
    commits,
    commits_conflicted,
    commits_fenced,
    commits_denied,
    /// The store didn't answer, or refused for another reason.
    commits_failed,
    /// Applies and reports that were computed anew after a conflict.
    retries,
    /// Times that a machine didn't get a node's name, which is another's.
    nodes_refused,
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }

    pub fn subtract(&self, n: usize) {
        self.0.fetch_sub(n as u64, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
