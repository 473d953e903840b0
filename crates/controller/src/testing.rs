//! A store for the tests of the runtime: it restarts, falls mute, or takes its time as it's told.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::v1;
use async_trait::async_trait;
use futures::StreamExt;
use model::{Key, Object, Revision};
use store::{
    ClaimChange, Cluster, CoordinationStream, Head, HistoryQuery, List, LogRecord, Memory, Page, Result, SessionOpen,
    Store, Transaction, WatchItem, WatchOptions, WatchStream,
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Until what must happen; far longer than it takes.
pub const LONG: Duration = Duration::from_secs(60);

/// A store whose sessions are kept by whoever runs it at the moment: as `Embedded`, whose sessions end with its process.
#[derive(Default)]
pub struct Restarting {
    inner: watch::Sender<Option<Arc<Memory>>>,
    opened: Mutex<Vec<SessionOpen>>,
    /// Nothing is heard of the cluster and its members: whoever asks waits.
    pub mute: AtomicBool,
    /// Claim changes are counted, and passed on only while this is so.
    pub grants: watch::Sender<bool>,
    pub asked: watch::Sender<u64>,
    /// Where somebody takes them, watches are answered by whoever that is.
    pub watches: Mutex<Option<mpsc::UnboundedSender<Opened>>>,
}

/// A watch as it was opened, and its other end.
pub struct Opened {
    pub options: WatchOptions,
    pub items: mpsc::UnboundedSender<Result<WatchItem>>,
}

pub fn memory() -> Arc<Memory> {
    memory_of("i")
}

pub fn memory_of(incarnation: &str) -> Arc<Memory> {
    Arc::new(Memory::new(Cluster { incarnation: incarnation.into(), shards: 2 }))
}

impl Restarting {
    pub fn new() -> Arc<Self> {
        let store = Self::default();
        store.inner.send_replace(Some(memory()));
        store.grants.send_replace(true);
        Arc::new(store)
    }

    pub fn now(&self) -> Arc<Memory> {
        self.inner.borrow().clone().expect("it runs")
    }

    /// Nothing is known of sessions any more. Clients attach theirs again at once, as `wire` does.
    pub async fn restart(&self) {
        self.become_another("i").await;
    }

    /// The same with a store that is empty, and of that incarnation.
    pub async fn become_another(&self, incarnation: &str) {
        let next = memory_of(incarnation);
        let opened = self.opened.lock().expect("nobody panics with it").clone();
        for open in opened {
            next.open_session(open).await.expect("it was never ended here");
        }
        self.inner.send_replace(Some(next));
    }

    async fn heard(&self) {
        if self.mute.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    pub fn break_streams(&self) {
        self.inner.send_modify(|_| {});
    }

    /// Every member as it is shown, as soon as that fits.
    pub async fn shows(&self, what: &str, fits: impl Fn(&[v1::Member]) -> bool) -> Vec<v1::Member> {
        self.shows_all(what, |state| fits(&state.members)).await.members.clone()
    }

    /// Members and claims, as soon as they fit.
    pub async fn shows_all(&self, what: &str, fits: impl Fn(&v1::Coordination) -> bool) -> Arc<v1::Coordination> {
        let shown = async {
            let mut states = self.now().coordination().await.expect("memory answers");
            loop {
                let state = states.next().await.expect("it never ends").expect("it never fails");
                if fits(&state) {
                    return state;
                }
            }
        };
        timeout(LONG, shown).await.unwrap_or_else(|_| panic!("not shown: {what}"))
    }
}

#[async_trait]
impl Store for Restarting {
    async fn cluster(&self) -> Result<Cluster> {
        self.heard().await;
        self.now().cluster().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.now().get(key).await
    }

    async fn list(&self, list: List) -> Result<Page> {
        self.now().list(list).await
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        if let Some(watches) = &*self.watches.lock().expect("nobody panics with it") {
            let (items, told) = mpsc::unbounded_channel();
            watches.send(Opened { options, items }).expect("somebody takes them");
            return Ok(UnboundedReceiverStream::new(told).boxed());
        }
        let mut inner = self.inner.subscribe();
        inner.mark_unchanged();
        let items = self.now().watch(options).await?;
        Ok(items.take_until(async move { _ = inner.changed().await }).boxed())
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        self.now().commit(transaction).await
    }

    async fn head(&self) -> Result<Head> {
        self.now().head().await
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        self.heard().await;
        let mut inner = self.inner.subscribe();
        inner.mark_unchanged();
        let states = self.now().coordination().await?;
        Ok(states.take_until(async move { _ = inner.changed().await }).boxed())
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.opened.lock().expect("nobody panics with it").push(open.clone());
        self.now().open_session(open).await
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.now().beat(session, report).await
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.now().end_session(session, attach).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        self.asked.send_modify(|asked| *asked += 1);
        _ = self.grants.subscribe().wait_for(|grants| *grants).await;
        self.now().change_claim(change).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.now().history(query).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.now().trim_history(up_to).await
    }
}
