//! Keeps the node known: a session of its own, beaten, registered under it, and a new one when it ends.

use std::{sync::Arc, time::Duration};

use api::v1;
use model::{Actor, Fence, Time};
use store::{Api, Caller, Error, SessionOpen};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::{Clock, config::Config, redial::Redial, worker::Event};

/// Beats in one TTL: two may be lost.
const BEATS: u32 = 3;

/// From the first interruption on, until it's told with all that came after it.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// Under which session reports are committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub session: String,
    pub attach: u64,
}

impl Link {
    pub fn fence(&self) -> Fence {
        Fence::Session { session: self.session.clone(), attach: self.attach }
    }
}

pub struct Keeper {
    pub config: Arc<Config>,
    pub clock: Clock,
    pub api: Arc<dyn Api>,
    /// Somebody was refused under this link: attach anew.
    pub doubt: Arc<Notify>,
    /// The Node isn't there any more.
    pub deleted: Arc<Notify>,
}

impl Keeper {
    pub fn caller(config: &Config) -> Caller {
        Caller::new(Actor::new("agent", &config.node))
    }

    /// Goes on until it is dropped. `status` is what the node says of itself now; every new link is told, with what was
    /// said under it.
    pub async fn keep(self, status: watch::Receiver<v1::NodeStatus>, events: mpsc::Sender<Event>) {
        // Nobody listens any more once the agent ends, and with it this.
        let linked = async |link| drop(events.send(Event::Link(link)).await);
        let mut redial = Redial::new(self.config.redial_max);
        let mut session = Uuid::new_v4().simple().to_string();
        loop {
            let turn = self.config.together.attaching.acquire().await.expect("never closed");
            let told = status.borrow().clone();
            let asked = self.clock.now();
            let attached = self.attach(&session, told.clone()).await;
            drop(turn);
            let error = match attached {
                Ok(link) => {
                    redial.reset();
                    linked(Some((link, told))).await;
                    renewed(&events, asked).await;
                    self.beat(&session, &events).await
                }
                Err(error) => error,
            };
            linked(None).await;
            if matches!(error, Error::SessionEnded(_) | Error::Fenced(_)) {
                session = Uuid::new_v4().simple().to_string();
            }
            self.tell(error);
            redial.pause().await;
        }
    }

    /// In one line what happens to the agents of this process at about the same time.
    fn tell(&self, error: Error) {
        if self.config.together.interrupted() {
            let config = Arc::clone(&self.config);
            tokio::spawn(async move {
                sleep(TELL_AFTER).await;
                if let Some(interruptions) = config.together.take_interruptions() {
                    tracing::warn!(node = %config.node, %error, interruptions, "the node's session is interrupted");
                }
            });
        }
    }

    async fn attach(&self, session: &str, status: v1::NodeStatus) -> Result<Link, Error> {
        let open = SessionOpen {
            session: session.into(),
            role: "agent".into(),
            name: self.config.node.clone(),
            server: String::new(),
            server_address: String::new(),
            ttl: self.config.session_ttl,
            machine_id: status.machine_id.clone(),
        };
        let attach = self.call(self.api.open_session(open)).await?;
        let hello = v1::NodeHello {
            node: self.config.node.clone(),
            session: session.into(),
            attach,
            status: Some(status),
            labels: self.config.labels.clone(),
        };
        self.call(self.api.register_node(&Self::caller(&self.config), hello)).await?;
        tracing::info!(node = %self.config.node, session, attach, "node registered");
        Ok(Link { session: session.into(), attach })
    }

    /// Returns why it can't go on.
    async fn beat(&self, session: &str, events: &mpsc::Sender<Event>) -> Error {
        let pause: Duration = self.config.session_ttl / BEATS;
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                () = self.doubt.notified() => {
                    return Error::Unavailable("a report was refused under this session".into());
                }
                () = self.deleted.notified() => {
                    return Error::Unavailable("the Node is gone though its agent runs: registering it again".into());
                }
            }
            let asked = self.clock.now();
            if let Err(error) = self.call(self.api.beat(session, None)).await {
                return error;
            }
            renewed(events, asked).await;
        }
    }

    async fn call<T>(&self, call: impl Future<Output = store::Result<T>>) -> store::Result<T> {
        let lost = || Err(Error::OutcomeUnknown("no answer in time".into()));
        timeout(self.config.call_timeout, call).await.unwrap_or_else(|_| lost())
    }
}

async fn renewed(events: &mpsc::Sender<Event>, asked: Time) {
    // Nobody listens any more once the agent ends, and with it this.
    let _ = events.send(Event::Renewed(asked)).await;
}
