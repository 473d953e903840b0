//! The watch on what concerns this node, opened again whenever it breaks, and from the start once a sweep.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use model::{Filter, Revision};
use rand::Rng;
use store::{Api, ResumeToken, WatchItem, WatchOptions};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};

use crate::{assigned, config::Config, redial::Redial, worker::Event};

pub enum Feed {
    /// A server tells what happens from now on.
    Open,
    Item(WatchItem),
    Broken,
}

pub struct Watcher {
    pub config: Arc<Config>,
    pub api: Arc<dyn Api>,
    /// Somebody wants to know all of it anew.
    pub relist: Arc<Notify>,
}

impl Watcher {
    /// Goes on until it is dropped.
    pub async fn watch(self, events: mpsc::Sender<Event>) {
        let mut redial = Redial::new(self.config.redial_max);
        let mut token = Token::default();
        loop {
            match self.follow(&mut token, &mut redial, &events).await {
                Ended::Sweep => {
                    token = Token::default();
                    continue;
                }
                Ended::Broken(why) => tracing::debug!(node = %self.config.node, why, "the watch ended"),
            }
            tell(&events, Feed::Broken).await;
            redial.pause().await;
        }
    }

    async fn follow(&self, token: &mut Token, redial: &mut Redial, events: &mpsc::Sender<Event>) -> Ended {
        let sweep = self.next_sweep();
        let resume = token.resume();
        // One that goes on says at once that it does, also where nothing happened: any store has come that far.
        let min_revision = if resume.is_some() { Revision(1) } else { Revision::ZERO };
        let filter = filter(&self.config.node);
        let options = WatchOptions { filter, resume, min_revision, ..Default::default() };
        let mut stream = match self.api.watch(options).await {
            Ok(stream) => stream,
            Err(error) => return Ended::Broken(error.to_string()),
        };
        tell(events, Feed::Open).await;
        loop {
            let item = tokio::select! {
                item = stream.next() => item,
                () = self.relist.notified() => return Ended::Sweep,
                () = sleep_until(sweep) => return Ended::Sweep,
            };
            match item {
                Some(Ok(WatchItem::End { reason, message })) => return Ended::Broken(format!("{reason}: {message}")),
                Some(Ok(item)) => {
                    redial.reset();
                    token.see(&item);
                    tell(events, Feed::Item(item)).await;
                }
                Some(Err(error)) => return Ended::Broken(error.to_string()),
                None => return Ended::Broken("end of the stream".into()),
            }
        }
    }

    fn next_sweep(&self) -> Instant {
        let jitter: f64 = rand::rng().random_range(0.5..1.5);
        Instant::now() + self.config.sweep.mul_f64(jitter).max(Duration::from_millis(1))
    }
}

async fn tell(events: &mpsc::Sender<Event>, feed: Feed) {
    // Nobody listens any more once the agent ends, and with it this.
    let _ = events.send(Event::Feed(feed)).await;
}

enum Ended {
    Sweep,
    Broken(String),
}

const KINDS: [&str; 3] = [assigned::INSTANCE, assigned::NODE, assigned::RELEASE];

fn filter(node: &str) -> Filter {
    Filter { kinds: KINDS.map(String::from).into(), node: node.into(), ..Filter::default() }
}

/// From where the watch can go on: only from a state that was seen whole.
#[derive(Default)]
struct Token {
    incarnation: String,
    revision: Revision,
    whole: bool,
}

impl Token {
    fn resume(&self) -> Option<ResumeToken> {
        let token = ResumeToken { incarnation: self.incarnation.clone(), revision: self.revision };
        self.whole.then_some(token)
    }

    fn see(&mut self, item: &WatchItem) {
        match item {
            WatchItem::SnapshotStart { incarnation, .. } => {
                *self = Self { incarnation: incarnation.clone(), ..Self::default() };
            }
            WatchItem::SnapshotEnd { revision } => (self.revision, self.whole) = (*revision, true),
            WatchItem::Changes(group) => self.revision = group.to,
            WatchItem::Bookmark(bookmark) => self.revision = bookmark.revision,
            WatchItem::Snapshot(_) | WatchItem::End { .. } => {}
        }
    }
}
