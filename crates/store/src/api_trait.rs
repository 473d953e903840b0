//! What a server offers beyond a store: declarations, deletions, statuses, reports. Implemented by the server itself
//! and by the gRPC client.

use api::v1;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use model::{Actor, Fence, Key, Revision};

use crate::{Error, Result, Store};

/// Who calls, and in which trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub actor: Actor,
    /// W3C trace context; empty where there is none.
    pub traceparent: String,
}

impl Caller {
    pub fn new(actor: Actor) -> Self {
        Self { actor, traceparent: String::new() }
    }
}

#[async_trait]
pub trait Api: Store {
    async fn apply(&self, caller: &Caller, request: v1::ApplyRequest) -> Result<v1::ApplyResponse>;

    async fn delete(&self, caller: &Caller, request: v1::DeleteRequest) -> Result<v1::DeleteResponse>;

    async fn update_status(
        &self,
        caller: &Caller,
        request: v1::UpdateStatusRequest,
    ) -> Result<v1::UpdateStatusResponse>;

    /// What an apply would change and bring about. A store that knows no decisions can't say.
    async fn plan(&self, _caller: &Caller, _request: v1::PlanRequest) -> Result<v1::PlanResponse> {
        Err(Error::Denied("only a server can plan".into()))
    }

    /// Why a resource is as it is, down the chain.
    async fn explain(&self, _request: v1::ExplainRequest) -> Result<v1::ExplainResponse> {
        Err(Error::Denied("only a server can explain".into()))
    }

    async fn entries(&self, request: v1::HistoryRequest) -> Result<v1::HistoryResponse>;

    /// Creates the agent's Node or replaces its part of the status. Returns the Node's uid.
    async fn register_node(&self, caller: &Caller, hello: v1::NodeHello) -> Result<String>;

    /// Merges what an agent saw, fenced by its session, in order. Returns the revision and whose report was refused.
    async fn report(
        &self,
        caller: &Caller,
        fence: Fence,
        node: &str,
        batch: v1::ReportBatch,
    ) -> Result<(Revision, Vec<Key>)>;
}

/// A piece of what an instance wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPiece {
    pub data: Bytes,
    /// How far one has read with it, for whoever goes on behind it later; only who wrote it understands it. Empty: as far
    /// as before.
    pub position: String,
}

/// What an instance wrote, piece by piece; ends where there is no more, or with the error that says why.
pub type LogStream = BoxStream<'static, Result<LogPiece>>;

/// Where an agent's logs come from. An agent hands one to its connection, which serves the servers' requests from it.
#[async_trait]
pub trait LogSource: Send + Sync {
    /// Starts at `tail` lines before the end, and goes on as more is written where `follow` is set. Dropping the stream
    /// stops it.
    async fn open(&self, start: v1::LogStart) -> Result<LogStream>;
}
