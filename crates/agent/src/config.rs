//! Everything that can be set, with its default.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use telemetry::{spell::Spell, trace::Tracer};
use tokio::{sync::Semaphore, time::Instant};

use crate::plan::Backoff;

#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name, and the agent's.
    pub node: String,
    pub labels: BTreeMap<String, String>,
    /// How long the store takes the node to be alive without hearing from it.
    pub session_ttl: Duration,
    pub backoff: Backoff,
    /// Between two complete lists of what is assigned here, in the mean; half of it more or less by chance.
    pub sweep: Duration,
    /// The longest pause before a call is tried again: well under the session's TTL.
    pub redial_max: Duration,
    /// After which a call counts as lost.
    pub call_timeout: Duration,
    /// Instances that are started at the same time.
    pub starts_max: usize,
    pub tracer: Tracer,
    /// What agents of one process have in common.
    pub together: Arc<Together>,
}

/// Agents of one process must not ask a server for everything at once, nor say the same thing all together.
#[derive(Debug)]
pub struct Together {
    /// So many attach and register at a time; the others wait for their turn.
    pub attaching: Semaphore,
    interruptions: AtomicU64,
    interrupted: Mutex<Spell>,
    failed: Mutex<Failures>,
}

/// What is tried again and again while something is away.
#[derive(Debug, Default)]
struct Failures {
    reports: Spell,
    clearing: Spell,
}

impl Together {
    pub fn new(attaching_max: usize) -> Self {
        Self {
            attaching: Semaphore::new(attaching_max),
            interruptions: AtomicU64::new(0),
            interrupted: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// Counts one more; true: nobody is about to tell of it yet.
    pub fn interrupted(&self) -> bool {
        self.interruptions.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Those that weren't told of, where it's time to tell; from now on they are.
    pub fn take_interruptions(&self) -> Option<u64> {
        let interruptions = self.interruptions.swap(0, Ordering::Relaxed);
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).failed(interruptions, Instant::now())
    }

    /// A report failed. How many did since it was last told, where it's time to tell.
    pub fn report_failed(&self) -> Option<u64> {
        self.failures().reports.failed(1, Instant::now())
    }

    /// The same of the removal of releases.
    pub fn clearing_failed(&self) -> Option<u64> {
        self.failures().clearing.failed(1, Instant::now())
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Config {
    pub fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            labels: BTreeMap::new(),
            session_ttl: Duration::from_secs(5),
            backoff: Backoff::default(),
            sweep: Duration::from_secs(30),
            redial_max: Duration::from_secs(1),
            call_timeout: Duration::from_secs(5),
            starts_max: 8,
            tracer: Tracer::off(),
            together: Arc::new(Together::new(1)),
        }
    }
}
