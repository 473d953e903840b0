//! What the server's tasks and watchers share: the cache, how far it is, and whether it may be trusted.
//!
//! Locks are held for moments and never over an await. Whoever waits does so on `progress`.

mod wakes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use model::{Object, Revision, Time};
use store::{Error, Group, Head, Result, Store, Transaction};
use telemetry::metrics::Histogram;
use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant, timeout_at},
};
use tracing::{error, info, warn};

use crate::{
    Config, Stamps,
    cache::{Cache, Healed, Lie},
    confirm::{Confirm, Finding},
    convergence::Convergence,
    counters::Counters,
    folds::Folds,
    refused::Refused,
    timed::{Timed, Times},
};
pub use wakes::{Bell, Place, Wakes};

/// How long a caller waits until the cache has reached a revision.
pub const REACH_MAX: Duration = Duration::from_secs(2);

/// Whether this server should be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// The first snapshot isn't complete.
    #[default]
    Starting,
    Ready,
    /// The store couldn't be confirmed for a while.
    Stale,
    /// The store is behind what was seen of it.
    RolledBack,
    /// The server is about to end.
    Draining,
    /// A part of the server or of its store panicked: what it answers may be old for ever. Or the store became one of another
    /// number of shards, and it would put resources where nobody looks.
    Broken,
}

impl Readiness {
    /// The reason that ends a watch.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Starting => "STARTING",
            Self::Ready => "READY",
            Self::Stale => "STORE_STALE",
            Self::RolledBack => "STORE_ROLLED_BACK",
            Self::Draining => "DRAINING",
            Self::Broken => "SERVER_BROKEN",
        }
    }

    pub fn message(self) -> &'static str {
        match self {
            Self::Starting => "the first snapshot of the store isn't complete yet",
            Self::Ready => "",
            Self::Stale => "the store can't be confirmed; go to another server",
            Self::RolledBack => "the store is behind what was seen of it: it was restored without `driftless restore`",
            Self::Draining => "this server is ending; go to another one",
            Self::Broken => {
                "a part of this server or of its store panicked, which is a defect, or the store has another number of shards \
                 now (its log says which); it must be started anew"
            }
        }
    }
}

/// What readiness follows from.
#[derive(Debug, Default)]
struct Health {
    filled: bool,
    stale: bool,
    rolled_back: bool,
    /// A client proved a restore; only another incarnation heals that.
    rollback_proved: bool,
    draining: bool,
    broken: bool,
}

impl Health {
    fn readiness(&self) -> Readiness {
        match self {
            Self { broken: true, .. } => Readiness::Broken,
            Self { draining: true, .. } => Readiness::Draining,
            Self { rolled_back: true, .. } | Self { rollback_proved: true, .. } => Readiness::RolledBack,
            Self { filled: false, .. } => Readiness::Starting,
            Self { stale: true, .. } => Readiness::Stale,
            _ => Readiness::Ready,
        }
    }
}

pub struct Shared {
    pub backend: Arc<dyn Store>,
    pub config: Config,
    pub counters: Counters,
    /// Of the backend's operations.
    pub times: Arc<Times>,
    pub convergence: Convergence,
    pub watch_lag: Histogram,
    /// How long claims were nobody's.
    pub takeovers: Histogram,
    /// Machines that didn't get a node's name.
    pub refused: Refused,
    cache: RwLock<Cache>,
    confirm: Mutex<Confirm>,
    health: Mutex<Health>,
    folds: Mutex<Folds>,
    /// Tells how far the cache is; everybody is woken too when the readiness changes.
    pub wakes: Wakes,
    readiness: watch::Sender<Readiness>,
    /// Asks the feed to list anew.
    pub relist: Notify,
}

/// A read of the head that is under way, and what was known before: the head can't be older.
pub struct Reading {
    began: Instant,
    incarnation: String,
    revision: Revision,
}

impl Reading {
    pub fn begin(shared: &Shared) -> Self {
        let cache = shared.cache();
        Self { began: Instant::now(), incarnation: cache.incarnation.clone(), revision: cache.revision }
    }
}

impl Shared {
    pub fn new(config: Config, backend: Arc<dyn Store>) -> Self {
        let cache = RwLock::new(Cache::new(config.ring_groups_max));
        let times = Arc::<Times>::default();
        let backend: Arc<dyn Store> = Arc::new(Timed { backend, times: times.clone() });
        Self {
            backend,
            config,
            counters: Counters::default(),
            times,
            convergence: Convergence::default(),
            watch_lag: Histogram::default(),
            takeovers: Histogram::default(),
            refused: Refused::default(),
            cache,
            confirm: Mutex::new(Confirm::new(Instant::now())),
            health: Mutex::default(),
            folds: Mutex::default(),
            wakes: Wakes::new(),
            readiness: watch::Sender::new(Readiness::Starting),
            relist: Notify::new(),
        }
    }

    pub fn stamps(&self) -> &dyn Stamps {
        self.config.stamps.as_ref()
    }

    pub fn now(&self) -> Time {
        self.stamps().now()
    }

    pub fn folds(&self) -> MutexGuard<'_, Folds> {
        self.folds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cache(&self) -> RwLockReadGuard<'_, Cache> {
        self.cache.read().expect("nothing panics while it holds the cache")
    }

    fn cache_mut(&self) -> RwLockWriteGuard<'_, Cache> {
        self.cache.write().expect("nothing panics while it holds the cache")
    }

    /// Takes over groups of the backend's watch, then wakes whoever they concern.
    pub fn apply(&self, groups: Vec<Group>) -> Result<(), Lie> {
        let mut cache = self.cache_mut();
        let before = cache.ring.end();
        let applied = groups.into_iter().try_for_each(|group| cache.apply(group).map(drop));
        let revision = cache.revision;
        let news: Option<Vec<_>> = cache.ring.since(before).map(|groups| groups.cloned().collect());
        drop(cache);
        news.iter().flatten().for_each(|group| self.convergence.see(group));
        match news {
            Some(news) => self.wakes.moved(revision, news.iter().map(AsRef::as_ref)),
            None => self.wakes.all(revision),
        }
        applied
    }

    /// Replaces everything by a snapshot, then wakes everybody.
    pub fn install(&self, incarnation: &str, revision: Revision, objects: &[Object]) -> Healed {
        let healed = self.cache_mut().install(incarnation, revision, objects);
        self.convergence.clear();
        self.wakes.all(revision);
        healed
    }

    /// Reads and keeps revisions for lists under way, in one moment. The records stay as they are.
    pub fn with_pins<T>(&self, read: impl FnOnce(&mut Cache, Instant) -> T) -> T {
        read(&mut self.cache_mut(), Instant::now())
    }

    pub fn expire_pins(&self) {
        if !self.cache().pins.is_empty() {
            self.cache_mut().pins.expire(Instant::now());
        }
    }

    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Commits, as long as the store can be confirmed. One that is away is not waited for any longer: whoever asked can go
    /// on through another server.
    pub async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        let mut readiness = self.readiness();
        tokio::select! {
            biased;
            result = self.backend.commit(transaction) => result,
            // The sender is here, so this ends for one reason alone.
            _ = readiness.wait_for(|readiness| *readiness == Readiness::Stale) => {
                Err(Error::OutcomeUnknown(format!("{}: it was sent before", Readiness::Stale.message())))
            }
        }
    }

    pub fn ready(&self) -> Result<()> {
        match *self.readiness.borrow() {
            Readiness::Ready => Ok(()),
            other => Err(Error::Unavailable(format!("{}: {}", other.reason(), other.message()))),
        }
    }

    pub fn current_readiness(&self) -> Readiness {
        *self.readiness.borrow()
    }

    fn confirm(&self) -> MutexGuard<'_, Confirm> {
        self.confirm.lock().expect("nothing panics while it holds this")
    }

    fn set_health(&self, change: impl FnOnce(&mut Health)) {
        let mut health = self.health.lock().expect("nothing panics while it holds this");
        change(&mut health);
        let next = health.readiness();
        let changed = self.readiness.send_if_modified(|now| std::mem::replace(now, next) != next);
        if changed {
            match next {
                Readiness::RolledBack | Readiness::Broken => error!(server = %self.config.name, "{}", next.message()),
                Readiness::Stale => warn!(server = %self.config.name, "{}", next.message()),
                other => info!(server = %self.config.name, readiness = other.reason(), "readiness changed"),
            }
            self.wakes.everybody();
        }
    }

    /// The snapshot of that incarnation is complete.
    pub fn filled(&self, another_incarnation: bool) {
        if another_incarnation {
            self.confirm().restart(Instant::now());
        }
        self.set_health(|health| {
            health.filled = true;
            if another_incarnation {
                (health.rolled_back, health.rollback_proved) = (false, false);
            }
        });
    }

    pub fn drain(&self) {
        self.set_health(|health| health.draining = true);
    }

    /// A part of it is gone, and can't be brought back: nobody knows what it left undone.
    pub fn broke(&self) {
        self.set_health(|health| health.broken = true);
    }

    pub fn is_draining(&self) -> bool {
        self.health.lock().expect("nothing panics while it holds this").draining
    }

    /// A client holds a token of this incarnation from beyond its head.
    pub fn rollback_proved(&self) {
        self.set_health(|health| health.rollback_proved = true);
    }

    /// A head was read.
    pub fn head_read(&self, reading: &Reading, head: Head) {
        let (cache, same) = {
            let cache = self.cache();
            (cache.revision, cache.incarnation == reading.incarnation)
        };
        // What another store had got to says nothing of this one.
        let known = if same { reading.revision } else { Revision::ZERO };
        self.confirm().head((reading.began, known), Instant::now(), head, cache);
        if let Err(lie) = self.compare_head(head) {
            self.doubt(&lie);
        }
        self.tick();
    }

    fn compare_head(&self, head: Head) -> Result<(), Lie> {
        if self.cache().knows(head) {
            return Ok(());
        }
        self.cache_mut().compare_head(head)
    }

    /// The watch said what can't be.
    pub fn doubt(&self, lie: &Lie) {
        warn!(server = %self.config.name, %lie, "the store's watch can't be trusted; listing anew");
        self.counters.head_gaps.add(1);
        self.relist.notify_one();
    }

    /// Looks at the time: is the watch still alive, is the store?
    pub fn tick(&self) {
        let now = Instant::now();
        let cache = self.cache().revision;
        let mut confirm = self.confirm();
        let finding = confirm.tick(now, cache);
        let (stale, rolled_back) = (confirm.stale(now), confirm.rolled_back());
        drop(confirm);
        if finding == Finding::Stalled && self.current_readiness() != Readiness::Starting {
            warn!(server = %self.config.name, "the store's watch stalls behind its head; listing anew");
            self.counters.stalls.add(1);
            self.relist.notify_one();
        }
        self.set_health(|health| (health.stale, health.rolled_back) = (stale, rolled_back));
    }

    /// Waits until the cache has reached that revision.
    pub async fn reached(&self, revision: Revision) -> Result<()> {
        if self.cache().revision >= revision {
            return Ok(());
        }
        let mut progress = self.wakes.progress();
        let deadline = Instant::now() + REACH_MAX;
        match timeout_at(deadline, progress.wait_for(|now| *now >= revision)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Unavailable(format!("revision {revision} didn't arrive in {REACH_MAX:?}"))),
        }
    }
}
