//! Values that many threads record into at once, by atomic additions alone.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use tokio::time::Instant;

/// Upper bounds of buckets in seconds, from half a millisecond, below which a step of this cluster doesn't go, to two
/// minutes, after which a person has come to look.
pub const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Only ever grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Goes up and down, and not below zero.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Durations, counted by buckets.
#[derive(Debug)]
pub struct Histogram {
    /// One more than there are bounds: the last is for what is above all of them.
    counts: [AtomicU64; SECONDS.len() + 1],
    /// Enough for 584 years.
    nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; SECONDS.len() + 1], nanos: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = SECONDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Observes how long it lives.
    pub fn time(&self) -> Timer<'_> {
        Timer { histogram: self, start: Instant::now() }
    }

    /// The sum in seconds, and each upper bound with the count of its own bucket.
    pub fn read(&self) -> (f64, Vec<(f64, u64)>) {
        let bounds = SECONDS.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(&self.counts).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        (Duration::from_nanos(self.nanos.load(Relaxed)).as_secs_f64(), buckets)
    }
}

/// Observed when it's dropped, also where what is timed was given up.
pub struct Timer<'a> {
    histogram: &'a Histogram,
    start: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.histogram.observe(self.start.elapsed());
    }
}

/// Durations by one label, of which each bucket remembers a trace. Recording takes a lock for a moment: it's for what
/// happens once for a change that somebody declared, and for no hot path.
#[derive(Default)]
pub struct Exemplars(Mutex<HashMap<&'static str, WithTraces>>);

fn new() -> WithTraces {
    HistogramWithExemplars::new(SECONDS.iter().copied())
}

pub(super) type WithTraces = HistogramWithExemplars<[(&'static str, String); 1]>;

impl Exemplars {
    /// With these labels from the start: a series that begins with its first figure hides that one from rates.
    pub fn of(labels: impl IntoIterator<Item = &'static str>) -> Self {
        Self(Mutex::new(labels.into_iter().map(|label| (label, new())).collect()))
    }

    /// `trace_id`: in hex, where the trace was recorded.
    pub fn observe(&self, label: &'static str, duration: Duration, trace_id: Option<String>) {
        let trace = trace_id.map(|id| [("trace_id", id)]);
        let histogram = self.lock().entry(label).or_insert_with(new).clone();
        histogram.observe(duration.as_secs_f64(), trace, Some(SystemTime::now()));
    }

    pub(super) fn read(&self) -> Vec<(&'static str, WithTraces)> {
        let mut all: Vec<_> = self.lock().iter().map(|(label, histogram)| (*label, histogram.clone())).collect();
        all.sort_by_key(|(label, _)| *label);
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, WithTraces>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Exemplars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exemplars").finish_non_exhaustive()
    }
}
