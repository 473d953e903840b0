//! One client for each etcd member, and which of them is in use. Every call goes through here: it has a deadline, and a
//! member that doesn't answer is passed over by the next call.
//!
//! Nothing is balanced: one connection is used until it fails. What may have had an effect is never sent twice.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{Channel, Client, ConnectOptions, KvClient, LeaseClient, WatchClient};
use store::Error;
use tokio::{sync::OnceCell, time::Instant};
use tonic::transport::Endpoint;
use tracing::warn;

use crate::{Failure, Options, OptionsError, pause::Backoff};

/// Of one attempt of a call that may be tried elsewhere.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);
/// Of one attempt of a call with an effect. A member that has just lost its leader may have sent the call to that one, and
/// says nothing for 7 s; a leader that is there commits in milliseconds. Short enough to go on elsewhere within 3 s.
const WRITE_ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// Of a read of much, and of its attempts: an answer of some megabytes takes its time, longest where etcd and we share a busy
/// machine, and a member that is at it is none that doesn't answer.
const MUCH_MAX: Duration = Duration::from_secs(10);
/// With less time left none is begun: it would only hide why the one before failed.
const ATTEMPT_MIN: Duration = Duration::from_millis(200);
const CONNECT_MAX: Duration = Duration::from_millis(500);
/// Between attempts, so that a dead etcd isn't asked in a hot loop. Another member is asked soon, one that is alone with
/// ever longer pauses, of which a call's deadline has room for a dozen.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// etcd ends connections that ping more often than each 5 s, or while no call is open.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_ANSWER_MAX: Duration = Duration::from_secs(3);
/// Windows of HTTP/2: a list of many objects shouldn't wait for acknowledgements.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// An answer to a read. Lists that exceed it are read in smaller pages.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A member's clients.
pub struct Connection {
    pub client: Client,
    pub kv: KvClient,
    pub lease: LeaseClient,
    pub watch: WatchClient,
}

struct Member {
    name: String,
    /// Said with errors that TLS alone leaves unexplained.
    hint: &'static str,
    endpoint: Endpoint,
    options: ConnectOptions,
    connection: OnceCell<Arc<Connection>>,
}

pub struct Pool {
    members: Vec<Member>,
    /// Counts up; the member in use is this modulo their number.
    turn: AtomicUsize,
    failovers: AtomicU64,
    deadline: Duration,
}

/// A connection, and the turn it is of.
#[derive(Clone)]
pub struct Current {
    pub turn: usize,
    pub connection: Arc<Connection>,
}

impl Pool {
    pub fn new(options: &Options) -> Result<Self, OptionsError> {
        let members = options.endpoints.iter().map(|e| Member::new(e, options)).collect::<Result<_, _>>()?;
        let (turn, failovers) = Default::default();
        Ok(Self { members, turn, failovers, deadline: options.deadline })
    }

    /// Changes whenever another member comes into use.
    pub fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed)
    }

    pub fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }

    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|m| m.name.as_str())
    }

    /// A call without an effect worth knowing about: tried at one member after another until the deadline.
    pub async fn read<T, F, Fut>(&self, what: &str, call: F) -> Result<T, Failure>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.repeat(what, (ATTEMPT_MAX, self.deadline), Failure::harmless, call).await
    }

    /// The same of what may be much, and that nobody waits for to go on elsewhere.
    pub async fn read_much<T, F, Fut>(&self, what: &str, call: F) -> Result<T, Failure>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.repeat(what, (MUCH_MAX, self.deadline.max(MUCH_MAX)), Failure::harmless, call).await
    }

    /// A call with an effect: tried again only where it can't have had it.
    pub async fn write<T, F, Fut>(&self, what: &str, call: F) -> Result<T, Failure>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.repeat(what, (WRITE_ATTEMPT_MAX, self.deadline), |failure| failure, call).await
    }

    async fn repeat<T, F, Fut>(
        &self,
        what: &str,
        (attempt_max, call_max): (Duration, Duration),
        meaning: fn(Failure) -> Failure,
        call: F,
    ) -> Result<T, Failure>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + call_max;
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        let mut before = None;
        loop {
            let turn = self.turn();
            let until = deadline.min(Instant::now() + attempt_max);
            let failure = match self.attempt(turn, what, until, &call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => meaning(failure),
            };
            let was_answered = Instant::now() < until;
            if failure.is_transient() {
                self.pass_over(turn, &failure);
            }
            let next = Instant::now() + backoff.pause();
            match failure {
                Failure::NotDone(why) if next + ATTEMPT_MIN < deadline => {
                    before = was_answered.then_some(why).or(before)
                }
                failure => return Err(failure.after(before)),
            }
            tokio::time::sleep_until(next).await;
        }
    }

    async fn attempt<T, F, Fut>(&self, turn: usize, what: &str, until: Instant, call: &F) -> Result<T, Failure>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let member = self.member(turn);
        let connection = tokio::time::timeout_at(until, member.connection())
            .await
            .unwrap_or_else(|_| Err(Failure::timed_out("connecting")))
            .map_err(|failure| member.explain(failure.harmless()))?;
        let answer = tokio::time::timeout_at(until, call(connection)).await;
        let answer = answer.map_or_else(|_| Err(Failure::timed_out(what)), |answer| answer.map_err(Failure::from));
        answer.map_err(|failure| member.explain(failure))
    }

    /// The member in use, for a stream.
    pub async fn current(&self) -> Result<Current, Failure> {
        let turn = self.turn();
        let member = self.member(turn);
        let connecting = tokio::time::timeout(ATTEMPT_MAX, member.connection()).await;
        match connecting.unwrap_or_else(|_| Err(Failure::timed_out("connecting"))) {
            Ok(connection) => Ok(Current { turn, connection }),
            Err(failure) => {
                let failure = member.explain(failure.harmless());
                self.pass_over(turn, &failure);
                Err(failure)
            }
        }
    }

    /// Asks that one member, whichever is in use.
    pub async fn ask<T, F, Fut>(&self, endpoint: usize, what: &str, within: Duration, call: F) -> Result<T, Failure>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.attempt(endpoint, what, Instant::now() + within, &call).await.map_err(Failure::harmless)
    }

    /// The next member's turn, unless another call found the fault first.
    pub fn pass_over(&self, turn: usize, why: &Failure) {
        if self.turn.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && self.members.len() > 1
        {
            self.failovers.fetch_add(1, Ordering::Relaxed);
            let (from, to, why) = (&self.member(turn).name, &self.member(turn + 1).name, Error::from(why.clone()));
            warn!(from, to, %why, "etcd endpoint passed over");
        }
    }

    fn member(&self, turn: usize) -> &Member {
        &self.members[turn % self.members.len()]
    }
}

impl Member {
    fn new(name: &str, options: &Options) -> Result<Self, OptionsError> {
        let fail = |source| OptionsError::Endpoint { endpoint: name.into(), source };
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{name}"))
            .map_err(fail)?
            .connect_timeout(CONNECT_MAX)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWER_MAX)
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        if let Some(tls) = &options.tls {
            endpoint = endpoint.tls_config(tls.config()?).map_err(fail)?;
        }
        // A member without a leader should say so at once; streams on it should end.
        let mut connect = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        if let Some(user) = &options.user {
            connect = connect.with_user(&user.name, &user.password);
        }
        let hint = match &options.tls {
            Some(tls) if tls.identity.is_none() => " (no client certificate was shown to it; it may want one)",
            _ => "",
        };
        Ok(Self { name: name.into(), hint, endpoint, options: connect, connection: OnceCell::new() })
    }

    fn explain(&self, failure: Failure) -> Failure {
        failure.map_message(|message| format!("etcd {}: {message}{}", self.name, self.hint))
    }

    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let make = || async {
            let channel = Channel::Tonic(self.endpoint.connect_lazy());
            let client = Client::from_channel(channel, Some(self.options.clone())).await?;
            let kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
            // What a watch sends was accepted by etcd's own bounds; refusing it would only repeat.
            let watch = client.watch_client().max_decoding_message_size(usize::MAX);
            Ok::<_, Failure>(Arc::new(Connection { lease: client.lease_client(), client, kv, watch }))
        };
        self.connection.get_or_try_init(make).await.cloned()
    }
}
