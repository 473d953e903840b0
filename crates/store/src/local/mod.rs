//! A store in this process: the state machine behind the trait's async methods. Memory and embedded differ only in
//! their engine, which decides when what was done may be seen.

mod expiry;
mod published;
mod watch;

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use api::v1;
use async_trait::async_trait;
use model::{Key, Object, Revision};
use tokio::task::JoinSet;

pub(crate) use published::{Published, closed};

use crate::{
    ClaimChange, Cluster, CoordinationStream, HISTORY_MAX, Head, HistoryQuery, List, LogRecord, Page, Prepared, Result,
    SessionOpen, Store, Transaction, WatchOptions, WatchStream,
    state::{Draft, Instant},
};

/// Runs operations one after the other, and publishes what they did.
pub trait Engine: Send + Sync + 'static {
    /// Applies `operation`, of which about so many bytes are to be kept, and answers once its outcome may be seen.
    fn execute<T, F>(&self, bytes: usize, operation: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: FnOnce(&mut Draft<'_>) -> Result<T> + Send + 'static;

    /// Entries of commits up to that one, with a limit within bounds.
    fn history(&self, query: HistoryQuery, up_to: Revision) -> impl Future<Output = Result<Vec<LogRecord>>> + Send;

    fn trim_history(&self, up_to: Revision) -> impl Future<Output = Result<usize>> + Send;
}

pub struct Local<E: Engine> {
    pub(crate) published: Arc<Published>,
    pub(crate) engine: Arc<E>,
    /// Ends sessions whose time is up; started with the first one, aborted with the store.
    expiry: Mutex<JoinSet<()>>,
    opened: Arc<tokio::sync::Notify>,
}

impl<E: Engine> Local<E> {
    pub(crate) fn over(published: Arc<Published>, engine: E) -> Self {
        let engine = Arc::new(engine);
        Self { published, engine, expiry: Mutex::new(JoinSet::new()), opened: Arc::default() }
    }

    /// Forgets which changes came before now: watches that resume from there start with a snapshot.
    pub fn compact(&self) {
        self.published.compact();
    }

    /// For a store that is being closed: sessions end with it.
    pub(crate) fn end_no_more_sessions(&self) {
        self.expiry.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    fn watch_deadlines(&self) {
        let mut expiry = self.expiry.lock().unwrap_or_else(PoisonError::into_inner);
        if expiry.is_empty() {
            expiry.spawn(expiry::run(self.published.clone(), Arc::downgrade(&self.engine), self.opened.clone()));
        }
        self.opened.notify_one();
    }
}

impl<E: Engine> Drop for Local<E> {
    fn drop(&mut self) {
        self.published.close();
    }
}

#[async_trait]
impl<E: Engine> Store for Local<E> {
    async fn cluster(&self) -> Result<Cluster> {
        Ok(self.published.read().cluster().clone())
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        Ok(self.published.read().get(key))
    }

    async fn list(&self, list: List) -> Result<Page> {
        self.published.read().list(&list)
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        Ok(watch::watch(&self.published, options))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        let prepared = Prepared::new(transaction);
        self.engine.execute(prepared.bytes, move |draft| draft.commit(prepared)).await
    }

    /// Whoever can't be written to must not pass for a store that is there.
    async fn head(&self) -> Result<Head> {
        match self.published.is_closed() {
            true => Err(closed()),
            false => Ok(self.published.read().head()),
        }
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        Ok(self.published.coordination_stream())
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        let now = Instant::now();
        let attach = self.engine.execute(0, move |draft| draft.open_session(open, now)).await?;
        self.watch_deadlines();
        Ok(attach)
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.published.beat(session, Instant::now(), report)
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        let session = session.to_owned();
        self.engine.execute(0, move |draft| Ok(draft.end_session(&session, attach))).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        self.engine.execute(0, move |draft| draft.change_claim(change)).await
    }

    async fn history(&self, mut query: HistoryQuery) -> Result<Vec<LogRecord>> {
        if query.limit == 0 || query.limit > HISTORY_MAX {
            query.limit = HISTORY_MAX;
        }
        let head = self.published.read().head().revision;
        let up_to = query.up_to.map_or(head, |up_to| up_to.min(head));
        self.engine.history(query, up_to).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.engine.trim_history(up_to).await
    }

    async fn broken(&self) -> String {
        self.published.broken().await;
        "writer".into()
    }
}
