//! What makes a watcher look: its bell, its alarm, and another set of shards. Each is asked to wake only where that isn't
//! arranged yet, since asking all of them would cost as much as delivering a small event.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use store::ShardSet;
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

use crate::shared::{Bell, Place, Wakes};

pub struct Waiting {
    bell: Arc<Bell>,
    _place: Place,
    /// While a node's watcher waits for a revision, which may come with another node's change.
    for_everything: Option<Place>,
    alarm: Pin<Box<Sleep>>,
    /// The alarm wakes `waker` when it's due.
    alarm_set: bool,
    shards: Option<Shards>,
    waker: Option<Waker>,
}

/// The set that is asked for, and who waits until it's another.
struct Shards {
    asked: watch::Receiver<ShardSet>,
    changed: Pin<Box<dyn Future<Output = ()> + Send>>,
    arranged: bool,
}

impl Waiting {
    pub fn new(wakes: &Wakes, node: &str, due: Instant, shards: Option<watch::Receiver<ShardSet>>) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            _place: wakes.hang(node, &bell),
            bell,
            for_everything: None,
            alarm: Box::pin(sleep_until(due)),
            alarm_set: false,
            shards: shards.map(Shards::new),
            waker: None,
        }
    }

    /// Whether it's time to look. Where not, the caller's task is woken when it is.
    pub fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
            self.bell.wakes(cx.waker());
            self.alarm_set = false;
            if let Some(shards) = &mut self.shards {
                shards.arranged = false;
            }
        }
        let heard = self.bell.heard();
        let due = self.is_due(cx);
        let shards = self.shards.as_mut().is_some_and(|shards| shards.have_changed(cx));
        heard || due || shards
    }

    fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        if self.alarm_set {
            return self.alarm.is_elapsed();
        }
        self.alarm_set = true;
        self.alarm.as_mut().poll(cx).is_ready()
    }

    /// Look then at the latest.
    pub fn until(&mut self, due: Instant) {
        // A timer costs more than a look: it's kept while it's due at the same time.
        if self.alarm.deadline() != due {
            self.alarm.as_mut().reset(due);
            self.alarm_set = false;
        }
    }

    /// Whether to look at every change, also at those of other nodes.
    pub fn for_everything(&mut self, wakes: &Wakes, wanted: bool) {
        match wanted {
            false => self.for_everything = None,
            true if self.for_everything.is_none() => self.for_everything = Some(wakes.hang("", &self.bell)),
            true => {}
        }
    }

    /// The set that was asked for since this was called last.
    pub fn another_set(&mut self) -> Option<ShardSet> {
        let asked = &mut self.shards.as_mut()?.asked;
        asked.has_changed().unwrap_or(false).then(|| asked.borrow_and_update().clone())
    }
}

impl Shards {
    fn new(asked: watch::Receiver<ShardSet>) -> Self {
        Self { changed: Box::pin(next(asked.clone())), asked, arranged: false }
    }

    fn have_changed(&mut self, cx: &mut Context<'_>) -> bool {
        while !self.arranged {
            match self.changed.as_mut().poll(cx) {
                Poll::Pending => self.arranged = true,
                Poll::Ready(()) => self.changed = Box::pin(next(self.asked.clone())),
            }
        }
        let changed = self.asked.has_changed().unwrap_or(false);
        self.arranged &= !changed;
        changed
    }
}

/// Until the set is another than now. For ever where nobody can change it any more.
async fn next(mut asked: watch::Receiver<ShardSet>) {
    asked.mark_unchanged();
    if asked.changed().await.is_err() {
        std::future::pending().await
    }
}
