//! What is to go wrong, and what did.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use model::{Key, Object, Revision};
use tokio::sync::watch;

use crate::{Change, Error, Group, Result, Transaction, WatchItem};

/// Told of the number of the commit, from 1.
type Before = Arc<dyn Fn(u64, &Transaction) -> BoxFuture<'static, ()> + Send + Sync>;
type After = Arc<dyn Fn(u64, &Result<Revision>) -> BoxFuture<'static, ()> + Send + Sync>;
type Loses = Arc<dyn Fn(&Change) -> bool + Send + Sync>;
type Alters = Arc<dyn Fn(&Object) -> Option<Bytes> + Send + Sync>;

/// A handle to the faults of one store; clones speak of the same.
#[derive(Clone, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    settings: Mutex<Settings>,
    counts: Mutex<Counts>,
    connection: watch::Sender<Connection>,
}

#[derive(Default)]
struct Settings {
    before: Option<Before>,
    after: Option<After>,
    refuse_next: u64,
    lose_next: u64,
    conflict_every: Option<u64>,
    loses: Option<Loses>,
    alters: Option<Alters>,
    duplicates: bool,
    without_bookmarks: bool,
    delay: Duration,
}

#[derive(Clone, Copy, Default)]
struct Connection {
    cut: bool,
    stalled: bool,
    broken: bool,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commits that were tried, whatever became of them.
    pub commits: u64,
    pub refused: u64,
    pub conflicts: u64,
    pub acknowledgements_lost: u64,
    pub changes_lost: u64,
    pub changes_altered: u64,
    pub groups_repeated: u64,
    pub bookmarks_lost: u64,
    /// Calls and streams that failed because the connection was cut.
    pub cut_off: u64,
}

impl Faults {
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything is well from now on. What was lost stays lost.
    pub fn heal(&self) {
        *self.settings() = Settings::default();
        self.shared.connection.send_replace(Connection::default());
    }

    pub fn counts(&self) -> Counts {
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Awaited before each commit is passed on. One that never resolves is a writer that died before; one that resolves
    /// late is a zombie's write.
    pub fn on_before_commit(&self, hook: impl Fn(u64, &Transaction) -> BoxFuture<'static, ()> + Send + Sync + 'static) {
        self.settings().before = Some(Arc::new(hook));
    }

    /// Awaited after each commit, before its answer. One that never resolves is a writer that died in between.
    pub fn on_after_commit(
        &self,
        hook: impl Fn(u64, &Result<Revision>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) {
        self.settings().after = Some(Arc::new(hook));
    }

    /// So many commits from now aren't passed on: `Unavailable`.
    pub fn refuse_commits(&self, count: u64) {
        self.settings().refuse_next = count;
    }

    /// Of so many commits that succeed from now the answer is lost: `OutcomeUnknown`.
    pub fn lose_acknowledgements(&self, count: u64) {
        self.settings().lose_next = count;
    }

    /// Every so-many-th commit isn't passed on but answered by a conflict on the first key it names.
    pub fn conflict_every(&self, nth: Option<u64>) {
        self.settings().conflict_every = nth.filter(|nth| *nth > 0);
    }

    /// Watches lose these changes. A group that loses all of its changes is lost itself.
    pub fn lose_changes(&self, loses: impl Fn(&Change) -> bool + Send + Sync + 'static) {
        self.settings().loses = Some(Arc::new(loses));
    }

    pub fn lose_all_changes(&self) {
        self.lose_changes(|_| true);
    }

    /// Watches lose bookmarks too, and with them the digests that would tell of other losses.
    pub fn lose_bookmarks(&self, loses: bool) {
        self.settings().without_bookmarks = loses;
    }

    /// Changes carry these bytes instead, where there are some.
    pub fn alter_changes(&self, alters: impl Fn(&Object) -> Option<Bytes> + Send + Sync + 'static) {
        self.settings().alters = Some(Arc::new(alters));
    }

    /// Watches say each group twice.
    pub fn repeat_groups(&self, repeats: bool) {
        self.settings().duplicates = repeats;
    }

    /// Watches hand out each item that much later.
    pub fn delay_watches(&self, delay: Duration) {
        self.settings().delay = delay;
    }

    /// Watches say nothing until they may go on; nothing is lost by it.
    pub fn stall_watches(&self, stalled: bool) {
        self.shared.connection.send_modify(|connection| connection.stalled = stalled);
    }

    /// Every call fails, and every open stream ends with an error.
    pub fn cut(&self, cut: bool) {
        self.shared.connection.send_modify(|connection| connection.cut = cut);
    }

    /// The store says that a part of it is gone.
    pub fn break_store(&self) {
        self.shared.connection.send_modify(|connection| connection.broken = true);
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.shared.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn cut_off(&self) -> Error {
        self.count(|counts| counts.cut_off += 1);
        Error::Unavailable("the connection was cut".into())
    }

    pub(super) fn reachable(&self) -> Result<()> {
        match self.shared.connection.borrow().cut {
            true => Err(self.cut_off()),
            false => Ok(()),
        }
    }

    /// What it resolves to, unless the connection is cut first.
    pub(super) async fn unless_cut<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let mut connection = self.shared.connection.subscribe();
        tokio::select! {
            biased;
            _ = connection.wait_for(|connection| connection.cut) => Err(self.cut_off()),
            resolved = future => Ok(resolved),
        }
    }

    pub(super) async fn broken(&self) -> String {
        let mut connection = self.shared.connection.subscribe();
        // It can't fail: the sender lives in `self`.
        let _ = connection.wait_for(|connection| connection.broken).await;
        "a part that was made to break".into()
    }

    /// Waits as long as watches are delayed or stalled.
    pub(super) async fn hold(&self) {
        let delay = self.settings().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut connection = self.shared.connection.subscribe();
        // It can't fail: the sender lives in `self`.
        let _ = connection.wait_for(|connection| !connection.stalled).await;
    }

    pub(super) fn attempt(&self) -> u64 {
        let mut counts = self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.commits += 1;
        counts.commits
    }

    pub(super) async fn before_commit(&self, number: u64, transaction: &Transaction) {
        let hook = self.settings().before.clone();
        if let Some(hook) = hook {
            hook(number, transaction).await;
        }
    }

    pub(super) async fn after_commit(&self, number: u64, outcome: &Result<Revision>) {
        let hook = self.settings().after.clone();
        if let Some(hook) = hook {
            hook(number, outcome).await;
        }
    }

    pub(super) fn refuse_commit(&self, number: u64, transaction: &Transaction) -> Result<()> {
        let mut settings = self.settings();
        if settings.refuse_next > 0 {
            settings.refuse_next -= 1;
            self.count(|counts| counts.refused += 1);
            return Err(Error::Unavailable("the store refused it for now".into()));
        }
        let named = transaction.expects.first().map(|e| e.key.clone());
        let named: Option<Key> = named.or_else(|| transaction.writes.first().map(|w| w.key()));
        match (settings.conflict_every, named) {
            (Some(nth), Some(key)) if number.is_multiple_of(nth) => {
                self.count(|counts| counts.conflicts += 1);
                Err(Error::conflict(&key, "somebody was faster"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn loses_acknowledgement(&self) -> bool {
        let mut settings = self.settings();
        let loses = settings.lose_next > 0;
        settings.lose_next -= u64::from(loses);
        self.count(|counts| counts.acknowledgements_lost += u64::from(loses));
        loses
    }

    /// What a watch says in place of that.
    pub(super) fn passed(&self, item: WatchItem) -> Vec<WatchItem> {
        let settings = self.settings();
        match item {
            WatchItem::Changes(group) => self.passed_group(&settings, group),
            WatchItem::Bookmark(_) if settings.without_bookmarks => {
                self.count(|counts| counts.bookmarks_lost += 1);
                Vec::new()
            }
            item => vec![item],
        }
    }

    fn passed_group(&self, settings: &Settings, mut group: Group) -> Vec<WatchItem> {
        let told = group.changes.len();
        if let Some(loses) = &settings.loses {
            group.changes.retain(|change| !loses(change));
        }
        let lost = told - group.changes.len();
        self.count(|counts| counts.changes_lost += lost as u64);
        if lost > 0 && group.changes.is_empty() {
            return Vec::new();
        }
        for change in &mut group.changes {
            if let (Some(alters), Change::Put(object)) = (&settings.alters, change)
                && let Some(bytes) = alters(object)
            {
                object.bytes = bytes;
                self.count(|counts| counts.changes_altered += 1);
            }
        }
        if !settings.duplicates {
            return vec![WatchItem::Changes(group)];
        }
        self.count(|counts| counts.groups_repeated += 1);
        vec![WatchItem::Changes(group.clone()), WatchItem::Changes(group)]
    }
}
