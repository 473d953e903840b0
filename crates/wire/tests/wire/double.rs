//! An `Api` over the memory store that remembers who asked for what, and fails on demand.

use std::sync::Mutex;

use api::v1;
use async_trait::async_trait;
use futures::{StreamExt, stream};
use model::{Fence, Key, Object, Revision};
use store::{
    Api, Caller, ClaimChange, Cluster, CoordinationStream, Error, Head, HistoryQuery, List, LogRecord, Memory, Page,
    Result, SessionOpen, Store, Transaction, WatchItem, WatchOptions, WatchStream,
};
use tokio_stream::wrappers::WatchStream as Changes;

#[derive(Default)]
pub struct Double {
    pub memory: Memory,
    /// What came, as text.
    pub heard: Mutex<Vec<String>>,
    /// What the next writes and reads answer instead.
    pub failures: Mutex<Vec<Error>>,
}

impl Double {
    fn hear(&self, caller: &Caller, what: impl std::fmt::Debug) -> Result<()> {
        self.heard.lock().unwrap().push(format!("{} {} {what:?}", caller.actor, caller.traceparent));
        self.fail()
    }

    fn fail(&self) -> Result<()> {
        match self.failures.lock().unwrap().pop() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

#[async_trait]
impl Store for Double {
    async fn cluster(&self) -> Result<Cluster> {
        self.memory.cluster().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.fail()?;
        self.memory.get(key).await
    }

    async fn list(&self, list: List) -> Result<Page> {
        self.memory.list(list).await
    }

    /// Tells each change of shards as a partial snapshot of nothing.
    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        let shards = options.shards.clone().expect("the server always hands one on");
        let changes = Changes::from_changes(shards).map(|shards| {
            Ok(WatchItem::SnapshotStart {
                incarnation: "shards".into(),
                revision: Revision::ZERO,
                time: model::Time(0),
                partial: shards.map(|s| s.to_vec()),
            })
        });
        let items = self.memory.watch(options).await?;
        // Ends with the store's own stream: the changes alone are no watch.
        Ok(stream::select(items, changes).boxed())
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        let note = transaction.note.clone().unwrap_or_default();
        let actor = transaction.actor.clone().expect("the server says who writes");
        let caller = Caller { actor, traceparent: note.traceparent };
        self.hear(&caller, format!("commit {} {} {}", transaction.step_id, note.verb, note.why.reason))?;
        self.memory.commit(transaction).await
    }

    async fn head(&self) -> Result<Head> {
        self.memory.head().await
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        self.memory.coordination().await
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.memory.open_session(open).await
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.fail()?;
        self.memory.beat(session, report).await
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.memory.end_session(session, attach).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        self.memory.change_claim(change).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.memory.history(query).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.memory.trim_history(up_to).await
    }
}

#[async_trait]
impl Api for Double {
    async fn apply(&self, caller: &Caller, request: v1::ApplyRequest) -> Result<v1::ApplyResponse> {
        self.hear(caller, "apply")?;
        let results =
            request.declarations.into_iter().map(|d| v1::Applied { resource: d.resource, ..Default::default() });
        Ok(v1::ApplyResponse { results: results.collect(), revision: 7 })
    }

    async fn delete(&self, caller: &Caller, request: v1::DeleteRequest) -> Result<v1::DeleteResponse> {
        self.hear(caller, "delete")?;
        Ok(v1::DeleteResponse { resource: None, revision: request.revision })
    }

    async fn update_status(
        &self,
        caller: &Caller,
        request: v1::UpdateStatusRequest,
    ) -> Result<v1::UpdateStatusResponse> {
        self.hear(caller, "update_status")?;
        Ok(v1::UpdateStatusResponse { resource: Some(v1::Resource { status: request.status, ..Default::default() }) })
    }

    async fn entries(&self, request: v1::HistoryRequest) -> Result<v1::HistoryResponse> {
        let entry = |revision| v1::HistoryEntry {
            revision,
            step_id: format!("step-{revision}"),
            root_uid: request.root_uid.clone(),
            ..Default::default()
        };
        Ok(v1::HistoryResponse { entries: vec![entry(3), entry(5)] })
    }

    async fn register_node(&self, caller: &Caller, hello: v1::NodeHello) -> Result<String> {
        self.hear(caller, format!("hello {} attach {}", hello.node, hello.attach))?;
        Ok(format!("uid-of-{}", hello.node))
    }

    async fn report(
        &self,
        caller: &Caller,
        fence: Fence,
        node: &str,
        batch: v1::ReportBatch,
    ) -> Result<(Revision, Vec<Key>)> {
        self.hear(caller, format!("report {node} {fence} {}", batch.sequence))?;
        let refused = batch.instances.iter().filter_map(|i| i.key.as_ref()).map(Key::from).collect();
        Ok((Revision(40 + i64::try_from(batch.sequence).unwrap()), refused))
    }
}
