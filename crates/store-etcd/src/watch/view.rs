//! What a reader was told so far, as far as it's needed to tell it the rest: which objects at which revision, their uid,
//! and whether its filter lets them through.
//!
//! It is what deletes take their uid from, and what a new list is compared with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{Filter, Key, Object, Revision};
use store::{Change, Group, Head, HeadNote, Result};

use super::assembler::Commit;
use crate::{
    read::{Everything, known_of},
    uids::Uids,
};

/// What is known of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    revision: Revision,
    uid: Box<str>,
    visible: bool,
}

pub struct View {
    filter: Filter,
    uids: Arc<Uids>,
    objects: BTreeMap<Key, Told>,
    /// `Group::from` of the next group.
    told: Revision,
}

impl View {
    /// As a snapshot: the view and what the reader is to see of it.
    pub fn new(filter: Filter, uids: Arc<Uids>, everything: Everything) -> Result<(Self, Vec<Object>)> {
        let mut view = Self { filter, uids, objects: BTreeMap::new(), told: everything.head.revision };
        let mut seen = Vec::new();
        for object in everything.objects {
            let told = view.told_of(&object)?;
            let visible = told.visible;
            view.objects.insert(object.key.clone(), told);
            if visible {
                seen.push(object);
            }
        }
        Ok((view, seen))
    }

    /// A commit as the reader sees it. A filtered watch isn't told of commits that it can't see.
    pub fn apply(&mut self, commit: Commit) -> Result<Option<Group>> {
        let Commit { revision, head, objects } = commit;
        let mut changes = Vec::new();
        for (key, bytes) in objects {
            match bytes {
                Some(bytes) => changes.extend(self.put(Object { key, revision, bytes }, revision)?),
                None => changes.extend(self.delete(key, revision)),
            }
        }
        Ok(self.group(revision, false, changes, head))
    }

    /// Everything as it is now, as one group of what changed since.
    pub fn catch_up(&mut self, everything: Everything) -> Result<Option<Group>> {
        let Head { revision, commits } = everything.head;
        let mut changes = Vec::new();
        let mut gone: BTreeSet<Key> = self.objects.keys().cloned().collect();
        for object in everything.objects {
            gone.remove(&object.key);
            let (new, told) = (self.told_of(&object)?, self.objects.get(&object.key));
            if told.is_some_and(|told| told.revision >= new.revision) {
                continue;
            }
            // Made anew meanwhile: both uids are told.
            if told.is_some_and(|told| told.uid != new.uid) {
                changes.extend(self.delete(object.key.clone(), revision));
            }
            changes.extend(self.put(object, revision)?);
        }
        changes.extend(gone.into_iter().filter_map(|key| self.delete(key, revision)));
        let writes = u32::try_from(changes.len()).unwrap_or(u32::MAX);
        Ok(self.group(revision, true, changes, HeadNote { commits, writes }))
    }

    fn put(&mut self, object: Object, at: Revision) -> Result<Option<Change>> {
        let told = self.told_of(&object)?;
        let visible = told.visible;
        self.uids.learn(&object.key, object.revision, &told.uid);
        let before = self.objects.insert(object.key.clone(), told).filter(|before| before.visible);
        Ok(match (visible, before) {
            (true, _) => Some(Change::Put(object)),
            (false, Some(before)) => {
                Some(Change::Deleted { key: object.key, uid: before.uid.into(), revision: at, left: true })
            }
            (false, None) => None,
        })
    }

    fn delete(&mut self, key: Key, revision: Revision) -> Option<Change> {
        let before = self.objects.remove(&key).filter(|before| before.visible)?;
        Some(Change::Deleted { key, uid: before.uid.into(), revision, left: false })
    }

    fn group(&mut self, to: Revision, coalesced: bool, changes: Vec<Change>, head: HeadNote) -> Option<Group> {
        if changes.is_empty() && self.filter != Filter::default() {
            return None;
        }
        let from = std::mem::replace(&mut self.told, to);
        Some(Group { from, to, coalesced, changes, head: Some(head) })
    }

    fn told_of(&self, object: &Object) -> Result<Told> {
        let known = known_of(object)?;
        let visible = self.filter == Filter::default() || self.filter.matches(&known.facts(&object.key));
        Ok(Told { revision: object.revision, uid: known.uid.into(), visible })
    }
}
