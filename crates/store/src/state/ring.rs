//! The recent groups of changes, from which watches go on. Each watcher is a position in it, so that a slow one costs
//! nothing: when its position is gone it starts over with a snapshot.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use model::{Filter, Key, Object, Revision};

use crate::{Change, HeadNote, Known};

/// Groups kept: at 1,000 commits/s four seconds of them.
const GROUPS_MAX: usize = 4096;
/// Bytes of replaced and current records that the kept groups may hold on to.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// The changes of one transaction.
#[derive(Debug)]
pub struct Kept {
    pub revision: Revision,
    pub head: HeadNote,
    pub changes: Vec<KeptChange>,
}

#[derive(Debug)]
pub struct KeptChange {
    pub key: Key,
    /// What it was; none where it was created.
    pub before: Option<Arc<Known>>,
    /// What it is; none where it was removed.
    pub after: Option<(Bytes, Arc<Known>)>,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.changes.iter().map(|c| c.after.as_ref().map_or(0, |(bytes, _)| bytes.len())).sum()
    }

    /// What a watch with that filter sees of it.
    pub fn changes(&self, filter: &Filter) -> Vec<Change> {
        self.changes.iter().filter_map(|change| change.seen_through(filter, self.revision)).collect()
    }
}

impl KeptChange {
    fn seen_through(&self, filter: &Filter, revision: Revision) -> Option<Change> {
        let visible = |known: &Known| filter.matches(&known.facts(&self.key));
        if let Some((bytes, known)) = &self.after
            && visible(known)
        {
            return Some(Change::Put(Object { key: self.key.clone(), revision, bytes: bytes.clone() }));
        }
        let before = self.before.as_ref().filter(|known| visible(known))?;
        let (key, uid) = (self.key.clone(), before.uid.clone());
        Some(Change::Deleted { key, uid, revision, left: self.after.is_some() })
    }
}

#[derive(Debug)]
pub struct Ring {
    /// Nothing after this is missing.
    floor: Revision,
    groups: VecDeque<Arc<Kept>>,
    bytes: usize,
}

impl Ring {
    pub fn after(floor: Revision) -> Self {
        Self { floor, groups: VecDeque::new(), bytes: 0 }
    }

    pub fn push(&mut self, group: Arc<Kept>) {
        self.bytes += group.bytes();
        self.groups.push_back(group);
        while self.groups.len() > GROUPS_MAX || (self.bytes > BYTES_MAX && self.groups.len() > 1) {
            let oldest = self.groups.pop_front().expect("more than one is kept");
            self.bytes -= oldest.bytes();
            self.floor = oldest.revision;
        }
    }

    /// The oldest groups after that revision, at most so many; none where some are no longer kept.
    pub fn since(&self, revision: Revision, limit: usize) -> Option<Vec<Arc<Kept>>> {
        if revision < self.floor {
            return None;
        }
        let first = self.groups.partition_point(|group| group.revision <= revision);
        Some(self.groups.iter().skip(first).take(limit).cloned().collect())
    }
}
