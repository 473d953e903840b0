//! How long it takes from a declaration until it is seen to be true. Each is measured once, by the server that admitted
//! it: it notes what it is about to commit, and hears by its own watch, as everybody does, when that is true.
//!
//! It only measures. What is noted goes with the server; then there is one figure less.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use kinds::{RECONCILERS, instance};
use model::{Key, Revision};
use store::{Error, Result};
use telemetry::metrics::Exemplars;
use tokio::time::Instant;

use crate::{
    admit::entry::Done,
    cache::Cache,
    record::Record,
    ring::{Kept, KeptChange},
    tally::Ready,
};

/// Declarations that are waited for at once. What comes beyond isn't measured.
const WAITING_MAX: usize = 100_000;

#[derive(Debug)]
pub struct Convergence {
    waiting: Mutex<HashMap<Key, Declared>>,
    /// How many they are, so that whoever passes by with nothing to wait for needn't lock.
    count: AtomicUsize,
    pub durations: Exemplars,
}

#[derive(Debug)]
struct Declared {
    generation: i64,
    since: Instant,
    trace_id: Option<String>,
}

impl Default for Convergence {
    fn default() -> Self {
        let durations = Exemplars::of(measured());
        Self { waiting: Mutex::default(), count: AtomicUsize::default(), durations }
    }
}

/// The kinds of which somebody declares something that somebody else makes true.
fn measured() -> impl Iterator<Item = &'static str> {
    let declared = |kind: &&str| kinds::kind(kind).is_some_and(|kind| kind.info().declared);
    RECONCILERS.iter().map(|reconciler| reconciler.kind()).filter(declared).chain([instance::KIND])
}

impl Convergence {
    /// Notes what of this declares something, before it is committed, as of that cache. Returns what to forget where the
    /// commit is refused.
    pub fn declare(&self, cache: &Cache, done: &[Done]) -> Vec<Key> {
        let now = Instant::now();
        let declares = |one: &&Done| declares(one, cache.get(&one.key).map(AsRef::as_ref));
        let declared: Vec<(Key, Declared)> = done.iter().filter(declares).map(|one| declared(one, now)).collect();
        if declared.is_empty() {
            return Vec::new();
        }
        let keys = declared.iter().map(|(key, _)| key.clone()).collect();
        let mut waiting = self.lock();
        if waiting.len() + declared.len() <= WAITING_MAX {
            waiting.extend(declared);
        }
        self.count.store(waiting.len(), Relaxed);
        keys
    }

    /// What became of the commit. An unknown outcome may still turn out well.
    pub fn committed<T>(&self, declared: &[Key], result: &Result<T>) {
        if declared.is_empty() || matches!(result, Ok(_) | Err(Error::OutcomeUnknown(_))) {
            return;
        }
        let mut waiting = self.lock();
        declared.iter().for_each(|key| _ = waiting.remove(key));
        self.count.store(waiting.len(), Relaxed);
    }

    /// The cache was replaced as a whole: what came true meanwhile did so at a time that nobody knows.
    pub fn clear(&self) {
        self.lock().clear();
        self.count.store(0, Relaxed);
    }

    /// The watch brought this.
    pub fn see(&self, kept: &Kept) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mut waiting = self.lock();
        for change in &kept.changes {
            let Some(declared) = waiting.get(&change.key) else { continue };
            match standing(change, declared.generation) {
                Standing::NotYet => continue,
                Standing::True => self.observe(&change.key, declared),
                Standing::Past => {}
            }
            waiting.remove(&change.key);
        }
        self.count.store(waiting.len(), Relaxed);
    }

    fn observe(&self, key: &Key, declared: &Declared) {
        if let Some(kind) = kinds::kind(key.kind()) {
            self.durations.observe(kind.info().kind, declared.since.elapsed(), declared.trace_id.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Declared>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something new, or a new generation of what users declare, of a kind that is measured.
fn declares(done: &Done, before: Option<&Record>) -> bool {
    let kind = done.key.kind();
    let Some(after) = done.after.as_ref().and_then(|after| after.metadata.as_ref()) else { return false };
    let new = match before.filter(|_| done.replaced != Revision::ZERO) {
        None => done.replaced == Revision::ZERO,
        // Others' specs are completed on the way, as an instance's by its placement.
        Some(before) => after.generation > before.generation && kinds::kind(kind).is_some_and(|k| k.info().declared),
    };
    new && measured().any(|measured| measured == kind)
}

fn declared(done: &Done, since: Instant) -> (Key, Declared) {
    let metadata = done.after.as_ref().and_then(|after| after.metadata.clone()).unwrap_or_default();
    let trace_id = recorded(&metadata.traceparent).map(str::to_owned);
    (done.key.clone(), Declared { generation: metadata.generation, since, trace_id })
}

/// The trace's id, where it's recorded: another leads nowhere. See <https://www.w3.org/TR/trace-context/>.
fn recorded(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.split('-').skip(1);
    let (trace_id, _parent, flags) = (parts.next()?, parts.next()?, parts.next()?);
    let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    (sampled && trace_id.len() == 32).then_some(trace_id)
}

enum Standing {
    NotYet,
    True,
    /// It's gone, or going, or another generation was declared.
    Past,
}

fn standing(change: &KeptChange, generation: i64) -> Standing {
    let Some(record) = change.after.as_ref().filter(|after| !after.deleting) else { return Standing::Past };
    let replaced = record.generation > generation && kinds::kind(change.key.kind()).is_some_and(|k| k.info().declared);
    if replaced {
        return Standing::Past;
    }
    match record.generation >= generation && record.standing.ready == Ready::True {
        true => Standing::True,
        false => Standing::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::recorded;

    #[test]
    fn only_a_recorded_trace_is_named() {
        let parent = |flags: &str| format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        assert_eq!(recorded(&parent("01")), Some("0af7651916cd43dd8448eb211c80319c"));
        assert_eq!(recorded(&parent("03")), Some("0af7651916cd43dd8448eb211c80319c"));
        assert_eq!(recorded(&parent("00")), None);
        assert_eq!(recorded(""), None);
        assert_eq!(recorded("00-short-b7ad6b7169203331-01"), None);
    }
}
