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

/// How far one word sets the clock back; each server says one every 5 s, so clocks that differ by 1 s meet in 8 min.
const BACK_STEP: Duration = Duration::from_millis(10);
/// No word is that late: the servers' clock was set back.
const BACK_AT_ONCE: Duration = Duration::from_secs(60);

/// An item that appeared, changed (both) or went.
pub type Changed = (Option<Arc<Item>>, Option<Arc<Item>>);

/// What a store says to be all that there is.
pub struct Listed<'a> {
    pub incarnation: &'a str,
    pub objects: &'a [Object],
    pub shards: &'a [u32],
    /// Of the kinds that every shard reads, too.
    pub global: bool,
    pub revision: Revision,
}

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
    /// Of the store that all of it is from; empty before the first snapshot.
    incarnation: watch::Sender<String>,
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
        if self.raise(revision) {
            self.write(|inner| inner.came_back(revision));
        }
    }

    fn raise(&self, revision: Revision) -> bool {
        self.revision.send_if_modified(|r| {
            let further = revision > *r;
            *r = (*r).max(revision);
            further
        })
    }

    /// What comes from now on is of that store. Where it's another one than before, whose revisions mean something else,
    /// everything is forgotten.
    pub fn begin(&self, incarnation: &str) {
        self.write(|inner| {
            let another = |known: &str| !known.is_empty() && known != incarnation;
            if another(&self.incarnation.borrow()) {
                inner.forget_all();
                self.revision.send_replace(Revision::ZERO);
            }
            // Last: whoever reads it finds nothing any more of the store before.
            self.incarnation.send_if_modified(|known| std::mem::replace(known, incarnation.to_owned()) != incarnation);
        });
    }

    pub fn incarnation(&self) -> String {
        self.incarnation.borrow().clone()
    }

    /// Stays so as long as the caller keeps a lock.
    fn is_of(&self, incarnation: &str) -> bool {
        *self.incarnation.borrow() == incarnation
    }

    /// Returns once the store has become another one.
    pub async fn another_store(&self) {
        let mut incarnation = self.incarnation.subscribe();
        // The sender is here, so neither wait ends for another reason.
        _ = incarnation.wait_for(|known| !known.is_empty()).await;
        _ = incarnation.changed().await;
    }

    /// These shards were listed as of that revision: where they are all that there is, that is how far the cache is. A
    /// shard that came meanwhile may be further back.
    pub fn advance_if_only(&self, incarnation: &str, shards: &[u32], revision: Revision) {
        self.write(|inner| {
            let all = inner.covered.iter().all(|covered| shards.contains(covered));
            if self.is_of(incarnation) && all && self.raise(revision) {
                inner.came_back(revision);
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

    /// The servers' clock, carried on by ours. A word that tells of an earlier time than ours was late on its way, or came
    /// from another server: ours follows slowly, for what is silent must not seem to have been so before it was.
    pub fn set_clock(&self, time: Time) {
        if time == Time::default() {
            return;
        }
        self.write(|inner| {
            let now = inner.now().unwrap_or(time);
            let late = (BACK_STEP..BACK_AT_ONCE).contains(&now.since(time));
            inner.clock = Some((if late { now.minus(BACK_STEP) } else { time }, Instant::now()));
        });
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

    /// Said by a store of that incarnation, which may be another one by now.
    pub fn note_write(&self, incarnation: &str, key: &Key, revision: Revision) {
        self.write(|inner| {
            if !self.is_of(incarnation) {
                return;
            }
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

    /// Replaces everything that `shards` and, if `global`, the global kinds have by a complete listing. Returns what that
    /// changed; none where it's of another store than the cache.
    pub fn replace(&self, listed: &Listed<'_>) -> Option<Vec<Changed>> {
        self.write(|inner| self.is_of(listed.incarnation).then(|| inner.replace(listed)))
    }

    /// Takes over a snapshot of the store that has begun: after this, its shards are covered; where it has the global kinds
    /// too, it's whole, and nothing else is. None where it's older than what was seen: taken for complete it would let a
    /// barrier pass that it doesn't reach.
    pub fn complete(&self, snapshot: &Listed<'_>) -> Option<Vec<Changed>> {
        self.write(|inner| {
            if snapshot.revision < self.revision() {
                return None;
            }
            if snapshot.global {
                inner.covered.clear();
            }
            inner.covered.extend(snapshot.shards);
            Some(inner.replace(snapshot))
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

    fn forget_all(&mut self) {
        let keys: Vec<Key> = self.world.items().map(|item| item.key.clone()).collect();
        keys.iter().for_each(|key| drop(self.remove(key)));
        self.covered.clear();
        self.floors.clear();
        self.graves.clear();
        self.last_writes.clear();
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

    fn came_back(&mut self, revision: Revision) {
        self.last_writes.retain(|_, written| *written > revision);
    }

    fn replace(&mut self, listed: &Listed<'_>) -> Vec<Changed> {
        let Listed { objects, shards, global, revision, .. } = *listed;
        let meant = |item: &Item| match shard_of(item) {
            GLOBAL => global,
            shard => shards.contains(&shard),
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
        let floors = shards.iter().copied().chain(global.then_some(GLOBAL));
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
