//! Members and claims, followed: one etcd watch over `m/`, and a list of all of it now and then, since sessions expire
//! outside `head` and a lost event would go unnoticed.
//!
//! Hands out whole states, the newest one only: a reader that lags sees fewer of them, never an old one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::v1;
use etcd_client::{EventType, GetOptions, KeyValue, WatchOptions, WatchResponse, WatchStream};
use futures::StreamExt;
use model::{Epoch, Revision};
use prost::Message;
use store::{Cluster, CoordinationStream, Result};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::wrappers::WatchStream as Latest;
use tracing::{debug, warn};

use crate::{
    Failure,
    backend::Inner,
    layout::{Coordinated, range_end, read_claim},
    pause::Backoff,
    session::attach_of,
};

/// Finds what a lying watch left out. Small: sessions and claims only.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Between attempts to watch, so that a dead etcd isn't asked in a hot loop.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The state now is the first item.
pub async fn open(store: Arc<Inner>) -> Result<CoordinationStream> {
    let cluster = store.record().await?.cluster;
    let state = State::read(&store).await?;
    let (sender, receiver) = watch::channel(Arc::new(state.value(cluster.shards)));
    tokio::spawn(Follower { store, cluster, state, out: sender }.run());
    Ok(Latest::new(receiver).map(Ok).boxed())
}

/// Everything below `m/`.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    revision: Revision,
    sessions: BTreeMap<String, v1::Member>,
    reports: BTreeMap<String, v1::MemberReport>,
    claims: BTreeMap<String, v1::Claim>,
}

impl State {
    async fn read(store: &Inner) -> Result<Self, Failure> {
        let prefix = store.layout.coordinated();
        let options = GetOptions::new().with_range(range_end(&prefix));
        let answer = store.get_range("reading members and claims", prefix.into(), options).await?;
        let mut state = Self { revision: Revision(answer.header().map_or(0, |h| h.revision())), ..Self::default() };
        for kv in answer.kvs() {
            state.put(store, kv);
        }
        Ok(state)
    }

    /// What can't be read is left out: it then counts as dead, or as nobody's, which only costs a takeover by compare.
    fn put(&mut self, store: &Inner, kv: &KeyValue) {
        let known = store.layout.read_coordinated(kv.key());
        let read = match known {
            Some(Coordinated::Session(id)) => v1::Member::decode(kv.value()).map(|member| {
                self.sessions.insert(id, v1::Member { attach: attach_of(kv), ..member });
            }),
            Some(Coordinated::Report(id)) => v1::MemberReport::decode(kv.value()).map(|report| {
                self.reports.insert(id, report);
            }),
            Some(Coordinated::Claim(name)) => {
                match read_claim(kv.value()) {
                    Ok((owner, Epoch(epoch))) => {
                        let revision = kv.mod_revision();
                        let claim = v1::Claim { name: name.clone(), owner, epoch, revision, ..Default::default() };
                        self.claims.insert(name, claim);
                    }
                    Err(error) => warn!(name, %error, "a claim can't be read"),
                }
                Ok(())
            }
            None => Ok(()),
        };
        if let Err(error) = read {
            warn!(key = %String::from_utf8_lossy(kv.key()), %error, "what a member wrote can't be decoded");
        }
    }

    fn delete(&mut self, store: &Inner, key: &[u8]) {
        match store.layout.read_coordinated(key) {
            Some(Coordinated::Session(id)) => drop(self.sessions.remove(&id)),
            Some(Coordinated::Report(id)) => drop(self.reports.remove(&id)),
            Some(Coordinated::Claim(name)) => drop(self.claims.remove(&name)),
            None => {}
        }
    }

    fn value(&self, shards: u32) -> v1::Coordination {
        let member = |(id, member): (&String, &v1::Member)| {
            let report = self.reports.get(id).cloned();
            v1::Member { report, ..member.clone() }
        };
        v1::Coordination {
            revision: self.revision.0,
            members: self.sessions.iter().map(member).collect(),
            claims: self.claims.values().cloned().collect(),
            shards,
            time: None,
        }
    }
}

struct Follower {
    store: Arc<Inner>,
    /// Of which `state` is.
    cluster: Cluster,
    state: State,
    out: watch::Sender<Arc<v1::Coordination>>,
}

impl Follower {
    /// Until nobody reads any more.
    async fn run(mut self) {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        while !self.out.is_closed() {
            match self.follow().await {
                Ok(()) => backoff.reset(),
                Err(failure) => {
                    debug!(?failure, "watch of members and claims broke");
                    sleep(backoff.pause()).await;
                }
            }
            self.sweep().await;
        }
    }

    /// Follows one etcd watch until the pool moves on, or it's time to sweep. A failure: it ended before.
    async fn follow(&mut self) -> Result<(), Failure> {
        let current = self.store.pool.current().await?;
        let mut watch = self.watch(&current).await.inspect_err(|f| self.store.pool.pass_over(current.turn, f))?;
        let mut seen = self.store.seen.clone();
        let sweep = Instant::now() + SWEEP_EVERY;
        loop {
            tokio::select! {
                message = watch.message() => match message? {
                    Some(message) if !message.canceled() => self.apply(&message),
                    Some(message) => return Err(Failure::NotDone(message.cancel_reason().into())),
                    None => return Err(Failure::NotDone("it ended".into())),
                },
                () = sleep_until(sweep) => return Ok(()),
                () = self.out.closed() => return Ok(()),
                changed = seen.changed() => {
                    if changed.is_err() {
                        return Err(Failure::NotDone("the probe of etcd ended".into()));
                    }
                    if self.store.pool.turn() != current.turn {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn watch(&self, current: &crate::pool::Current) -> Result<WatchStream, Failure> {
        let prefix = self.store.layout.coordinated();
        let options = WatchOptions::new().with_range(range_end(&prefix)).with_start_revision(self.state.revision.0 + 1);
        let mut client = current.connection.watch.clone();
        let opening = tokio::time::timeout(crate::watch::OPEN_MAX, client.watch(prefix, Some(options))).await;
        Ok(opening.map_err(|_| Failure::timed_out("opening a watch"))??)
    }

    /// All events of a revision come in one message; none of an earlier one than already seen counts.
    fn apply(&mut self, message: &WatchResponse) {
        let before = self.state.revision;
        for event in message.events() {
            let Some(kv) = event.kv().filter(|kv| kv.mod_revision() > before.0) else { continue };
            match event.event_type() {
                EventType::Put => self.state.put(&self.store, kv),
                EventType::Delete => self.state.delete(&self.store, kv.key()),
            }
            self.state.revision = self.state.revision.max(Revision(kv.mod_revision()));
        }
        if self.state.revision > before {
            self.publish();
        }
    }

    async fn sweep(&mut self) {
        let read = match State::read(&self.store).await {
            Ok(state) if state.revision < self.state.revision && self.is_another_store().await => {
                // What was read may be either one's.
                State::read(&self.store).await
            }
            Ok(state) if state.revision < self.state.revision => {
                return debug!(revision = %state.revision, "a list of members and claims is older than what is known");
            }
            read => read,
        };
        match read {
            Ok(state) => {
                let changed = State { revision: self.state.revision, ..state.clone() } != self.state;
                self.state = state;
                if changed {
                    self.publish();
                }
            }
            Err(failure) => debug!(?failure, "members and claims can't be listed"),
        }
    }

    /// Its revisions begin anew; from then on what it says counts.
    async fn is_another_store(&mut self) -> bool {
        match self.store.record_anew().await {
            Ok(record) if record.cluster.incarnation != self.cluster.incarnation => {
                self.cluster = record.cluster;
                true
            }
            _ => false,
        }
    }

    fn publish(&self) {
        self.out.send_replace(Arc::new(self.state.value(self.cluster.shards)));
    }
}
