//! The server as a value: what it's made of, how it starts, and which call goes where.

use std::{sync::Arc, time::Duration};

use api::v1;
use async_trait::async_trait;
use model::{Fence, Key, Object, Revision};
use store::{
    Api, Caller, ClaimChange, Cluster, CoordinationStream, Error, Head, HistoryQuery, List, LogRecord, Page, Result,
    SessionOpen, Store, Transaction, WatchOptions, WatchStream,
};
use telemetry::{metrics::Source, trace::Tracer};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::error;

use crate::{
    Readiness, Stamps, SystemStamps, apply, audit, byhand, commit,
    counters::Counters,
    explain, feed, founding,
    heads::{self, Heads},
    history,
    members::{self, Members},
    metrics::Metrics,
    nodes, plan, reads, report,
    retention::{self, Retention},
    ring::GROUPS_MAX,
    shared::Shared,
    watch as watching,
};

/// How long a server waits for its store when it starts.
const START_MAX: Duration = Duration::from_secs(30);
const START_PAUSE: Duration = Duration::from_millis(100);

/// What a server is told.
#[derive(Clone)]
pub struct Config {
    /// What people call it; shown with the sessions that are attached to it.
    pub name: String,
    /// Longest time between a watch's bookmarks; these carry digests.
    pub bookmark_every: Duration,
    /// Groups of changes that watches may resume from.
    pub ring_groups_max: usize,
    /// Between two pages of the audit that compares the cache with the store.
    pub audit_every: Duration,
    /// What is kept of the history.
    pub retention: Retention,
    pub stamps: Arc<dyn Stamps>,
    pub tracer: Tracer,
    /// The cluster's number of shards; found at the start.
    pub(crate) shards: u32,
}

impl Config {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            bookmark_every: Duration::from_secs(5),
            ring_groups_max: GROUPS_MAX,
            audit_every: Duration::from_secs(5),
            retention: Retention::default(),
            stamps: Arc::new(SystemStamps),
            tracer: Tracer::off(),
            shards: 0,
        }
    }
}

/// A store that admits. It ends when it's dropped.
pub struct Server {
    shared: Arc<Shared>,
    heads: Heads,
    members: Members,
    _parts: JoinSet<()>,
}

impl Server {
    /// Returns once the backend has answered; it's ready (see `readiness`) when the first snapshot is complete.
    pub async fn start(mut config: Config, backend: Arc<dyn Store>) -> Result<Self> {
        config.shards = patiently(|| backend.cluster()).await?.shards;
        patiently(|| founding::make_placement(&config, backend.as_ref())).await?;
        let shared = Arc::new(Shared::new(config, backend));
        let (heads, requests) = Heads::new();
        let (sender, receiver) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(feed::run(shared.clone()));
        tasks.spawn(heads::run(shared.clone(), requests));
        tasks.spawn(heads::watch_over(shared.clone()));
        tasks.spawn(audit::run(shared.clone(), shared.config.audit_every));
        tasks.spawn(members::run(shared.clone(), sender));
        let members = Members::new(receiver);
        tasks.spawn(retention::run(shared.clone(), members.clone()));
        let mut parts = JoinSet::new();
        parts.spawn(keep(shared.clone(), tasks));
        parts.spawn(watch_over_store(shared.clone()));
        Ok(Self { shared, heads, members, _parts: parts })
    }

    /// Whether it should be asked, and when that changes.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.shared.readiness()
    }

    /// Returns once it's ready.
    pub async fn ready(&self) {
        // The sender lives in `shared`, so it can't be gone.
        let _ = self.readiness().wait_for(|readiness| *readiness == Readiness::Ready).await;
    }

    /// Returns once it can't do its work any more: whoever runs it should start another.
    pub async fn broken(&self) {
        // The sender lives in `shared`, so it can't be gone.
        let _ = self.readiness().wait_for(|readiness| *readiness == Readiness::Broken).await;
    }

    /// Ends every watch with DRAINING and refuses new calls.
    pub fn drain(&self) {
        self.shared.drain();
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Whether it should be asked now; if not, why.
    pub fn check(&self) -> impl Fn() -> std::result::Result<(), String> + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || match shared.current_readiness() {
            Readiness::Ready => Ok(()),
            other => Err(format!("{}: {}", other.reason(), other.message())),
        }
    }

    /// What it shows to Prometheus.
    pub fn metrics(&self) -> Arc<dyn Source> {
        Arc::new(Metrics { shared: self.shared.clone(), members: self.members.clone() })
    }

    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// Resources in the cache, and their encoded bytes.
    pub fn size(&self) -> (usize, usize) {
        let cache = self.shared.cache();
        (cache.len(), cache.bytes())
    }
}

/// Runs the server's parts. None of them ends by itself while there is a server.
async fn keep(shared: Arc<Shared>, mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            shared.broke();
        }
    }
}

/// A store that misses a part of itself can't be served from.
async fn watch_over_store(shared: Arc<Shared>) {
    let part = shared.backend.broken().await;
    error!(server = %shared.config.name, part, "a part of the store is gone");
    shared.broke();
}

/// Tries again while the store is away.
async fn patiently<T, F>(call: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut last = None;
    let attempts = async {
        loop {
            match call().await {
                Err(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_))) => {
                    if last.as_ref() != Some(&error) {
                        tracing::warn!(%error, "the store can't be used yet");
                    }
                    last = Some(error);
                    sleep(START_PAUSE).await;
                }
                other => return other,
            }
        }
    };
    match timeout(START_MAX, attempts).await {
        Ok(result) => result,
        Err(_) => {
            let last = last.map_or_else(|| "no answer".to_owned(), |error| error.to_string());
            Err(Error::Unavailable(format!("not within {START_MAX:?}; lastly: {last}")))
        }
    }
}

#[async_trait]
impl Store for Server {
    async fn cluster(&self) -> Result<Cluster> {
        self.shared.ready()?;
        let incarnation = self.shared.cache().incarnation.clone();
        Ok(Cluster { incarnation, shards: self.shared.config.shards })
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        reads::get(&self.shared, &self.heads, &byhand::meant(key)).await
    }

    async fn list(&self, list: List) -> Result<Page> {
        reads::list(&self.shared, &self.heads, list).await
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        watching::open(self.shared.clone(), &self.heads, options).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        commit::commit(&self.shared, &self.members, transaction).await
    }

    async fn head(&self) -> Result<Head> {
        self.shared.ready()?;
        self.heads.read().await
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        self.shared.ready()?;
        Ok(self.members.stream(&self.shared))
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.shared.ready()?;
        nodes::may_attach(&self.shared, &open)?;
        let server = if open.server.is_empty() { self.shared.config.name.clone() } else { open.server };
        self.shared.backend.open_session(SessionOpen { server, ..open }).await
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.shared.backend.beat(session, report).await
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.shared.backend.end_session(session, attach).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        if let Some(member) = self.members.known(&change.owner).filter(|member| member.role != "controller") {
            let (role, name) = (member.role, member.name);
            return Err(Error::Denied(format!("{role}/{name} may not own claims; only controllers may")));
        }
        self.shared.backend.change_claim(change).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.shared.backend.history(query).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.shared.backend.trim_history(up_to).await
    }
}

#[async_trait]
impl Api for Server {
    async fn apply(&self, caller: &Caller, request: v1::ApplyRequest) -> Result<v1::ApplyResponse> {
        apply::apply(&self.shared, &self.heads, caller, request).await
    }

    async fn delete(&self, caller: &Caller, request: v1::DeleteRequest) -> Result<v1::DeleteResponse> {
        byhand::delete(&self.shared, &self.heads, &self.members, caller, request).await
    }

    async fn update_status(
        &self,
        caller: &Caller,
        request: v1::UpdateStatusRequest,
    ) -> Result<v1::UpdateStatusResponse> {
        byhand::update_status(&self.shared, &self.heads, caller, request).await
    }

    async fn plan(&self, caller: &Caller, request: v1::PlanRequest) -> Result<v1::PlanResponse> {
        plan::plan(&self.shared, &self.heads, &self.members, caller, request).await
    }

    async fn explain(&self, request: v1::ExplainRequest) -> Result<v1::ExplainResponse> {
        explain::explain(&self.shared, &self.heads, &self.members, request).await
    }

    async fn entries(&self, request: v1::HistoryRequest) -> Result<v1::HistoryResponse> {
        history::entries(&self.shared, request).await
    }

    async fn register_node(&self, caller: &Caller, hello: v1::NodeHello) -> Result<String> {
        nodes::register(&self.shared, &self.heads, &self.members, caller, hello).await
    }

    async fn report(
        &self,
        caller: &Caller,
        fence: Fence,
        node: &str,
        batch: v1::ReportBatch,
    ) -> Result<(Revision, Vec<Key>)> {
        report::report(&self.shared, &self.heads, caller, fence, node, batch).await
    }
}
