//! What a watcher with some filter sees of the kept groups. Pure.
//!
//! It tells apart what is gone from what merely left the filter, and a record from another one of the same name: a
//! delete-and-recreate shows both uids, however many groups it was folded from.

use std::{collections::BTreeMap, sync::Arc};

use model::{Filter, Key, Revision};
use store::{Change, Group};

use crate::{
    record::Record,
    ring::{Kept, KeptChange},
};

/// One group as it is; none where the filter sees nothing of it.
pub fn one(group: &Kept, filter: &Filter, from: Revision) -> Option<Group> {
    let mut changes = Vec::new();
    for change in &group.changes {
        let removed_at = change.ends_its_record().then_some(group.to);
        let ends = Ends { first: change.before.as_ref(), last: change.after.as_ref(), removed_at, to: group.to };
        ends.seen(&change.key, filter, &mut changes);
    }
    (!changes.is_empty()).then(|| Group { from, to: group.to, coalesced: group.coalesced, changes, head: None })
}

/// Several groups as one: the state of each changed key at the end of them, and how many changes were saved.
pub fn coalesced<'a>(
    groups: impl Iterator<Item = &'a Arc<Kept>>,
    filter: &Filter,
    from: Revision,
) -> (Option<Group>, usize) {
    let mut keys: BTreeMap<&Key, Ends<'_>> = BTreeMap::new();
    let (mut to, mut total) = (from, 0);
    for group in groups {
        to = group.to;
        total += group.changes.len();
        for change in &group.changes {
            let first = change.before.as_ref();
            let ends = keys.entry(&change.key).or_insert(Ends { first, last: None, removed_at: None, to });
            if change.ends_its_record() && ends.removed_at.is_none() {
                ends.removed_at = Some(to);
            }
            (ends.last, ends.to) = (change.after.as_ref(), to);
        }
    }
    let saved = total - keys.len();
    let mut changes = Vec::new();
    keys.into_iter().for_each(|(key, ends)| ends.seen(key, filter, &mut changes));
    let group = Group { from, to, coalesced: true, changes, head: None };
    ((!group.changes.is_empty()).then_some(group), saved)
}

impl KeptChange {
    /// What was there before is gone, though another may have taken its name.
    fn ends_its_record(&self) -> bool {
        let same = |before: &Record| self.after.as_ref().is_some_and(|after| after.uid() == before.uid());
        self.before.as_ref().is_some_and(|before| !same(before))
    }
}

/// A key before and after some changes.
#[derive(Clone, Copy)]
struct Ends<'a> {
    first: Option<&'a Arc<Record>>,
    last: Option<&'a Arc<Record>>,
    /// Where the record that `first` is went.
    removed_at: Option<Revision>,
    to: Revision,
}

impl Ends<'_> {
    fn seen(self, key: &Key, filter: &Filter, changes: &mut Vec<Change>) {
        let visible = |record: &&Arc<Record>| filter.matches(&record.facts(key));
        let known = self.first.filter(visible);
        let shown = self.last.filter(visible);
        let deleted = |uid: &str, revision, left| Change::Deleted { key: key.clone(), uid: uid.into(), revision, left };
        if let Some(known) = known {
            let successor = self.last.filter(|last| last.uid() == known.uid());
            match (successor, shown) {
                (None, _) => changes.push(deleted(known.uid(), self.removed_at.unwrap_or(self.to), false)),
                (Some(last), None) => changes.push(deleted(known.uid(), last.revision, true)),
                (Some(_), Some(_)) => {}
            }
        }
        changes.extend(shown.map(|record| Change::Put(record.object(key))));
    }
}
