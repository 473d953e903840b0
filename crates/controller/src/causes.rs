//! What caused a look: the writes that woke its key since it was last looked at.
//!
//! Beside the queue and not in it: the queue knows nothing of causes, and no decision depends on them. Of what belongs to
//! no sampled trace only that is kept, a flag for a key: else a look would take a declaration that head sampling said no to
//! for a sweep's repair, and draw anew. A write that carries no trace at all (what a node reported by itself) is nobody's,
//! and not noted. Where nothing is noted it costs one load of an atomic.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use kinds::{Item, RECONCILERS};
use model::{Revision, Time};
use telemetry::trace::{Context, is_sampled};

use crate::{cache::Changed, queue::Work};

/// Keys whose causes are remembered, at about 100 bytes each. Beyond, every look passes for one by an unsampled write until
/// all that is remembered was used up: rather a gap in a trace than a trace that nobody asked for.
const KEYS_MAX: usize = 65_536;
/// Causes of one look that are linked; the others are counted.
pub const CAUSES_MAX: usize = 16;
/// What came with a snapshot and was written longer ago than that causes nothing any more.
const AGE_MAX: Duration = Duration::from_secs(60);

/// A sampled commit, as its change came in.
#[derive(Debug)]
pub struct Delivery {
    pub context: Context,
    pub revision: Revision,
    /// When the server stamped it and when it was here. None: it came with a snapshot or a list, any time later.
    pub took: Option<(SystemTime, SystemTime)>,
    pub changes: usize,
    /// Its span was made: each commit's is made once, by the first look that acts on it.
    pub told: AtomicBool,
}

/// Sampled writes that woke a key.
#[derive(Clone, Debug)]
pub struct Causes {
    /// When the first of them did. None: it was looked at under them before.
    pub since: Option<SystemTime>,
    /// Newest last.
    pub deliveries: Vec<Arc<Delivery>>,
    pub count: i64,
}

/// Why a key is looked at.
#[derive(Clone, Debug)]
pub enum Cause {
    /// Of all that woke it what was sampled counts.
    Sampled(Box<Causes>),
    Unsampled,
}

#[derive(Default)]
struct Known {
    keys: HashMap<Work, Cause>,
    /// There was no room for some.
    overflowed: bool,
}

#[derive(Default)]
pub struct Waiting {
    known: Mutex<Known>,
    /// As many keys, and one more where there was no room.
    count: AtomicUsize,
    /// Held while changes are in the cache whose causes aren't noted yet.
    noting: Mutex<()>,
}

/// How changes came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// The watch has just told of them.
    Live,
    /// With a list or a snapshot, at that time by the servers' clock.
    Listed(Option<Time>),
}

impl Waiting {
    fn with<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut known);
        known.overflowed &= !known.keys.is_empty();
        self.count.store(known.keys.len() + usize::from(known.overflowed), Relaxed);
        changed
    }

    /// To be held from before changes are in the cache until they are noted.
    pub fn noting(&self) -> MutexGuard<'_, ()> {
        self.noting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each of these changes woke those keys.
    pub fn note(&self, changed: &[Changed], woken: &[Vec<Work>], came: Came) {
        let mut sampled: HashMap<&str, (Delivery, Vec<Work>)> = HashMap::new();
        let mut unsampled: Vec<Work> = Vec::new();
        for ((before, after), works) in changed.iter().zip(woken) {
            // What is gone was let go by its last write.
            let Some(item) = after.as_ref().or(before.as_ref()).filter(|item| is_news(item, came)) else { continue };
            let works = works.iter().filter(|work| !is_own_echo(work, item)).cloned();
            let written = last_write(item);
            if !is_sampled(written) {
                unsampled.extend(works.filter(|_| !written.is_empty()));
                continue;
            }
            let Some(context) = Context::parse(written) else { continue };
            let (delivery, woken) = sampled.entry(written).or_insert_with(|| {
                let took = (came == Came::Live).then(|| (stamped(item), SystemTime::now()));
                (
                    Delivery { context, revision: item.revision, took, changes: 0, told: AtomicBool::new(false) },
                    Vec::new(),
                )
            });
            delivery.changes += 1;
            woken.extend(works);
        }
        if !sampled.is_empty() || !unsampled.is_empty() {
            self.with(|known| {
                sampled.into_values().for_each(|(delivery, woken)| known.note(delivery, woken));
                unsampled.into_iter().for_each(|work| known.add(work, Cause::Unsampled));
            });
        }
    }

    /// The key is being looked at.
    pub fn take(&self, work: &Work) -> Option<Cause> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.with(|known| known.keys.remove(work).or_else(|| known.overflowed.then_some(Cause::Unsampled)))
    }

    /// What came while it was being looked at: the look may have seen it already. The look that follows may act on it too.
    pub fn late(&self, work: &Work) -> Option<Cause> {
        drop(self.noting());
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.with(|known| known.keys.get(work).cloned())
    }

    /// The look came to nothing yet: what caused it causes the next one.
    pub fn put_back(&self, work: &Work, cause: Cause) {
        let cause = match cause {
            Cause::Sampled(causes) => Cause::Sampled(Box::new(Causes { since: None, ..*causes })),
            Cause::Unsampled => Cause::Unsampled,
        };
        self.with(|known| known.add(work.clone(), cause));
    }

    /// Nothing is this replica's any more.
    pub fn clear(&self) {
        self.with(|known| known.keys.clear());
    }
}

impl Known {
    fn note(&mut self, delivery: Delivery, mut woken: Vec<Work>) {
        woken.sort();
        woken.dedup();
        let delivery = Arc::new(delivery);
        for work in woken {
            let causes = Causes { since: Some(SystemTime::now()), deliveries: vec![delivery.clone()], count: 1 };
            self.add(work, Cause::Sampled(Box::new(causes)));
        }
    }

    fn add(&mut self, work: Work, cause: Cause) {
        let room = self.keys.len() < KEYS_MAX;
        match self.keys.get_mut(&work) {
            Some(known) => known.join(cause),
            None if room => drop(self.keys.insert(work, cause)),
            None => self.overflowed = true,
        }
    }
}

impl Cause {
    pub fn join(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Sampled(own), Self::Sampled(other)) => own.join(*other),
            (Self::Unsampled, other) => *self = other,
            (Self::Sampled(_), Self::Unsampled) => {}
        }
    }
}

impl Causes {
    fn join(&mut self, other: Self) {
        self.since = [self.since, other.since].into_iter().flatten().min();
        for delivery in other.deliveries {
            if self.deliveries.iter().any(|known| Arc::ptr_eq(known, &delivery)) {
                continue;
            }
            self.deliveries.push(delivery);
            self.count += 1;
        }
        self.deliveries.sort_by_key(|delivery| delivery.revision);
        let beyond = self.deliveries.len().saturating_sub(CAUSES_MAX);
        self.deliveries.drain(..beyond);
    }
}

/// The context of the item's last write; empty where it was in no trace.
pub fn last_write(item: &Item) -> &str {
    item.metadata().last_writer.as_ref().map_or("", |writer| writer.traceparent.as_str())
}

/// A key that serves many goes on with nobody's trace in particular because it was written in one.
fn is_own_echo(work: &Work, item: &Item) -> bool {
    work.key == item.key && RECONCILERS[work.reconciler].serves_many()
}

fn is_news(item: &Item, came: Came) -> bool {
    let written = item.metadata().updated_time.as_ref().map(Time::from).unwrap_or_default();
    match came {
        Came::Live => true,
        Came::Listed(now) => now.is_some_and(|now| now.since(written) < AGE_MAX),
    }
}

fn stamped(item: &Item) -> SystemTime {
    let time = item.metadata().updated_time.as_ref().map(Time::from).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests;
