//! The controller runtime: replicas that share the resources by claims and run the brain's reconcilers over them.
//!
//! ```text
//! watch -> informer (cache) -> queue -> worker: observe, plan, one step -> commit -> watch -> ...
//!             ^                  ^
//!             |                  sweep: everything again, on a jittered schedule
//!             member: session, claims, which shards to watch
//! ```
//!
//! Everything a replica knows can be lost. It never decides by itself who owns what: it tries, and the compare inside
//! the store's transaction decides. Read `worker.rs` first, then `claims.rs`.

pub mod cache;
mod causes;
pub mod claims;
mod config;
pub mod execute;
mod holdings;
mod informer;
mod member;
mod metrics;
mod queue;
pub mod ring;
mod stats;
mod sweep;
mod tenure;
#[cfg(test)]
mod testing;
mod trace;
mod watched;
mod worker;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::Rng;
use store::{Result, Store};
use telemetry::{metrics::Source, spell::Spell};
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::Instant,
};
use tracing::info;

pub use config::Config;
pub use metrics::FAMILIES;
pub use queue::{Lane, Queue, Work};
pub use stats::{Outcome, Stats};

use crate::{cache::Cache, holdings::Holdings};

/// A part of it panicked, and what that left undone nobody knows.
#[derive(Debug, thiserror::Error)]
#[error("a part of the controller panicked, which is a defect (its log says where); others take over what it owned")]
pub struct Broken(#[source] JoinError);

/// What the tasks of one replica share.
struct Shared {
    config: Config,
    store: Arc<dyn Store>,
    cache: Cache,
    queue: Queue,
    holdings: Holdings,
    /// Why keys are looked at, for traces alone.
    causes: causes::Waiting,
    /// Steps that never get through.
    stuck: Mutex<Spell>,
    stats: Arc<Stats>,
    /// The shards to watch; set by `member`, followed by `informer`.
    wanted: watch::Sender<store::ShardSet>,
    /// The shards that the open watch is asked for; set by `informer`.
    watched: watch::Sender<store::ShardSet>,
}

/// One replica.
pub struct Controller {
    shared: Arc<Shared>,
}

impl Controller {
    pub fn new(config: Config, store: Arc<dyn Store>) -> Self {
        let shared = Shared {
            cache: Cache::default(),
            queue: Queue::new(config.backoff_min, config.backoff_max),
            holdings: Holdings::default(),
            causes: causes::Waiting::default(),
            stuck: Mutex::default(),
            stats: Arc::default(),
            wanted: watch::Sender::new(Some(Arc::default())),
            watched: watch::Sender::new(Some(Arc::default())),
            config,
            store,
        };
        Self { shared: Arc::new(shared) }
    }

    pub fn stats(&self) -> Arc<Stats> {
        self.shared.stats.clone()
    }

    /// What it shows to Prometheus.
    pub fn metrics(&self) -> Arc<dyn Source> {
        Arc::new(metrics::Metrics(self.shared.clone()))
    }

    /// Whether it could act now on what it owns; if not, why.
    pub fn readiness(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || metrics::ready(&shared)
    }

    /// Runs until `shutdown` becomes true; then gives its claims away, as far as anyone takes them, and ends. An error means
    /// that it can't do its work any more, though it would go on renewing its session: it must not stay.
    pub async fn run(self, mut shutdown: watch::Receiver<bool>) -> Result<(), Broken> {
        let shared = self.shared;
        let cluster = tokio::select! {
            cluster = retry(&shared.config, || shared.store.cluster()) => cluster,
            () = member::asked(&mut shutdown) => return Ok(()),
        };
        info!(name = %shared.config.name, shards = cluster.shards, "controller started");
        let mut tasks = JoinSet::new();
        tasks.spawn(informer::run(shared.clone()));
        tasks.spawn(sweep::run(shared.clone()));
        for _ in 0..shared.config.workers {
            tasks.spawn(worker::run(shared.clone()));
        }
        // The member's end is the controller's: what it started is dropped with the set.
        tokio::select! {
            () = member::run(shared, cluster.shards, shutdown) => Ok(()),
            // None of them ends by itself.
            Some(Err(panicked)) = tasks.join_next() => Err(Broken(panicked)),
        }
    }
}

/// Tries until it works: nothing can be done before it does. With jitter: everybody who waits began at the same moment.
async fn retry<T, F: Future<Output = Result<T>>>(config: &Config, call: impl Fn() -> F) -> T {
    let (mut pause, mut spell) = (config.backoff_min, Spell::default());
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => {
                if let Some(times) = spell.failed(1, Instant::now()) {
                    tracing::warn!(%error, times, "the store is not reachable yet");
                }
            }
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(config.redial_max);
    }
}

/// Between half and all of it.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests;
