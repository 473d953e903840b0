//! Which keys to look at again. Dedupes; holds no knowledge of what changed; losing an entry costs time, never truth.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::Key;
use rand::Rng;
use telemetry::metrics::Histogram;
use tokio::{sync::Notify, time::Instant};

/// Change-lane pops in a row before the sweep lane gets one: sweeps are never starved.
const CHANGES_IN_A_ROW_MAX: u32 = 16;

/// A reconciler (by its place in `kinds::RECONCILERS`) and a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Work {
    pub reconciler: usize,
    pub key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Change,
    Sweep,
}

impl Lane {
    /// A label of metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Sweep => "sweep",
        }
    }
}

/// How long keys waited, by lane.
#[derive(Debug, Default)]
pub struct Waits {
    changes: Histogram,
    sweeps: Histogram,
}

impl Waits {
    pub fn of(&self, lane: Lane) -> &Histogram {
        match lane {
            Lane::Change => &self.changes,
            Lane::Sweep => &self.sweeps,
        }
    }
}

/// How a look ended, as far as the queue cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Nothing before a change or the next sweep.
    Forget,
    /// Again after this, unless something changes first.
    After(Duration),
    /// Again at once.
    Again,
    /// Failed: again after a pause that doubles each time.
    Backoff,
}

#[derive(Debug, Default)]
struct Entry {
    /// In one of the lanes.
    queued: bool,
    in_work: bool,
    /// Asked for while in work.
    again: Option<Lane>,
    failures: u32,
    /// The key in `delayed`, where there is one.
    due: Option<(Instant, u64)>,
}

#[derive(Debug, Default)]
struct Inner {
    changes: VecDeque<(Work, Instant)>,
    sweeps: VecDeque<(Work, Instant)>,
    changes_in_a_row: u32,
    entries: HashMap<Work, Entry>,
    /// Ordered by time; the number makes equal times distinct.
    delayed: BTreeMap<(Instant, u64), Work>,
    next_number: u64,
}

/// See the module. Any number of producers and workers.
pub struct Queue {
    inner: Mutex<Inner>,
    changed: Notify,
    pub waits: Waits,
    backoff_min: Duration,
    backoff_max: Duration,
}

impl Queue {
    pub fn new(backoff_min: Duration, backoff_max: Duration) -> Self {
        Self { inner: Mutex::default(), changed: Notify::new(), waits: Waits::default(), backoff_min, backoff_max }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics halfway through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, work: Work, lane: Lane) {
        if self.lock().add(work, lane) {
            self.changed.notify_one();
        }
    }

    /// Waits for the next key; it's in work until `done`. Also how long it waited.
    pub async fn pop(&self) -> (Work, Duration) {
        loop {
            let due = {
                let mut inner = self.lock();
                inner.wake_due(Instant::now());
                if let Some((work, since, lane)) = inner.take() {
                    if !inner.is_idle() {
                        self.changed.notify_one();
                    }
                    drop(inner);
                    let waited = since.elapsed();
                    self.waits.of(lane).observe(waited);
                    return (work, waited);
                }
                inner.delayed.keys().next().map(|(at, _)| *at)
            };
            match due {
                Some(at) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    pub fn done(&self, work: &Work, done: Done) {
        let mut inner = self.lock();
        let now = Instant::now();
        let Some(entry) = inner.entries.get_mut(work) else { return };
        entry.in_work = false;
        entry.failures = if done == Done::Backoff { entry.failures.saturating_add(1) } else { 0 };
        let again = entry.again.take();
        let failures = entry.failures;
        match (again, done) {
            (Some(lane), _) => _ = inner.add(work.clone(), lane),
            (None, Done::Again) => _ = inner.add(work.clone(), Lane::Change),
            (None, Done::After(pause)) => inner.delay(work, now + pause),
            (None, Done::Backoff) => inner.delay(work, now + self.backoff(failures)),
            (None, Done::Forget) => _ = inner.entries.remove(work),
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Exponential, with full jitter: anything up to min * 2^(n-1), capped.
    fn backoff(&self, failures: u32) -> Duration {
        let ceiling = self.backoff_min.saturating_mul(1 << (failures.saturating_sub(1)).min(20)).min(self.backoff_max);
        ceiling.mul_f64(rand::rng().random_range(0.1..=1.0))
    }

    /// Forgets what `keep` refuses, unless it's in work.
    pub fn retain(&self, keep: impl Fn(&Work) -> bool) {
        let mut inner = self.lock();
        inner.changes.retain(|(work, _)| keep(work));
        inner.sweeps.retain(|(work, _)| keep(work));
        inner.delayed.retain(|_, work| keep(work));
        inner.entries.retain(|work, entry| entry.in_work || keep(work));
    }

    /// Waiting keys, those that wait for a time left out.
    pub fn depths(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.changes.len(), inner.sweeps.len())
    }

    /// Keys that wait in a lane since before that.
    pub fn waiting_since(&self, before: Instant) -> Vec<Key> {
        let inner = self.lock();
        let waiting = inner.changes.iter().chain(&inner.sweeps);
        waiting.filter(|(_, since)| *since < before).map(|(work, _)| work.key.clone()).collect()
    }

    /// Every waiting key, for counting them by shard.
    pub fn waiting(&self) -> Vec<Key> {
        let inner = self.lock();
        inner.changes.iter().chain(&inner.sweeps).map(|(work, _)| work.key.clone()).collect()
    }
}

impl Inner {
    /// Whether it was put into a lane.
    fn add(&mut self, work: Work, lane: Lane) -> bool {
        let entry = self.entries.entry(work.clone()).or_default();
        if entry.in_work {
            entry.again = Some(if entry.again == Some(Lane::Change) { Lane::Change } else { lane });
            return false;
        }
        if let Some(due) = entry.due.take() {
            self.delayed.remove(&due);
        }
        if std::mem::replace(&mut entry.queued, true) {
            if lane == Lane::Change {
                self.promote(&work);
            }
            return false;
        }
        let now = Instant::now();
        match lane {
            Lane::Change => self.changes.push_back((work, now)),
            Lane::Sweep => self.sweeps.push_back((work, now)),
        }
        true
    }

    /// A change came for what waits in the sweep lane. Only short lanes are searched: a long one is a sweep's burst, and
    /// its turn comes all the same.
    fn promote(&mut self, work: &Work) {
        const SEARCHED_MAX: usize = 64;
        if let Some(at) = self.sweeps.iter().take(SEARCHED_MAX).position(|(w, _)| w == work)
            && let Some(entry) = self.sweeps.remove(at)
        {
            self.changes.push_back(entry);
        }
    }

    fn take(&mut self) -> Option<(Work, Instant, Lane)> {
        let sweep_first = self.changes_in_a_row >= CHANGES_IN_A_ROW_MAX && !self.sweeps.is_empty();
        let popped = if sweep_first { None } else { self.changes.pop_front() };
        let from_changes = popped.is_some();
        let (work, since) = popped.or_else(|| self.sweeps.pop_front())?;
        self.changes_in_a_row = if from_changes { self.changes_in_a_row + 1 } else { 0 };
        let entry = self.entries.entry(work.clone()).or_default();
        entry.queued = false;
        entry.in_work = true;
        Some((work, since, if from_changes { Lane::Change } else { Lane::Sweep }))
    }

    fn is_idle(&self) -> bool {
        self.changes.is_empty() && self.sweeps.is_empty()
    }

    fn delay(&mut self, work: &Work, at: Instant) {
        self.next_number += 1;
        let due = (at, self.next_number);
        let entry = self.entries.entry(work.clone()).or_default();
        if let Some(before) = entry.due.replace(due) {
            self.delayed.remove(&before);
        }
        self.delayed.insert(due, work.clone());
    }

    fn wake_due(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry().filter(|e| e.key().0 <= now) {
            let work = first.remove();
            if let Some(entry) = self.entries.get_mut(&work) {
                entry.due = None;
            }
            self.add(work, Lane::Change);
        }
    }
}

#[cfg(test)]
mod tests;
