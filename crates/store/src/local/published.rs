//! What readers and watchers of a store in this process may see, and how they hear that it changed.

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use api::v1;
use futures::{StreamExt, stream};
use tokio::sync::watch;

use crate::{
    CoordinationStream, Error, Result,
    state::{Instant, Staged, State},
};

/// The state behind a lock that nobody holds across an await or a disk write.
#[derive(Debug)]
pub(crate) struct Published {
    state: RwLock<State>,
    progress: watch::Sender<Progress>,
    /// The newest coordination state that somebody asked for, and its version.
    coordination: Mutex<Option<(u64, Arc<v1::Coordination>)>>,
}

/// Says "look again", never what changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub commits: u64,
    pub coordination: u64,
    pub closed: bool,
    /// It can't be written to any more, and nobody meant that.
    pub broken: bool,
}

impl Published {
    pub fn new(state: State) -> Self {
        let progress = watch::Sender::new(Progress { commits: state.head().commits, ..Progress::default() });
        Self { state: RwLock::new(state), progress, coordination: Mutex::new(None) }
    }

    /// A state is only ever changed by whole assignments, so a panicking holder can't leave it half-done for long
    /// enough to matter; and a store that panicked is closed by its owner.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn publish(&self, staged: Staged) {
        self.change(|state| state.publish(staged));
    }

    pub fn beat(&self, session: &str, now: Instant, report: Option<v1::MemberReport>) -> Result<()> {
        self.change(|state| state.beat(session, now, report))
    }

    pub fn compact(&self) {
        self.change(State::compact);
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut state);
        let (commits, coordination) = (state.head().commits, state.coordination_version());
        drop(state);
        self.progress.send_if_modified(|progress| {
            // Two changes may get here in the other order; the counters only grow.
            let next = Progress {
                commits: commits.max(progress.commits),
                coordination: coordination.max(progress.coordination),
                closed: progress.closed,
                broken: progress.broken,
            };
            let modified = next != *progress;
            *progress = next;
            modified
        });
        changed
    }

    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub fn is_closed(&self) -> bool {
        self.progress.borrow().closed
    }

    /// Ends every open stream.
    pub fn close(&self) {
        self.progress.send_modify(|progress| progress.closed = true);
    }

    /// Its writer is gone: it's closed, and whoever waits for that hears so.
    pub fn broke(&self) {
        self.progress.send_modify(|progress| (progress.closed, progress.broken) = (true, true));
    }

    pub async fn broken(&self) {
        // It can't fail: the sender lives in `self`.
        let _ = self.progress().wait_for(|progress| progress.broken).await;
    }

    pub fn coordination_stream(self: &Arc<Self>) -> CoordinationStream {
        let (published, progress) = (self.clone(), self.progress());
        stream::unfold(Some((published, progress, None)), async |cursor| {
            let (published, mut progress, seen) = cursor?;
            match published.next_coordination(&mut progress, seen).await {
                Ok((version, now)) => Some((Ok(now), Some((published, progress, Some(version))))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    async fn next_coordination(
        &self,
        progress: &mut watch::Receiver<Progress>,
        seen: Option<u64>,
    ) -> Result<(u64, Arc<v1::Coordination>)> {
        loop {
            if progress.borrow_and_update().closed {
                return Err(closed());
            }
            let now = self.coordination();
            if seen != Some(now.0) {
                return Ok(now);
            }
            progress.changed().await.map_err(|_| closed())?;
        }
    }

    /// Built once for all who watch.
    fn coordination(&self) -> (u64, Arc<v1::Coordination>) {
        let state = self.read();
        let version = state.coordination_version();
        let mut kept = self.coordination.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((at, coordination)) if *at == version => (version, coordination.clone()),
            _ => kept.insert((version, Arc::new(state.coordination()))).clone(),
        }
    }
}

pub(crate) fn closed() -> Error {
    Error::Unavailable("the store was closed".into())
}
