//! What this replica believes the world to be: fed by the watch, checked by digests, mended by lists.
//!
//! Values and locks; no I/O. Reads are short: a plan runs under the read lock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use kinds::{Item, View, World};
use model::{Digest, Key, Object, Revision, Time};
use store::{Change, ShardDigest};
use tokio::{sync::watch, time::Instant};

/// Stands for "of a kind that every shard reads" where a shard is asked for.
const GLOBAL: u32 = u32::MAX;

/// An item that appeared, changed (both) or went.
pub type Changed = (Option<Arc<Item>>, Option<Arc<Item>>);

#[derive(Default)]
struct Inner {
    world: World,
    /// Shards whose snapshot was complete.
    covered: BTreeSet<u32>,
    /// A list was applied up to there; older events of the shard say nothing new.
    floors: BTreeMap<u32, Revision>,
    /// The newest deletion of the shard that the watch told of; older lists don't bring back what is gone.
    graves: BTreeMap<u32, Revision>,
    /// The revision of each key's last write by this replica.
    last_writes: HashMap<Key, Revision>,
    digests: BTreeMap<(u32, String), Digest>,
    clock: Option<(Time, Instant)>,
    live_since: Time,
}

#[derive(Default)]
pub struct Cache {
    inner: RwLock<Inner>,
    revision: watch::Sender<Revision>,
}

impl Cache {
    fn read<T>(&self, read: impl FnOnce(&Inner) -> T) -> T {
        read(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut Inner) -> T) -> T {
        write(&mut self.inner.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// How far the watch has come.
    pub fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// Never goes back. Own writes that have come back so are not waited for any more.
    pub fn advance(&self, revision: Revision) {
        let further = self.revision.send_if_modified(|r| {
            let further = revision > *r;
            *r = (*r).max(revision);
            further
        });
        if further {
            self.write(|inner| inner.last_writes.retain(|_, written| *written > revision));
        }
    }

    /// For a store that is another one now, whose revisions mean something else.
    pub fn forget_all(&self) {
        self.write(|inner| {
            let keys: Vec<Key> = inner.world.items().map(|item| item.key.clone()).collect();
            keys.iter().for_each(|key| drop(inner.remove(key)));
            inner.covered.clear();
            inner.floors.clear();
            inner.graves.clear();
            inner.last_writes.clear();
        });
        self.revision.send_replace(Revision::ZERO);
    }

    /// These shards were listed as of that revision: where they are all that there is, that is how far the cache is. A
    /// shard that came meanwhile may be further back.
    pub fn advance_if_only(&self, shards: &[u32], revision: Revision) {
        self.write(|inner| {
            if inner.covered.iter().all(|covered| shards.contains(covered)) {
                self.revision.send_if_modified(|r| revision > std::mem::replace(r, (*r).max(revision)));
            }
        });
    }

    /// Runs a decision on the present view. None before the first word from a server's clock.
    pub fn view<T>(&self, decide: impl FnOnce(&View<'_>) -> T) -> Option<T> {
        self.read(|inner| {
            let now = inner.now()?;
            Some(decide(&View { world: &inner.world, now, live_since: inner.live_since }))
        })
    }

    pub fn world<T>(&self, look: impl FnOnce(&World) -> T) -> T {
        self.read(|inner| look(&inner.world))
    }

    /// The servers' clock, carried on by ours.
    pub fn set_clock(&self, time: Time) {
        if time > Time::default() {
            self.write(|inner| inner.clock = Some((time, Instant::now())));
        }
    }

    pub fn now(&self) -> Option<Time> {
        self.read(Inner::now)
    }

    /// What was not seen from here on back proves nothing about silence.
    pub fn set_live_since_now(&self) {
        self.write(|inner| inner.live_since = inner.now().unwrap_or_default());
    }

    /// Whether the key's own last write has come back through the watch.
    pub fn has_own_write(&self, key: &Key) -> bool {
        let revision = self.revision();
        self.read(|inner| {
            let Some(written) = inner.last_writes.get(key) else { return true };
            let shard = inner.world.get(key).map_or(GLOBAL, |item| shard_of(item));
            revision.max(inner.floor(shard)) >= *written
        })
    }

    pub fn note_write(&self, key: &Key, revision: Revision) {
        self.write(|inner| {
            let written = inner.last_writes.entry(key.clone()).or_default();
            *written = (*written).max(revision);
        });
    }

    pub fn covers(&self, shard: u32) -> bool {
        self.read(|inner| inner.covered.contains(&shard))
    }

    pub fn covered(&self) -> BTreeSet<u32> {
        self.read(|inner| inner.covered.clone())
    }

    pub fn covers_all(&self, shards: &[u32]) -> bool {
        self.read(|inner| shards.iter().all(|shard| inner.covered.contains(shard)))
    }

    /// Applies changes in order; what is older than what's known is passed over.
    pub fn apply(&self, changes: &[Change]) -> Vec<Changed> {
        self.write(|inner| changes.iter().filter_map(|change| inner.apply(change)).collect())
    }

    /// Replaces everything that `shards` (None: all) and the global kinds have by a complete listing as of `revision`.
    pub fn replace(
        &self,
        objects: &[Object],
        shards: Option<&[u32]>,
        global: bool,
        revision: Revision,
    ) -> Vec<Changed> {
        self.write(|inner| inner.replace(objects, shards, global, revision))
    }

    /// Takes over a snapshot: after this, `shards` are covered; where it's `whole`, nothing else is. None where it's older
    /// than what was seen: taken for complete it would let a barrier pass that it doesn't reach.
    pub fn complete(
        &self,
        objects: &[Object],
        shards: &[u32],
        whole: bool,
        revision: Revision,
    ) -> Option<Vec<Changed>> {
        self.write(|inner| {
            if revision < self.revision() {
                return None;
            }
            if whole {
                inner.covered.clear();
            }
            inner.covered.extend(shards);
            Some(inner.replace(objects, Some(shards), whole, revision))
        })
    }

    /// Drops what is not watched any more.
    pub fn forget_all_but(&self, shards: &[u32]) {
        self.write(|inner| {
            let keep: BTreeSet<u32> = shards.iter().copied().collect();
            inner.covered.retain(|shard| keep.contains(shard));
            let gone: Vec<Key> = inner
                .world
                .items()
                .filter(|item| !matches!(shard_of(item), GLOBAL) && !keep.contains(&shard_of(item)))
                .map(|item| item.key.clone())
                .collect();
            for key in gone {
                inner.remove(&key);
                inner.last_writes.remove(&key);
            }
        });
    }

    pub fn set_agents(&self, agents: BTreeSet<String>) -> Vec<String> {
        self.write(|inner| inner.world.set_agents(agents))
    }

    /// The shards in which these digests, as of exactly the cache's revision, differ from what the cache holds. A pair
    /// that is not named is empty.
    pub fn differing(&self, digests: &[ShardDigest]) -> BTreeSet<u32> {
        self.read(|inner| {
            let named: BTreeMap<(u32, &str), Digest> =
                digests.iter().map(|d| ((d.shard, d.kind.as_str()), d.digest)).collect();
            let own = inner.digests.iter().map(|((shard, kind), digest)| ((*shard, kind.as_str()), *digest));
            let own: BTreeMap<(u32, &str), Digest> = own.collect();
            let pairs: BTreeSet<&(u32, &str)> = named.keys().chain(own.keys()).collect();
            let of = |digests: &BTreeMap<(u32, &str), Digest>, pair| digests.get(pair).copied().unwrap_or_default();
            pairs.into_iter().filter(|pair| of(&named, pair) != of(&own, pair)).map(|pair| pair.0).collect()
        })
    }
}

/// The shard by which an item is kept and checked.
fn shard_of(item: &Item) -> u32 {
    let global = kinds::kind(item.key.kind()).is_some_and(|kind| kind.info().global);
    if global { GLOBAL } else { item.metadata().shard }
}

impl Inner {
    fn now(&self) -> Option<Time> {
        self.clock.map(|(time, at)| time.plus(at.elapsed()))
    }

    fn floor(&self, shard: u32) -> Revision {
        self.floors.get(&shard).copied().unwrap_or_default()
    }

    fn apply(&mut self, change: &Change) -> Option<Changed> {
        match change {
            Change::Put(object) => {
                let item = Item::read(object).ok()?;
                let newer = self.world.get(&item.key).is_none_or(|known| known.revision < item.revision);
                (newer && item.revision > self.floor(shard_of(&item))).then(|| self.put(item))
            }
            Change::Deleted { key, revision, .. } => {
                let known = self.world.get(key)?;
                if known.revision > *revision {
                    return None;
                }
                let grave = self.graves.entry(shard_of(known)).or_default();
                *grave = (*grave).max(*revision);
                Some((self.remove(key), None))
            }
        }
    }

    fn put(&mut self, item: Item) -> Changed {
        let before = self.remove(&item.key);
        let item = Arc::new(item);
        self.digest(&item).add(term(&item));
        self.world.put(item.clone());
        (before, Some(item))
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<Item>> {
        let item = self.world.remove(key)?;
        self.digest(&item).remove(term(&item));
        Some(item)
    }

    fn digest(&mut self, item: &Item) -> &mut Digest {
        self.digests.entry((item.metadata().shard, item.key.kind().to_owned())).or_default()
    }

    fn replace(
        &mut self,
        objects: &[Object],
        shards: Option<&[u32]>,
        global: bool,
        revision: Revision,
    ) -> Vec<Changed> {
        let meant = |item: &Item| match shard_of(item) {
            GLOBAL => global,
            shard => shards.is_none_or(|shards| shards.contains(&shard)),
        };
        let listed: BTreeSet<&Key> = objects.iter().map(|object| &object.key).collect();
        let stale = |item: &&Arc<Item>| meant(item) && item.revision <= revision && !listed.contains(&item.key);
        let gone: Vec<Key> = self.world.items().filter(stale).map(|item| item.key.clone()).collect();
        let mut changed: Vec<Changed> = gone.iter().map(|key| (self.remove(key), None)).collect();
        for object in objects {
            let known = self.world.get(&object.key);
            // The same revision with other bytes is a copy that was altered on its way.
            let same = known.is_some_and(|k| {
                k.revision > object.revision || (k.revision == object.revision && k.bytes == object.bytes)
            });
            let absent = known.is_none();
            if !same && let Ok(item) = Item::read(object) {
                let grave = self.graves.get(&shard_of(&item)).copied().unwrap_or_default();
                if !(absent && revision < grave) {
                    changed.push(self.put(item));
                }
            }
        }
        let floors = shards.unwrap_or_default().iter().copied().chain(global.then_some(GLOBAL));
        for shard in floors {
            let floor = self.floors.entry(shard).or_default();
            *floor = (*floor).max(revision);
        }
        changed
    }
}

fn term(item: &Item) -> u128 {
    Digest::term(&item.key, item.uid(), item.revision, &item.bytes)
}

/// How long until a point on the servers' clock.
pub fn until(now: Time, at: Time) -> Duration {
    at.since(now)
}

#[cfg(test)]
mod tests;
