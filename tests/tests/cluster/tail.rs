//! A watch that goes on over all failures, recorded as it was told and kept as a world to look at.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use api::v1;
use driftless_tests::history::{Change, Stream, Told};
use futures::StreamExt;
use model::{Filter, Key, Object};
use store::{ResumeToken, Store, WatchItem, WatchOptions};
use tokio::{sync::watch, task::JoinHandle};
use wire::Remote;

use crate::{etcd_log::content, recorder::Recorder};

const REDIAL: Duration = Duration::from_millis(10);

/// Something that was told to have happened.
#[derive(Clone, Debug)]
pub struct Event {
    pub at: Duration,
    pub revision: i64,
    /// The revision up to which it was told, with whatever else changed until then.
    pub told: i64,
    pub key: Key,
    /// None: gone.
    pub resource: Option<v1::Resource>,
}

#[derive(Default)]
struct Seen {
    told: Vec<Told>,
    events: Vec<Event>,
    world: BTreeMap<Key, v1::Resource>,
    at: i64,
    snapshot: Option<BTreeMap<Key, Object>>,
}

pub struct Tail {
    name: String,
    prefix: String,
    seen: Arc<Mutex<Seen>>,
    news: watch::Receiver<u64>,
    recorder: Arc<Recorder>,
    task: JoinHandle<()>,
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows one watch over all its connections; each item is handed on as it came.
pub async fn follow(remote: Arc<Remote>, filter: Filter, mut take: impl FnMut(WatchItem)) {
    let mut resume: Option<ResumeToken> = None;
    loop {
        let options = WatchOptions { filter: filter.clone(), resume: resume.clone(), ..WatchOptions::default() };
        if let Ok(mut stream) = remote.watch(options).await {
            // What begins a snapshot and breaks off is forgotten: the token stays at the last whole one.
            let mut pending: Option<ResumeToken> = None;
            while let Some(Ok(item)) = stream.next().await {
                let reached = match &item {
                    WatchItem::SnapshotStart { incarnation, revision, .. } => {
                        pending = Some(ResumeToken { incarnation: incarnation.clone(), revision: *revision });
                        None
                    }
                    WatchItem::SnapshotEnd { revision } => {
                        resume = pending.take().or(resume);
                        Some(*revision)
                    }
                    WatchItem::Changes(group) => Some(group.to),
                    WatchItem::Bookmark(bookmark) => Some(bookmark.revision),
                    WatchItem::Snapshot(_) => None,
                    WatchItem::End { .. } => break,
                };
                if let (Some(token), Some(revision)) = (&mut resume, reached) {
                    token.revision = token.revision.max(revision);
                }
                take(item);
            }
        }
        tokio::time::sleep(REDIAL).await;
    }
}

impl Tail {
    /// Of one kind, or of everything.
    pub fn follow(name: &str, remote: Arc<Remote>, kind: &str, recorder: Arc<Recorder>) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let (sender, news) = watch::channel(0);
        let filter = if kind.is_empty() { Filter::default() } else { Filter::kind(kind) };
        let prefix = if kind.is_empty() { String::new() } else { format!("{kind}/") };
        let task = {
            let (seen, recorder) = (seen.clone(), recorder.clone());
            tokio::spawn(follow(remote, filter, move |item| {
                locked(&seen).take(recorder.now(), item);
                sender.send_modify(|count| *count += 1);
            }))
        };
        Self { name: name.into(), prefix, seen, news, recorder, task }
    }

    /// Looks at the world whenever it changes, until it's as wanted: a world that has all that was declared before, else
    /// it would be found as wanted while it's still the old one.
    #[track_caller]
    pub fn until<'a, T: 'a>(
        &'a self,
        what: &'a str,
        within: Duration,
        mut wanted: impl FnMut(&BTreeMap<Key, v1::Resource>) -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        let declared = self.recorder.acknowledged();
        self.look(what, within, move |seen| (seen.at >= declared).then(|| wanted(&seen.world)).flatten())
    }

    /// The first such event from then on.
    #[track_caller]
    pub fn event<'a>(
        &'a self,
        what: &'a str,
        from: Instant,
        within: Duration,
        mut wanted: impl FnMut(&Event) -> bool + 'a,
    ) -> impl Future<Output = Event> + 'a {
        let from = self.recorder.at(from);
        self.look(what, within, move |seen| {
            let start = seen.events.partition_point(|event| event.at < from);
            seen.events[start..].iter().find(|event| wanted(event)).cloned()
        })
    }

    pub async fn reached(&self, revision: i64, within: Duration) {
        self.look(&format!("revision {revision}"), within, |seen| (seen.at >= revision).then_some(())).await;
    }

    /// Whether anything changes within that time.
    pub async fn changes_within(&self, within: Duration) -> bool {
        let before = locked(&self.seen).events.len();
        self.look_for(within, |seen| (seen.events.len() > before).then_some(())).await.is_some()
    }

    pub fn look_now<T>(&self, look: impl FnOnce(&BTreeMap<Key, v1::Resource>) -> T) -> T {
        look(&locked(&self.seen).world)
    }

    pub fn events(&self) -> Vec<Event> {
        locked(&self.seen).events.clone()
    }

    async fn look<T>(&self, what: &str, within: Duration, wanted: impl FnMut(&Seen) -> Option<T>) -> T {
        match self.look_for(within, wanted).await {
            Some(found) => found,
            None => {
                let seen = locked(&self.seen);
                let last: Vec<String> =
                    seen.events.iter().rev().take(5).map(|e| format!("{} {}", e.revision, e.key)).collect();
                panic!("{what}: not within {within:?}; at {}, last {last:?}", seen.at);
            }
        }
    }

    async fn look_for<T>(&self, within: Duration, mut wanted: impl FnMut(&Seen) -> Option<T>) -> Option<T> {
        let deadline = tokio::time::Instant::now() + within;
        let mut news = self.news.clone();
        loop {
            news.borrow_and_update();
            if let Some(found) = wanted(&locked(&self.seen)) {
                return Some(found);
            }
            tokio::time::timeout_at(deadline, news.changed()).await.ok()?.ok()?;
        }
    }

    pub fn into_stream(self) -> Stream {
        let told = std::mem::take(&mut locked(&self.seen).told);
        Stream { name: self.name.clone(), prefix: self.prefix.clone(), told }
    }
}

/// As the checker takes it; what is neither told nor promised is none.
pub fn told(item: &WatchItem) -> Option<Told> {
    match item {
        WatchItem::Changes(group) => {
            let changes = group.changes.iter().map(|change| match change {
                store::Change::Put(object) => Change::Put {
                    key: object.key.text().into(),
                    revision: object.revision.0,
                    content: content(&object.bytes),
                },
                store::Change::Deleted { key, uid, .. } => Change::Deleted { key: key.text().into(), uid: uid.clone() },
            });
            let (from, to) = (group.from.0, group.to.0);
            Some(Told::Group { from, to, coalesced: group.coalesced, changes: changes.collect() })
        }
        WatchItem::Bookmark(bookmark) => Some(Told::Bookmark { revision: bookmark.revision.0 }),
        _ => None,
    }
}

impl Seen {
    fn take(&mut self, at: Duration, item: WatchItem) {
        self.told.extend(told(&item));
        match item {
            WatchItem::SnapshotStart { .. } => self.snapshot = Some(BTreeMap::new()),
            WatchItem::Snapshot(objects) => {
                let snapshot = self.snapshot.as_mut().expect("a snapshot has a start");
                snapshot.extend(objects.into_iter().map(|object| (object.key.clone(), object)));
            }
            WatchItem::SnapshotEnd { revision } => {
                let objects = self.snapshot.take().expect("a snapshot has a start");
                let all = objects.values().map(|o| (o.key.text().to_owned(), (o.revision.0, content(&o.bytes))));
                self.told.push(Told::Snapshot { revision: revision.0, all: all.collect() });
                self.world = objects.into_iter().map(|(key, o)| (key, o.resource().expect("decodes"))).collect();
                self.at = self.at.max(revision.0);
            }
            WatchItem::Changes(group) => {
                for change in group.changes {
                    self.change(at, group.to.0, change);
                }
                self.at = group.to.0;
            }
            WatchItem::Bookmark(bookmark) => self.at = self.at.max(bookmark.revision.0),
            WatchItem::End { .. } => {}
        }
    }

    fn change(&mut self, at: Duration, told: i64, change: store::Change) {
        match change {
            store::Change::Put(object) => {
                let resource = object.resource().expect("decodes");
                self.world.insert(object.key.clone(), resource.clone());
                let (key, revision) = (object.key, object.revision.0);
                self.events.push(Event { at, revision, told, key, resource: Some(resource) });
            }
            store::Change::Deleted { key, revision, .. } => {
                self.world.remove(&key);
                self.events.push(Event { at, revision: revision.0, told, key, resource: None });
            }
        }
    }
}
