//! Makes whole commits out of events, or finds that the watch lied. Pure: values in, values out.

use std::collections::BTreeMap;

use bytes::Bytes;
use etcd_client::{EventType, KeyValue};
use model::{Key, Revision};
use store::{Head, HeadNote};

use crate::{
    counters::Relist,
    layout::{Layout, Watched},
};

/// One event below `w/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub revision: Revision,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Head(HeadNote),
    Put(Key, Bytes),
    Deleted(Key),
}

/// What one transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub revision: Revision,
    pub head: HeadNote,
    /// None: deleted.
    pub objects: BTreeMap<Key, Option<Bytes>>,
}

/// What an event yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The commit it belongs to isn't whole yet.
    Nothing,
    Commit(Commit),
    /// It was seen before, or comes late.
    Repeated,
    Lie(Relist),
}

/// Where a watch is, and what has come of the next commit.
#[derive(Debug)]
pub struct Assembler {
    /// The last whole commit.
    head: Head,
    revision: Revision,
    objects: BTreeMap<Key, Option<Bytes>>,
}

impl Event {
    /// None for a key that isn't ours.
    pub fn read(layout: &Layout, kind: EventType, kv: &KeyValue) -> Option<Self> {
        let what = match (layout.read_watched(kv.key())?, kind) {
            (Watched::Head, EventType::Put) => What::Head(HeadNote {
                commits: crate::read::head_of(kv).commits,
                writes: std::str::from_utf8(kv.value()).ok()?.parse().ok()?,
            }),
            // `head` is never deleted; a counter that starts anew is a gap.
            (Watched::Head, EventType::Delete) => What::Head(HeadNote { commits: 0, writes: 0 }),
            (Watched::Object(key), EventType::Put) => What::Put(key, Bytes::copy_from_slice(kv.value())),
            (Watched::Object(key), EventType::Delete) => What::Deleted(key),
        };
        Some(Self { revision: Revision(kv.mod_revision()), what })
    }
}

impl Assembler {
    pub fn after(head: Head) -> Self {
        Self { head, revision: Revision::ZERO, objects: BTreeMap::new() }
    }

    pub fn head(&self) -> Head {
        self.head
    }

    /// Whether events came of a commit that isn't whole.
    pub fn is_waiting(&self) -> bool {
        !self.objects.is_empty()
    }

    pub fn take(&mut self, event: Event) -> Taken {
        if event.revision <= self.head.revision || event.revision < self.revision {
            return Taken::Repeated;
        }
        if event.revision > self.revision && self.is_waiting() {
            return Taken::Lie(Relist::Missing);
        }
        self.revision = event.revision;
        let repeated = match event.what {
            What::Head(note) => return self.close(note),
            What::Put(key, bytes) => self.objects.insert(key, Some(bytes)),
            What::Deleted(key) => self.objects.insert(key, None),
        };
        if repeated.is_some() { Taken::Repeated } else { Taken::Nothing }
    }

    /// `head` is written last, so its event ends a commit's.
    fn close(&mut self, note: HeadNote) -> Taken {
        let objects = std::mem::take(&mut self.objects);
        if note.commits != self.head.commits + 1 {
            return Taken::Lie(Relist::Gap);
        }
        if u32::try_from(objects.len()) != Ok(note.writes) {
            return Taken::Lie(Relist::Missing);
        }
        self.head = Head { revision: self.revision, commits: note.commits };
        Taken::Commit(Commit { revision: self.revision, head: note, objects })
    }
}

#[cfg(test)]
#[path = "assembler_tests.rs"]
mod tests;
