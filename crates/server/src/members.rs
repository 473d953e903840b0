//! Who is alive and who owns what, as the store last said: followed once, shared by everybody on this server.

use std::{sync::Arc, time::Duration};

use api::v1;
use futures::{StreamExt, stream};
use model::Fence;
use store::{CoordinationStream, Error, Result};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::warn;

use crate::{
    Stamps,
    shared::{Readiness, Shared},
    witness::Witness,
};

/// How long a session that was just opened may take to show here.
const APPEARS_WITHIN: Duration = Duration::from_secs(1);
/// How long one that ended may still show here.
const GOES_WITHIN: Duration = Duration::from_millis(300);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Members(watch::Receiver<Option<Arc<v1::Coordination>>>);

/// Never ends by itself.
pub async fn run(shared: Arc<Shared>, state: watch::Sender<Option<Arc<v1::Coordination>>>) {
    let mut backoff = BACKOFF_MIN;
    let mut witness = Witness::default();
    loop {
        let error = match shared.backend.coordination().await {
            Ok(mut stream) => loop {
                match stream.next().await {
                    Some(Ok(next)) => {
                        backoff = BACKOFF_MIN;
                        let told = witness.tell(&next, shared.config.stamps.now());
                        witness.take_gaps().for_each(|gap| shared.takeovers.observe(gap));
                        state.send_replace(Some(Arc::new(told)));
                    }
                    Some(Err(error)) => break error.to_string(),
                    None => break "the stream ended".to_owned(),
                }
            },
            Err(error) => error.to_string(),
        };
        if !shared.is_draining() {
            warn!(%error, "the store's coordination ended; following it anew");
        }
        sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

impl Members {
    pub fn new(state: watch::Receiver<Option<Arc<v1::Coordination>>>) -> Self {
        Self(state)
    }

    /// As last heard of; empty before the first word.
    pub fn state(&self) -> Arc<v1::Coordination> {
        self.0.borrow().clone().unwrap_or_default()
    }

    /// The refusal of a write under a claim that is known to have moved on.
    pub fn deposed(&self, fence: &Fence) -> Option<Error> {
        let Fence::Claim { claim, epoch, session } = fence else { return None };
        let state = self.0.borrow();
        let current = state.iter().flat_map(|s| &s.claims).find(|c| c.name == *claim)?;
        let moved = current.epoch > epoch.0 || (current.epoch == epoch.0 && current.owner != *session);
        moved.then(|| {
            Error::Fenced(format!("claim {claim} is at epoch {}; the write is under epoch {epoch}", current.epoch))
        })
    }

    /// The live session of that id; it may just have been opened.
    pub async fn session(&self, id: &str) -> Result<v1::Member> {
        let find = |state: &Option<Arc<v1::Coordination>>| {
            state.iter().flat_map(|s| &s.members).find(|member| member.session == id).cloned()
        };
        let mut state = self.0.clone();
        let found = timeout(APPEARS_WITHIN, state.wait_for(|state| find(state).is_some())).await;
        match found {
            Ok(Ok(state)) => find(&state).ok_or_else(|| Error::SessionEnded(id.into())),
            _ => Err(Error::SessionEnded(id.into())),
        }
    }

    /// The live session of that id, if it's known here yet.
    pub fn known(&self, id: &str) -> Option<v1::Member> {
        let state = self.0.borrow();
        state.iter().flat_map(|s| &s.members).find(|member| member.session == id).cloned()
    }

    /// The live sessions of agents that call themselves so.
    pub fn agents(&self, name: &str) -> Vec<v1::Member> {
        agents(&self.0.borrow(), name).cloned().collect()
    }

    /// Refuses the session where another agent of that name is alive, and doesn't go in a moment.
    pub async fn only_agent(&self, name: &str, session: &str) -> Result<()> {
        let mut state = self.0.clone();
        let alone = |state: &Option<Arc<v1::Coordination>>| agents(state, name).all(|member| member.session == session);
        match timeout(GOES_WITHIN, state.wait_for(alone)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Denied(format!(
                "node {name:?} is another machine's, whose agent is connected; use another name"
            ))),
        }
    }

    /// The state now and whenever it changes, until the server can't be trusted any more.
    pub fn stream(&self, shared: &Shared) -> CoordinationStream {
        let stamps = shared.config.stamps.clone();
        let mut feed = Feed { state: self.0.clone(), readiness: shared.readiness(), stamps };
        feed.state.mark_changed();
        let until_error = |failed: &mut bool, item: Result<Arc<v1::Coordination>>| {
            let item = (!*failed).then_some(item);
            *failed |= item.as_ref().is_some_and(Result::is_err);
            futures::future::ready(item)
        };
        stream::unfold(feed, |mut feed| async { Some((feed.next().await?, feed)) }).scan(false, until_error).boxed()
    }
}

fn agents<'a>(state: &'a Option<Arc<v1::Coordination>>, name: &'a str) -> impl Iterator<Item = &'a v1::Member> {
    let members = state.iter().flat_map(|s| &s.members);
    members.filter(move |member| member.role == "agent" && member.name == name)
}

struct Feed {
    state: watch::Receiver<Option<Arc<v1::Coordination>>>,
    readiness: watch::Receiver<Readiness>,
    stamps: Arc<dyn Stamps>,
}

impl Feed {
    async fn next(&mut self) -> Option<Result<Arc<v1::Coordination>>> {
        loop {
            let now = *self.readiness.borrow_and_update();
            if now != Readiness::Ready {
                return Some(Err(Error::Unavailable(format!("{}: {}", now.reason(), now.message()))));
            }
            tokio::select! {
                changed = self.state.changed() => changed.ok()?,
                changed = self.readiness.changed() => {
                    changed.ok()?;
                    continue;
                }
            }
            let latest = self.state.borrow_and_update().clone();
            if let Some(latest) = latest {
                let time = Some(self.stamps.now().into());
                return Some(Ok(Arc::new(v1::Coordination { time, ..(*latest).clone() })));
            }
        }
    }
}
