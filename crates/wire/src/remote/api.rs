//! What a server offers beyond a store, called from afar; and logs, which only a client asks for.

use ::api::v1;
use async_trait::async_trait;
use futures::StreamExt;
use model::{Fence, Key, Revision};
use store::{Api, Caller, Error, LogPiece, LogStream, Result};

use super::{
    Remote, locked,
    pool::{Signature, answer},
    report::Link,
};
use crate::{
    error::{Call, UNHEARD, from_status},
    trace::CallSpan,
};

#[async_trait]
impl Api for Remote {
    async fn apply(&self, caller: &Caller, request: v1::ApplyRequest) -> Result<v1::ApplyResponse> {
        let (caller, span) = self.traced("Apply", caller);
        let signature = Signature::new(&caller)?;
        let applied = self.pool.call(Call::Write, |server| {
            let request = signature.on(request.clone());
            async move { answer(server.resources().apply(request)).await }
        });
        span.end(applied.await)
    }

    async fn delete(&self, caller: &Caller, request: v1::DeleteRequest) -> Result<v1::DeleteResponse> {
        let (caller, span) = self.traced("Delete", caller);
        let signature = Signature::new(&caller)?;
        let deleted = self.pool.call(Call::Write, |server| {
            let request = signature.on(request.clone());
            async move { answer(server.resources().delete(request)).await }
        });
        span.end(deleted.await)
    }

    async fn update_status(
        &self,
        caller: &Caller,
        request: v1::UpdateStatusRequest,
    ) -> Result<v1::UpdateStatusResponse> {
        let (caller, span) = self.traced("UpdateStatus", caller);
        let signature = Signature::new(&caller)?;
        let updated = self.pool.call(Call::Write, |server| {
            let request = signature.on(request.clone());
            async move { answer(server.resources().update_status(request)).await }
        });
        span.end(updated.await)
    }

    async fn plan(&self, caller: &Caller, request: v1::PlanRequest) -> Result<v1::PlanResponse> {
        let signature = Signature::new(caller)?;
        let planned = self.pool.call(Call::Read, |server| {
            let request = signature.on(request.clone());
            async move { answer(server.resources().plan(request)).await }
        });
        planned.await
    }

    async fn explain(&self, request: v1::ExplainRequest) -> Result<v1::ExplainResponse> {
        let me = self.me()?;
        let explained = self.pool.call(Call::Read, |server| {
            let request = me.on(request.clone());
            async move { answer(server.resources().explain(request)).await }
        });
        explained.await
    }

    async fn entries(&self, request: v1::HistoryRequest) -> Result<v1::HistoryResponse> {
        self.read_entries(request).await
    }

    /// Opens the node's report stream, in place of an older one, and keeps it open.
    async fn register_node(&self, caller: &Caller, hello: v1::NodeHello) -> Result<String> {
        let node = hello.node.clone();
        let session = self.session(&hello.session);
        let signature = Signature::new(caller)?;
        let (link, uid) = Link::open(self.pool.clone(), signature, session, self.logs.clone(), hello).await?;
        locked(&self.links).insert(node, link.into());
        Ok(uid)
    }

    /// Over the stream that `register_node` opened. Needs no caller: the stream said who it is.
    async fn report(
        &self,
        _caller: &Caller,
        fence: Fence,
        node: &str,
        batch: v1::ReportBatch,
    ) -> Result<(Revision, Vec<Key>)> {
        let link = locked(&self.links).get(node).cloned();
        let link =
            link.ok_or_else(|| Error::Fenced(format!("node {node} isn't registered here; register it first")))?;
        link.report(fence, batch).await
    }
}

impl Remote {
    fn traced(&self, method: &'static str, caller: &Caller) -> (Caller, CallSpan) {
        let mut caller = caller.clone();
        let span = CallSpan::client(&self.tracer, method, &mut caller);
        (caller, span)
    }

    /// What an instance wrote, from whichever server its node's agent is attached to.
    pub async fn logs(&self, caller: &Caller, request: v1::LogsRequest) -> Result<LogStream> {
        let signature = Signature::new(caller)?;
        let mut answered = Err(Error::Unavailable("no server".into()));
        for server in self.pool.all() {
            let opening = tokio::time::timeout(self.pool.deadline, async {
                answer(server.agents().logs(signature.on(request.clone()))).await
            });
            answered = match opening.await {
                Ok(Ok(chunks)) => Ok(chunks),
                Ok(Err(status)) => Err(from_status(&status, Call::Read)),
                Err(_) => Err(Error::Unavailable("the log didn't begin in time".into())),
            };
            // No other server hears the node, either.
            if !matches!(&answered, Err(Error::Unavailable(why)) if !why.starts_with(UNHEARD)) {
                break;
            }
        }
        let piece = |chunk: v1::LogsResponse| LogPiece { data: chunk.data.into(), position: chunk.position };
        let pieces = answered?.map(move |chunk| chunk.map(piece).map_err(|status| from_status(&status, Call::Read)));
        Ok(pieces.boxed())
    }
}
