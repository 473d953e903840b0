//! The client: a store and an `Api` that is somewhere else.
//!
//! - **Servers.** One or several; it uses one at a time, and goes on to the next when that fails (`pool`).
//! - **Retries.** Only what surely wasn't done, or can be repeated: reads, openings of streams, and writes that never
//!   reached a server or were answered UNAVAILABLE. A write that was sent and not answered is `OutcomeUnknown`.
//! - **Watches** end with `Unavailable` when their stream breaks; whoever watches opens another with its token, which any
//!   server can take up.
//! - **Sessions** are kept: `open_session` opens a stream, and when that breaks the session is attached again at once, on
//!   any server. Each time its attach number grows; `attach_of` tells the newest. Beats go over that stream.
//! - **Reports** of one node go over one stream, one batch at a time, to the server that the agent's session is attached
//!   to, and always under the session's newest attach number (the one in the fence that `report` is given may be older by
//!   then; batches of the older streams are refused by the server's compare, so none can overtake another).
//! - **Logs** are served from a `LogSource` (`serve_logs`), each on a stream of its own; `logs` reads them.

mod api;
mod logs;
mod pool;
mod report;
mod session;
mod streams;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use ::api::v1;
use async_trait::async_trait;
use model::{Actor, Key, Object, Revision};
use prost::Message;
use store::{
    Caller, ClaimChange, Cluster, CoordinationStream, Error, HISTORY_MAX, Head, HistoryQuery, List, LogEntry,
    LogRecord, LogSource, Page, Result, SessionOpen, Store, Transaction, WatchOptions, WatchStream,
};
use telemetry::trace::Tracer;

use self::{
    pool::{Pool, Signature, answer},
    report::Link,
    session::Session,
};
use crate::{convert, error::Call, trace::CallSpan};

/// How to reach the servers.
#[derive(Clone)]
pub struct Options {
    /// `host:port` or `http://host:port`; with several, the first is tried first.
    pub servers: Vec<String>,
    /// Who calls, where the call itself doesn't say.
    pub actor: Actor,
    /// Plain text where none.
    pub tls: Option<Tls>,
    /// Of every unary call and every opening of a stream, retries included.
    pub deadline: Duration,
    /// A server that isn't connected by then is not used. Five times as long where it's the only one.
    pub connect_timeout: Duration,
    /// A ping after this much silence, also while nothing is asked, and how long its answer may take. Only a frozen or
    /// unreachable server is found out so (a dead one's connections break at once): soon enough for a session's TTL, yet
    /// patient with a server that is merely short of CPU. Five times as long where it's the only one.
    pub keep_alive_interval: Duration,
    pub keep_alive_timeout: Duration,
    /// Longest pause between two rounds of dialling.
    pub redial_max: Duration,
    pub tracer: Tracer,
}

impl Options {
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>, actor: Actor) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            actor,
            tls: None,
            deadline: Duration::from_secs(5),
            connect_timeout: Duration::from_millis(500),
            keep_alive_interval: Duration::from_millis(500),
            keep_alive_timeout: Duration::from_millis(1_500),
            redial_max: Duration::from_secs(1),
            tracer: Tracer::off(),
        }
    }
}

/// PEM, as read from the files. Not for printing: there may be a key in it.
#[derive(Clone)]
pub struct Tls {
    /// The authority that signed the servers' certificates.
    pub ca: Vec<u8>,
    /// Certificate and key, where servers ask for them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the servers' certificates, where it isn't the address.
    pub domain: Option<String>,
}

/// See the module. Dropping it breaks its sessions' streams, as a crash would; `end_session` ends them in order.
pub struct Remote {
    pool: Arc<Pool>,
    actor: Actor,
    tracer: Tracer,
    sessions: Mutex<HashMap<String, Session>>,
    links: Mutex<HashMap<String, Arc<Link>>>,
    logs: Arc<RwLock<Option<Arc<dyn LogSource>>>>,
}

impl Remote {
    /// Dials nothing yet. Within a runtime.
    pub fn new(options: Options) -> Result<Self> {
        let pool = Arc::new(Pool::new(&options)?);
        Signature::new(&Caller::new(options.actor.clone()))?;
        Ok(Self {
            pool,
            actor: options.actor,
            tracer: options.tracer,
            sessions: Mutex::default(),
            links: Mutex::default(),
            logs: Arc::default(),
        })
    }

    /// The newest attach number of a session that this client keeps; none while it's being attached anew, and after its
    /// end.
    pub fn attach_of(&self, session: &str) -> Option<u64> {
        self.session(session)?.attachment().map(|(_, attach)| attach)
    }

    /// From now on servers' requests for logs of the nodes registered here are answered from this.
    pub fn serve_logs(&self, source: Arc<dyn LogSource>) {
        *self.logs.write().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    fn me(&self) -> Result<Signature> {
        Signature::new(&Caller::new(self.actor.clone()))
    }

    fn session(&self, session: &str) -> Option<Session> {
        locked(&self.sessions).get(session).cloned()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Store for Remote {
    async fn cluster(&self) -> Result<Cluster> {
        let head = self.read_head().await?;
        Ok(Cluster { incarnation: head.incarnation, shards: head.shards })
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let me = self.me()?;
        let request = v1::GetRequest { key: Some(key.into()), min_revision: 0 };
        let got = self.pool.call(Call::Read, |server| {
            let request = me.on(request.clone());
            async move { answer(server.resources().get(request)).await }
        });
        match got.await {
            Ok(one) => Ok(Some(one.0)),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, list: List) -> Result<Page> {
        let me = self.me()?;
        let request = convert::list_request(&list);
        let listed = self.pool.call(Call::Read, |server| {
            let request = me.on(request.clone());
            async move { answer(server.resources().list(request)).await }
        });
        let rows = listed.await?;
        Ok(Page { objects: rows.objects, more: !rows.next_page_token.is_empty(), revision: rows.revision })
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        streams::watch(self.pool.clone(), self.me()?, options).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        let mut caller = Caller {
            actor: transaction.actor.clone().unwrap_or_else(|| self.actor.clone()),
            traceparent: transaction.note.as_ref().map(|note| note.traceparent.clone()).unwrap_or_default(),
        };
        let span = CallSpan::client(&self.tracer, "Commit", &mut caller);
        let signature = Signature::new(&caller)?;
        let request = convert::commit_request(transaction);
        let committed = self.pool.call(Call::Write, |server| {
            let request = signature.on(request.clone());
            async move { answer(server.resources().commit(request)).await }
        });
        Ok(Revision(span.end(committed.await)?.revision))
    }

    async fn head(&self) -> Result<Head> {
        let head = self.read_head().await?;
        Ok(Head { revision: Revision(head.revision), commits: head.commits })
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        streams::coordination(self.pool.clone(), self.me()?).await
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        let id = open.session.clone();
        let (session, attach) = Session::open(self.pool.clone(), self.me()?, open).await?;
        // An older stream of it ends only now that this one is open; its attach number is an old one, so that is no crash.
        let mut sessions = locked(&self.sessions);
        if let Some(older) = sessions.insert(id, session) {
            older.abandon();
        }
        sessions.retain(|_, session| !session.is_over());
        Ok(attach)
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        let kept = self.session(session).ok_or_else(|| Error::SessionEnded(session.to_owned()))?;
        let beaten = kept.beat(report).await;
        if matches!(beaten, Err(Error::SessionEnded(_))) {
            locked(&self.sessions).remove(session);
        }
        beaten
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        let Some(kept) = self.session(session) else { return Ok(false) };
        if attach.is_some() && attach != kept.attachment().map(|(_, attach)| attach) {
            return Ok(false);
        }
        let ended = kept.close().await?;
        locked(&self.sessions).remove(session);
        Ok(ended)
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        let me = self.me()?;
        let request = convert::change_claim_request(change);
        let changed = self.pool.call(Call::Write, |server| {
            let request = me.on(request.clone());
            async move { answer(server.coordination().change_claim(request)).await }
        });
        Ok(changed.await?.claim.unwrap_or_default())
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        let request = v1::HistoryRequest {
            root_uid: query.root_uid.unwrap_or_default(),
            // What lies behind the end would count, too.
            limit: if query.up_to.is_some() {
                HISTORY_MAX as i32
            } else {
                i32::try_from(query.limit).unwrap_or(i32::MAX)
            },
            after_revision: query.after.0,
            ..Default::default()
        };
        let mut entries = self.read_entries(request).await?.entries;
        entries.retain(|e| e.revision > query.after.0 && query.up_to.is_none_or(|up_to| e.revision <= up_to.0));
        let surplus = if query.limit == 0 { 0 } else { entries.len().saturating_sub(query.limit) };
        Ok(entries.drain(surplus..).map(log_record).collect())
    }

    /// Never: only servers forget.
    async fn trim_history(&self, _up_to: Revision) -> Result<usize> {
        Err(Error::Denied("history is trimmed by servers, not through the API".into()))
    }
}

impl Remote {
    async fn read_head(&self) -> Result<v1::HeadResponse> {
        let me = self.me()?;
        let head = self.pool.call(Call::Read, |server| {
            let request = me.on(v1::HeadRequest {});
            async move { answer(server.resources().head(request)).await }
        });
        head.await
    }

    async fn read_entries(&self, request: v1::HistoryRequest) -> Result<v1::HistoryResponse> {
        let me = self.me()?;
        let entries = self.pool.call(Call::Read, |server| {
            let request = me.on(request.clone());
            async move { answer(server.resources().history(request)).await }
        });
        entries.await
    }
}

fn log_record(mut entry: v1::HistoryEntry) -> LogRecord {
    let revision = Revision(std::mem::take(&mut entry.revision));
    let bytes = entry.encode_to_vec().into();
    LogRecord {
        revision,
        entry: LogEntry { root_uid: entry.root_uid, step_id: entry.step_id, bytes, slot: String::new() },
    }
}
