//! The backend with a clock beside it: how long each operation takes, and how often the store didn't answer. It changes
//! nothing that passes through.

use std::sync::Arc;

use api::v1;
use async_trait::async_trait;
use model::{Key, Object, Revision};
use store::{
    ClaimChange, Cluster, CoordinationStream, Error, Head, HistoryQuery, List, LogRecord, Page, Result, SessionOpen,
    Store, Transaction, WatchOptions, WatchStream,
};
use telemetry::metrics::{Counter, Histogram};

/// What is asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Get,
    List,
    /// Until the watch is open.
    Watch,
    Commit,
    Head,
    OpenSession,
    Beat,
    EndSession,
    ChangeClaim,
    History,
    TrimHistory,
}

impl Operation {
    pub const ALL: [Self; 11] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Commit,
        Self::Head,
        Self::OpenSession,
        Self::Beat,
        Self::EndSession,
        Self::ChangeClaim,
        Self::History,
        Self::TrimHistory,
    ];

    /// A label of metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Commit => "commit",
            Self::Head => "head",
            Self::OpenSession => "open_session",
            Self::Beat => "beat",
            Self::EndSession => "end_session",
            Self::ChangeClaim => "change_claim",
            Self::History => "history",
            Self::TrimHistory => "trim_history",
        }
    }
}

/// By operation, in its order.
#[derive(Debug, Default)]
pub struct Times([OfOne; Operation::ALL.len()]);

#[derive(Debug, Default)]
pub struct OfOne {
    pub duration: Histogram,
    /// Answers that didn't come, or not in time; a refusal is an answer.
    pub failures: Counter,
}

impl Times {
    pub fn of(&self, operation: Operation) -> &OfOne {
        &self.0[operation as usize]
    }

    async fn take<T>(&self, operation: Operation, call: impl Future<Output = Result<T>>) -> Result<T> {
        let of = self.of(operation);
        let _timer = of.duration.time();
        let result = call.await;
        if matches!(result, Err(Error::Unavailable(_) | Error::OutcomeUnknown(_))) {
            of.failures.add(1);
        }
        result
    }
}

pub struct Timed {
    pub backend: Arc<dyn Store>,
    pub times: Arc<Times>,
}

#[async_trait]
impl Store for Timed {
    async fn cluster(&self) -> Result<Cluster> {
        self.backend.cluster().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.times.take(Operation::Get, self.backend.get(key)).await
    }

    async fn list(&self, list: List) -> Result<Page> {
        self.times.take(Operation::List, self.backend.list(list)).await
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        self.times.take(Operation::Watch, self.backend.watch(options)).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        self.times.take(Operation::Commit, self.backend.commit(transaction)).await
    }

    async fn head(&self) -> Result<Head> {
        self.times.take(Operation::Head, self.backend.head()).await
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        self.backend.coordination().await
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.times.take(Operation::OpenSession, self.backend.open_session(open)).await
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.times.take(Operation::Beat, self.backend.beat(session, report)).await
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.times.take(Operation::EndSession, self.backend.end_session(session, attach)).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        self.times.take(Operation::ChangeClaim, self.backend.change_claim(change)).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.times.take(Operation::History, self.backend.history(query)).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.times.take(Operation::TrimHistory, self.backend.trim_history(up_to)).await
    }

    async fn broken(&self) -> String {
        self.backend.broken().await
    }
}
