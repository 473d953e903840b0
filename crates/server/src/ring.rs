//! The recent groups of changes, each with what it replaced. A watcher is a position in it, so a slow one costs
//! nothing; one whose position is gone starts over with a snapshot.

use std::{collections::VecDeque, sync::Arc};

use model::{Key, Revision};
use tokio::time::Instant;

use crate::record::Record;

/// Groups kept: at 1,000 commits/s eight seconds of them.
pub const GROUPS_MAX: usize = 8192;
/// Bytes of replaced and current records that kept groups may hold on to.
pub const BYTES_MAX: usize = 16 * 1024 * 1024;

/// The changes of one transaction, or what a relist found (then `coalesced`).
#[derive(Debug)]
pub struct Kept {
    pub to: Revision,
    /// When it arrived here.
    pub at: Instant,
    pub coalesced: bool,
    /// Corrects what was said at this very revision.
    pub repair: bool,
    pub changes: Vec<KeptChange>,
}

#[derive(Debug)]
pub struct KeptChange {
    pub key: Key,
    /// None: it was created.
    pub before: Option<Arc<Record>>,
    /// None: it was removed.
    pub after: Option<Arc<Record>>,
}

impl Kept {
    fn bytes(&self) -> usize {
        let of = |record: &Option<Arc<Record>>| record.as_ref().map_or(0, |r| r.bytes.len());
        self.changes.iter().map(|c| of(&c.before) + of(&c.after)).sum()
    }
}

/// A place between two groups; counts groups since the server started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

/// Bounded in groups and bytes.
#[derive(Debug)]
pub struct Ring {
    /// Nothing after this is missing.
    floor: Revision,
    /// How many groups were dropped.
    first: u64,
    groups: VecDeque<Arc<Kept>>,
    bytes: usize,
    groups_max: usize,
}

impl Ring {
    pub fn after(floor: Revision, groups_max: usize) -> Self {
        Self { floor, first: 0, groups: VecDeque::new(), bytes: 0, groups_max }
    }

    /// Forgets everything, so that every watcher starts over.
    pub fn reset(&mut self, floor: Revision) {
        self.first += self.groups.len() as u64 + 1;
        self.groups.clear();
        self.bytes = 0;
        self.floor = floor;
    }

    pub fn push(&mut self, group: Arc<Kept>) {
        self.bytes += group.bytes();
        self.groups.push_back(group);
        while self.groups.len() > self.groups_max || (self.bytes > BYTES_MAX && self.groups.len() > 1) {
            let oldest = self.groups.pop_front().expect("more than one is kept");
            self.bytes -= oldest.bytes();
            self.floor = oldest.to;
            self.first += 1;
        }
    }

    /// After the newest group.
    pub fn end(&self) -> Position {
        Position(self.first + self.groups.len() as u64)
    }

    /// Right after that revision; none where what followed it is no longer kept.
    pub fn position_of(&self, revision: Revision) -> Option<Position> {
        if revision < self.floor {
            return None;
        }
        let seen = self.groups.partition_point(|g| g.to < revision || (g.to == revision && !g.repair));
        Some(Position(self.first + seen as u64))
    }

    /// The groups after that position, oldest first; none where some are no longer kept.
    pub fn since(&self, position: Position) -> Option<impl ExactSizeIterator<Item = &Arc<Kept>>> {
        let skip = usize::try_from(position.0.checked_sub(self.first)?).ok()?;
        Some(self.groups.range(skip.min(self.groups.len())..))
    }

    /// Whether that key may have been removed after that revision.
    pub fn may_have_removed(&self, key: &Key, revision: Revision) -> bool {
        let Some(mut groups) = self.position_of(revision).and_then(|position| self.since(position)) else {
            return true;
        };
        groups.any(|group| group.changes.iter().any(|c| c.key == *key && c.after.is_none()))
    }
}
