//! Fast crash detection: a session whose stream broke here, and that nobody attached elsewhere, ends before its TTL.
//!
//! The kernel closes a dead process's connections, so a broken stream is a good hint that its owner is gone. It's no
//! proof: hence the pause for re-attaching, the compare of the attach number in the store, and the brake, which holds
//! when so many streams break at once that the network is the likelier cause. Wrong guesses are safe, since every write is
//! fenced; they only cost a takeover.
//!
//! Never ends a session while this server drains or can't confirm its store: then it's the server that goes away.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use store::Store;
use tokio::{runtime::Handle, sync::watch::Receiver, time::Instant};

use super::drain::Drain;

/// The brake never holds for so few breaks.
const STORM_MIN: usize = 2;

#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From the break until the session is ended. Clients redial at once, which takes a few milliseconds.
    pub reattach: Duration,
    /// Breaks within this time are one storm.
    pub storm: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { reattach: Duration::from_millis(300), storm: Duration::from_secs(1) }
    }
}

pub struct EarlyEnd {
    store: Arc<dyn Store>,
    times: Times,
    drain: Drain,
    ready: Option<Receiver<bool>>,
    brake: Mutex<Brake>,
    runtime: Handle,
}

impl EarlyEnd {
    /// Within a runtime, on which it acts later.
    pub fn new(store: Arc<dyn Store>, times: Times, drain: Drain, ready: Option<Receiver<bool>>) -> Arc<Self> {
        Arc::new(Self { store, times, drain, ready, brake: Mutex::default(), runtime: Handle::current() })
    }

    /// A stream that serves a session from now on. Dropping it, unless it was closed, is the break.
    pub fn attach(self: &Arc<Self>, session: String, attach: u64) -> Attached {
        self.with_brake(|brake| brake.open += 1);
        Attached { early_end: self.clone(), session, attach, closed: false }
    }

    async fn end_unless_reattached(self: Arc<Self>, session: String, attach: u64) {
        tokio::time::sleep(self.times.reattach).await;
        if let Some(reason) = self.held_back() {
            tracing::warn!(%session, attach, reason, "session stream broke; left to the session's TTL");
            return;
        }
        match self.store.end_session(&session, Some(attach)).await {
            Ok(true) => tracing::info!(%session, attach, "session stream broke; session ended early"),
            Ok(false) => tracing::debug!(%session, attach, "session stream broke; attached anew since"),
            Err(error) => tracing::warn!(%session, attach, %error, "session stream broke; ending it early failed"),
        }
    }

    fn held_back(&self) -> Option<&'static str> {
        if self.drain.has_begun() {
            return Some("this server drains");
        }
        if self.ready.as_ref().is_some_and(|ready| !*ready.borrow()) {
            return Some("this server can't confirm its store");
        }
        let storm = self.with_brake(|brake| brake.holds(Instant::now(), self.times.storm));
        storm.then_some("too many streams broke at once")
    }

    fn with_brake<T>(&self, f: impl FnOnce(&mut Brake) -> T) -> T {
        f(&mut self.brake.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A session's stream on this server.
pub struct Attached {
    early_end: Arc<EarlyEnd>,
    session: String,
    attach: u64,
    closed: bool,
}

impl Attached {
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Ends in order: by the client's wish, or by this server's.
    pub fn close(mut self) {
        self.closed = true;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let early_end = &self.early_end;
        early_end.with_brake(|brake| match self.closed {
            true => brake.open -= 1,
            false => brake.broke(Instant::now(), early_end.times.storm),
        });
        if !self.closed {
            let ending = early_end.clone().end_unless_reattached(std::mem::take(&mut self.session), self.attach);
            early_end.runtime.spawn(ending);
        }
    }
}

/// Tells one crash from a storm. Values only.
#[derive(Debug, Default)]
struct Brake {
    open: usize,
    /// When streams broke, within the storm's time; at most as many as were open.
    breaks: VecDeque<Instant>,
}

impl Brake {
    fn broke(&mut self, now: Instant, storm: Duration) {
        self.forget(now, storm);
        self.open -= 1;
        self.breaks.push_back(now);
    }

    /// More than `STORM_MIN`, and more than half of the streams that were open, broke within the storm's time.
    fn holds(&mut self, now: Instant, storm: Duration) -> bool {
        self.forget(now, storm);
        let broken = self.breaks.len();
        broken > STORM_MIN && 2 * broken > self.open + broken
    }

    fn forget(&mut self, now: Instant, storm: Duration) {
        while self.breaks.front().is_some_and(|broke| now.duration_since(*broke) > storm) {
            self.breaks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
