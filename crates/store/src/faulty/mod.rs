//! A store that misbehaves on command: put before any other one, it loses, delays, repeats and alters what passes.
//!
//! What goes wrong is said through a `Faults` handle while everything runs, and counted there. By itself it changes
//! nothing. It never invents a commit that didn't happen, and never hides one for good: every lie that it tells is one
//! that a network, a crash or an overloaded server could tell.

mod faults;
mod watch;

use std::sync::Arc;

use api::v1;
use async_trait::async_trait;
use futures::{StreamExt, stream};
use model::{Fence, Key, Object, Revision};

pub use faults::{Counts, Faults};

use crate::{
    Api, Caller, ClaimChange, Cluster, CoordinationStream, Error, Head, HistoryQuery, List, LogRecord, Page, Result,
    SessionOpen, Store, Transaction, WatchOptions, WatchStream,
};

/// Wraps a `dyn Store`, a `dyn Api`, or one of known type.
pub struct Faulty<S: ?Sized> {
    inner: Arc<S>,
    faults: Faults,
}

impl<S: Store + ?Sized> Faulty<S> {
    pub fn new(inner: Arc<S>, faults: Faults) -> Self {
        Self { inner, faults }
    }

    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

#[async_trait]
impl<S: Store + ?Sized> Store for Faulty<S> {
    async fn cluster(&self) -> Result<Cluster> {
        self.faults.reachable()?;
        self.inner.cluster().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.faults.reachable()?;
        self.inner.get(key).await
    }

    async fn list(&self, list: List) -> Result<Page> {
        self.faults.reachable()?;
        self.inner.list(list).await
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        self.faults.reachable()?;
        Ok(watch::pass(self.inner.watch(options).await?, self.faults.clone()))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        self.faults.reachable()?;
        let number = self.faults.attempt();
        self.faults.before_commit(number, &transaction).await;
        self.faults.refuse_commit(number, &transaction)?;
        let outcome = self.inner.commit(transaction).await;
        self.faults.after_commit(number, &outcome).await;
        match outcome {
            Ok(_) if self.faults.loses_acknowledgement() => Err(Error::OutcomeUnknown("the answer was lost".into())),
            outcome => outcome,
        }
    }

    async fn head(&self) -> Result<Head> {
        self.faults.reachable()?;
        self.inner.head().await
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        self.faults.reachable()?;
        let (inner, faults) = (self.inner.coordination().await?, self.faults.clone());
        let pass = stream::unfold(Some((inner, faults)), async |passing| {
            let (mut inner, faults) = passing?;
            match faults.unless_cut(inner.next()).await {
                Ok(next) => Some((next?, Some((inner, faults)))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(pass.boxed())
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.faults.reachable()?;
        self.inner.open_session(open).await
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.faults.reachable()?;
        self.inner.beat(session, report).await
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.faults.reachable()?;
        self.inner.end_session(session, attach).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        self.faults.reachable()?;
        self.inner.change_claim(change).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.faults.reachable()?;
        self.inner.history(query).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.faults.reachable()?;
        self.inner.trim_history(up_to).await
    }

    async fn broken(&self) -> String {
        tokio::select! {
            part = self.inner.broken() => part,
            part = self.faults.broken() => part,
        }
    }
}

/// What a server adds fails only with the connection: faults of commits are for `commit`, and for the store below it.
#[async_trait]
impl<S: Api + ?Sized> Api for Faulty<S> {
    async fn apply(&self, caller: &Caller, request: v1::ApplyRequest) -> Result<v1::ApplyResponse> {
        self.faults.reachable()?;
        self.inner.apply(caller, request).await
    }

    async fn delete(&self, caller: &Caller, request: v1::DeleteRequest) -> Result<v1::DeleteResponse> {
        self.faults.reachable()?;
        self.inner.delete(caller, request).await
    }

    async fn update_status(
        &self,
        caller: &Caller,
        request: v1::UpdateStatusRequest,
    ) -> Result<v1::UpdateStatusResponse> {
        self.faults.reachable()?;
        self.inner.update_status(caller, request).await
    }

    async fn plan(&self, caller: &Caller, request: v1::PlanRequest) -> Result<v1::PlanResponse> {
        self.faults.reachable()?;
        self.inner.plan(caller, request).await
    }

    async fn explain(&self, request: v1::ExplainRequest) -> Result<v1::ExplainResponse> {
        self.faults.reachable()?;
        self.inner.explain(request).await
    }

    async fn entries(&self, request: v1::HistoryRequest) -> Result<v1::HistoryResponse> {
        self.faults.reachable()?;
        self.inner.entries(request).await
    }

    async fn register_node(&self, caller: &Caller, hello: v1::NodeHello) -> Result<String> {
        self.faults.reachable()?;
        self.inner.register_node(caller, hello).await
    }

    async fn report(
        &self,
        caller: &Caller,
        fence: Fence,
        node: &str,
        batch: v1::ReportBatch,
    ) -> Result<(Revision, Vec<Key>)> {
        self.faults.reachable()?;
        self.inner.report(caller, fence, node, batch).await
    }
}

#[cfg(test)]
mod tests;
