//! Is the cache as new as the store? Pure: heads that were read go in, and how far the cache is; out comes whether to
//! list anew, and whether the server may still answer.

use std::time::Duration;

use model::Revision;
use store::Head;
use tokio::time::Instant;

/// A head that was read but isn't reached in this time means that the watch lies or hangs.
pub const STALL_MAX: Duration = Duration::from_millis(500);
/// Without a confirmation for this long a server is stale.
pub const STALE_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    Fine,
    /// The watch stalls behind a head: list anew.
    Stalled,
}

#[derive(Debug)]
pub struct Confirm {
    /// The newest head ever read.
    newest: Revision,
    /// The oldest head that isn't reached yet.
    pending: Option<Pending>,
    /// When the newest read began whose head the cache has reached.
    confirmed_at: Instant,
    rolled_back: bool,
}

#[derive(Debug)]
struct Pending {
    revision: Revision,
    began: Instant,
    /// Since when it's waited for.
    since: Instant,
}

impl Confirm {
    pub fn new(now: Instant) -> Self {
        Self { newest: Revision::ZERO, pending: None, confirmed_at: now, rolled_back: false }
    }

    /// A read of the head that began then, with the cache at `known`, has ended now.
    pub fn head(&mut self, (began, known): (Instant, Revision), now: Instant, head: Head, cache: Revision) {
        self.rolled_back = head.revision < self.newest.max(known);
        self.newest = self.newest.max(head.revision);
        if head.revision <= cache {
            self.confirmed_at = self.confirmed_at.max(began);
        } else if self.pending.is_none() {
            self.pending = Some(Pending { revision: head.revision, began, since: now });
        }
    }

    pub fn tick(&mut self, now: Instant, cache: Revision) -> Finding {
        match &mut self.pending {
            Some(pending) if pending.revision <= cache => {
                self.confirmed_at = self.confirmed_at.max(pending.began);
                self.pending = None;
                Finding::Fine
            }
            Some(pending) if now.saturating_duration_since(pending.since) >= STALL_MAX => {
                pending.since = now;
                Finding::Stalled
            }
            _ => Finding::Fine,
        }
    }

    /// The store may answer differently by now.
    pub fn stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.confirmed_at) > STALE_AFTER
    }

    /// The store's head is below what was seen: somebody restored it.
    pub fn rolled_back(&self) -> bool {
        self.rolled_back
    }

    /// The store is another one now.
    pub fn restart(&mut self, now: Instant) {
        *self = Self::new(now);
    }
}
