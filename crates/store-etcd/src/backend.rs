//! The store itself: what its parts share, and the trait, which hands each call to its part.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use model::{Key, Object, Revision};
use store::{
    ClaimChange, Cluster, CoordinationStream, Error, Head, HistoryQuery, List, LogRecord, Page, Result, SessionOpen,
    Store, Transaction, WatchOptions, WatchStream,
};
use tokio::sync::watch;

use crate::{
    Counters, Options, OptionsError, commit,
    layout::{Layout, read_cluster, write_cluster},
    lease::Ever,
    parts::Parts,
    pool::Pool,
    probe::{self, Seen},
    uids::Uids,
    upkeep::Space,
};

/// A store on etcd. Clones share its connections.
#[derive(Clone)]
pub struct EtcdStore {
    pub(crate) inner: Arc<Inner>,
}

pub struct Inner {
    pub options: Options,
    pub layout: Layout,
    pub pool: Pool,
    pub counters: Counters,
    pub uids: Arc<Uids>,
    pub space: Space,
    /// What the probe last saw.
    pub seen: watch::Receiver<Seen>,
    pub parts: Parts,
    record: Mutex<Option<Record>>,
    pub ever: Mutex<Ever>,
}

/// The cluster's record, and its bytes to compare with.
#[derive(Clone, Debug)]
pub struct Record {
    pub cluster: Cluster,
    pub value: Vec<u8>,
}

impl EtcdStore {
    /// Connects when it is first used. Needs a tokio runtime.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        let (sender, seen) = watch::channel(Seen::default());
        let inner = Arc::new(Inner::new(options, seen)?);
        inner.parts.spawn("probe", probe::run(Arc::downgrade(&inner), sender));
        Ok(Self { inner })
    }
}

impl Inner {
    pub fn new(options: Options, seen: watch::Receiver<Seen>) -> Result<Self, OptionsError> {
        Ok(Self {
            layout: Layout::new(&options.prefix),
            pool: Pool::new(&options)?,
            counters: Counters::default(),
            uids: Arc::default(),
            space: Space::default(),
            parts: Parts::default(),
            record: Mutex::default(),
            ever: Mutex::default(),
            seen,
            options,
        })
    }

    /// The record that transactions compare. Made if this is the first server ever.
    pub async fn record(&self) -> Result<Record> {
        if let Some(record) = self.known_record().clone() {
            return Ok(record);
        }
        let record = match self.get_one("reading the cluster's record", self.layout.cluster()).await? {
            Some(kv) => Record { cluster: read_cluster(kv.value())?, value: kv.value().to_vec() },
            None => self.make_record().await?,
        };
        *self.known_record() = Some(record.clone());
        Ok(record)
    }

    /// The record, if it is of the incarnation that the caller means; "" is any.
    pub async fn record_as(&self, incarnation: &str) -> Result<Record> {
        let is_meant = |record: &Record| incarnation.is_empty() || record.cluster.incarnation == incarnation;
        let record = self.record().await?;
        if is_meant(&record) {
            return Ok(record);
        }
        let record = self.record_anew().await?;
        match is_meant(&record) {
            true => Ok(record),
            false => Err(Error::WrongIncarnation(record.cluster.incarnation)),
        }
    }

    pub async fn record_anew(&self) -> Result<Record> {
        self.forget_record();
        self.record().await
    }

    /// To be read anew: it was found to differ.
    pub fn forget_record(&self) {
        *self.known_record() = None;
    }

    /// Proposes one. Whoever comes first makes it, so trying again does no harm.
    async fn make_record(&self) -> Result<Record> {
        let value = write_cluster(&Cluster { shards: self.options.shards, ..Cluster::random() });
        let key = self.layout.cluster();
        let txn = Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(key.clone(), value, None), commit::put_head(&self.layout, 0)]);
        self.pool
            .read("making the cluster's record", move |connection| {
                let (mut kv, txn) = (connection.kv.clone(), txn.clone());
                async move { kv.txn(txn).await }
            })
            .await?;
        let found = self.get_one("reading the cluster's record", key).await?;
        let kv = found.ok_or_else(|| Error::Unavailable("the cluster's record was deleted meanwhile".into()))?;
        Ok(Record { cluster: read_cluster(kv.value())?, value: kv.value().to_vec() })
    }

    fn known_record(&self) -> std::sync::MutexGuard<'_, Option<Record>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn cluster(&self) -> Result<Cluster> {
        Ok(self.inner.record().await?.cluster)
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.inner.object(key).await
    }

    async fn list(&self, list: List) -> Result<Page> {
        self.inner.page(list).await
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        crate::watch::open(self.inner.clone(), options).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        self.inner.commit(transaction).await
    }

    async fn head(&self) -> Result<Head> {
        Ok(self.inner.head_at(None).await?)
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        crate::coordination::open(self.inner.clone()).await
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.inner.open_session(open).await
    }

    async fn beat(&self, session: &str, report: Option<api::v1::MemberReport>) -> Result<()> {
        self.inner.beat(session, report).await
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.inner.end_session(session, attach).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<api::v1::Claim> {
        self.inner.change_claim(change).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.inner.history(query).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.inner.trim_history(up_to).await
    }

    async fn broken(&self) -> String {
        self.inner.parts.broken().await.into()
    }
}
