//! Everything the store holds, as one value that is kept up to date group by group: the watch cache. Pure and
//! synchronous; `feed` fills it, `watch` and `reads` serve from it.
//!
//! It never goes back: what is not newer than what it has seen is ignored, and what does not follow on without a gap is
//! refused, so that its owner lists anew.

use std::{collections::HashMap, ops::Bound, sync::Arc};

use model::{Digest, Filter, Key, Object, Revision};
use store::{Change, Group, Head};
use tokio::time::Instant;

use crate::{
    pins::{Pins, Records},
    record::Record,
    ring::{Kept, KeptChange, Ring},
    tally::Tally,
};

/// Why the watch can't be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lie {
    #[error("commit {found} followed commit {seen}")]
    HeadGap { seen: u64, found: u64 },
    #[error("a group starts after revision {from}, but revision {seen} was the last one seen")]
    RevisionGap { seen: Revision, from: Revision },
    #[error("a transaction announced {announced} writes, but {found} arrived")]
    Short { announced: u32, found: usize },
    #[error("the store counts {found} commits at a revision where {seen} were seen")]
    HeadDiffers { seen: u64, found: u64 },
}

/// What a relist changed in the cache beyond what had not been seen yet.
#[derive(Debug, Default)]
pub struct Healed {
    /// Records that were wrong at a revision that had been seen.
    pub differed: Vec<Key>,
    /// All changes.
    pub changes: usize,
}

#[derive(Debug)]
pub struct Cache {
    pub incarnation: String,
    pub revision: Revision,
    /// The commit counter at `revision`, where it is known.
    commits: Option<u64>,
    records: Records,
    /// By kind, then shard.
    digests: HashMap<String, HashMap<u32, Digest>>,
    pub ring: Ring,
    pub pins: Pins,
    bytes: usize,
    tally: Tally,
}

impl Cache {
    pub fn new(groups_max: usize) -> Self {
        Self {
            incarnation: String::new(),
            revision: Revision::ZERO,
            commits: None,
            records: Records::new(),
            digests: HashMap::new(),
            ring: Ring::after(Revision::ZERO, groups_max),
            pins: Pins::default(),
            bytes: 0,
            tally: Tally::default(),
        }
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Record>> {
        self.records.get(key)
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Encoded bytes of all records.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many resources there are, by what they say of themselves.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn digest(&self, shard: u32, kind: &str) -> Digest {
        self.digests.get(kind).and_then(|shards| shards.get(&shard)).copied().unwrap_or_default()
    }

    /// Takes over one group of the backend's watch. Nothing changes where it's refused. Whether it was news.
    pub fn apply(&mut self, group: Group) -> Result<bool, Lie> {
        if group.to <= self.revision {
            return Ok(false);
        }
        if group.from > self.revision {
            return Err(Lie::RevisionGap { seen: self.revision, from: group.from });
        }
        let commits = self.check_head(&group)?;
        let coalesced = group.coalesced;
        let changes = group.changes.into_iter().filter_map(|change| self.change(change)).collect();
        self.revision = group.to;
        self.commits = commits;
        self.ring.push(Arc::new(Kept { to: group.to, at: Instant::now(), coalesced, repair: false, changes }));
        Ok(true)
    }

    /// The commit counter after the group.
    fn check_head(&self, group: &Group) -> Result<Option<u64>, Lie> {
        let Some(head) = group.head else { return Ok(None) };
        match self.commits {
            Some(seen) if head.commits != seen + 1 => return Err(Lie::HeadGap { seen, found: head.commits }),
            _ => {}
        }
        if usize::try_from(head.writes).is_ok_and(|announced| announced != group.changes.len()) {
            return Err(Lie::Short { announced: head.writes, found: group.changes.len() });
        }
        Ok(Some(head.commits))
    }

    /// Nothing can be learnt from that head.
    pub fn knows(&self, head: Head) -> bool {
        head.revision != self.revision || self.commits == Some(head.commits)
    }

    /// Compares with a head that was read linearizably; learns from it where the counter isn't known.
    pub fn compare_head(&mut self, head: Head) -> Result<(), Lie> {
        if head.revision != self.revision {
            return Ok(());
        }
        match self.commits {
            Some(seen) if seen != head.commits => Err(Lie::HeadDiffers { seen, found: head.commits }),
            _ => {
                self.commits = Some(head.commits);
                Ok(())
            }
        }
    }

    /// Replaces everything by a complete snapshot. What differs becomes one coalesced group; of another incarnation,
    /// every watcher starts over instead.
    pub fn install(&mut self, incarnation: &str, revision: Revision, objects: &[Object]) -> Healed {
        let fresh = self.incarnation != incarnation;
        let seen = std::mem::replace(&mut self.revision, revision);
        self.incarnation = incarnation.to_owned();
        self.commits = None;
        let mut healed = Healed::default();
        let listed: HashMap<&Key, &Object> = objects.iter().map(|o| (&o.key, o)).collect();
        let gone: Vec<Key> = self.records.keys().filter(|key| !listed.contains_key(key)).cloned().collect();
        let mut changes: Vec<KeptChange> = Vec::new();
        for key in gone {
            changes.extend(self.remove(&key));
        }
        for object in objects {
            let known = self.records.get(&object.key);
            match known.filter(|k| k.revision == object.revision) {
                Some(known) if known.bytes == object.bytes => continue,
                Some(_) => healed.differed.push(object.key.clone()),
                None if object.revision <= seen && !fresh => healed.differed.push(object.key.clone()),
                None => {}
            }
            changes.push(self.put(object));
        }
        healed.changes = changes.len();
        if fresh {
            self.pins.clear();
            self.ring.reset(revision);
        } else if revision > seen || !changes.is_empty() {
            self.ring.push(Arc::new(Kept {
                to: revision,
                at: Instant::now(),
                coalesced: true,
                repair: revision == seen,
                changes,
            }));
        }
        healed
    }

    fn change(&mut self, change: Change) -> Option<KeptChange> {
        match change {
            Change::Put(object) => {
                let newer = self.records.get(&object.key).is_none_or(|known| known.revision < object.revision);
                newer.then(|| self.put(&object))
            }
            Change::Deleted { key, .. } => self.remove(&key),
        }
    }

    fn put(&mut self, object: &Object) -> KeptChange {
        let after = Arc::new(Record::new(object));
        let key = object.key.clone();
        let before = self.records.insert(key.clone(), after.clone());
        self.pins.record(&key, before.as_ref());
        if let Some(before) = &before {
            self.leave(&key, before);
        }
        self.enter(&key, &after);
        KeptChange { key, before, after: Some(after) }
    }

    fn remove(&mut self, key: &Key) -> Option<KeptChange> {
        let before = self.records.remove(key)?;
        self.pins.record(key, Some(&before));
        self.leave(key, &before);
        Some(KeptChange { key: key.clone(), before: Some(before), after: None })
    }

    /// What is said of all records together is kept with each that comes and goes.
    fn enter(&mut self, key: &Key, record: &Record) {
        self.digest_mut(key, record).add(record.term(key));
        self.bytes += record.bytes.len();
        self.tally.enter(key, record);
    }

    fn leave(&mut self, key: &Key, record: &Record) {
        self.digest_mut(key, record).remove(record.term(key));
        self.bytes -= record.bytes.len();
        self.tally.leave(key, record);
    }

    fn digest_mut(&mut self, key: &Key, record: &Record) -> &mut Digest {
        if !self.digests.contains_key(key.kind()) {
            self.digests.insert(key.kind().to_owned(), HashMap::new());
        }
        let shards = self.digests.get_mut(key.kind()).expect("made above");
        shards.entry(record.shard).or_default()
    }

    /// What matches, in key order, after that key.
    pub fn matching<'a>(&'a self, filter: &'a Filter, after: Option<&Key>) -> impl Iterator<Item = Object> + 'a {
        let start = start_of(filter, after);
        let records = self.records.range::<Key, _>((start.as_ref(), Bound::Unbounded));
        select(records, filter)
    }

    /// The same at a pinned revision; none where it isn't pinned.
    pub fn matching_at<'a>(
        &'a self,
        revision: Revision,
        filter: &'a Filter,
        after: Option<&Key>,
    ) -> Option<impl Iterator<Item = Object> + 'a> {
        let start = start_of(filter, after);
        Some(select(self.pins.range(revision, &self.records, start.as_ref())?, filter))
    }

    /// The keys in a range, with their revisions; for the audit.
    pub fn between<'a>(&'a self, after: Option<&Key>, to: Option<&Key>) -> impl Iterator<Item = (&'a Key, Revision)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let end = to.map_or(Bound::Unbounded, Bound::Included);
        self.records.range::<Key, _>((start, end)).map(|(key, record)| (key, record.revision))
    }

    pub fn pin(&mut self, now: Instant) {
        self.pins.pin(self.revision, now);
    }
}

/// Where one kind is asked for, the others' records aren't looked at.
fn start_of(filter: &Filter, after: Option<&Key>) -> Bound<Key> {
    let first = match filter.kinds.as_slice() {
        [kind] => Some(Key::new(kind, "", "")),
        _ => None,
    };
    match (after, first) {
        (Some(key), Some(first)) if *key < first => Bound::Included(first),
        (Some(key), _) => Bound::Excluded(key.clone()),
        (None, Some(first)) => Bound::Included(first),
        (None, None) => Bound::Unbounded,
    }
}

fn select<'a>(
    records: impl Iterator<Item = (&'a Key, &'a Arc<Record>)> + 'a,
    filter: &'a Filter,
) -> impl Iterator<Item = Object> + 'a {
    let one = match filter.kinds.as_slice() {
        [kind] => Some(kind.as_str()),
        _ => None,
    };
    records
        .take_while(move |(key, _)| one.is_none_or(|kind| key.kind() == kind))
        .filter(|(key, record)| filter.matches(&record.facts(key)))
        .map(|(key, record)| record.object(key))
}
