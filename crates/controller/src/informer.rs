//! Keeps the cache like the store, by a watch on the shards that are wanted, and says which keys to look at again.
//!
//! A watch may end, lag, or lie; then it's opened again from where it was, or what it covers is listed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::StreamExt;
use kinds::{KINDS, RECONCILERS, Reconciler, World};
use model::{Filter, Key, Object, Revision, Time};
use store::{Bookmark, List, Result, ResumeToken, ShardSet, WatchItem, WatchOptions, WatchStream};
use telemetry::spell::Spell;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    Shared,
    cache::{Changed, Listed},
    causes::Came,
    jittered,
    queue::{Lane, Work},
    stats::add,
    watched::{InDoubt, Watched},
};

/// Longest silence of a watch that should bring a bookmark every 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Longest wait for the snapshot of shards that were asked for on the open watch.
const UNCOVERED_MAX: Duration = Duration::from_secs(5);

pub async fn run(shared: Arc<Shared>) {
    let mut informer = Informer { token: None, opened: None, snapshot: None, unlisted: Spell::default(), shared };
    let (mut pause, mut spell) = (informer.shared.config.backoff_min, Spell::default());
    loop {
        let before = informer.shared.cache.revision();
        if let Err(error) = informer.follow().await
            && let Some(times) = spell.failed(1, Instant::now())
        {
            warn!(%error, times, "watch ended; opening it again");
        }
        // One that told something was no failure, however it ended.
        if informer.shared.cache.revision() != before {
            pause = informer.shared.config.backoff_min;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(informer.shared.config.redial_max);
        informer.shared.cache.set_live_since_now();
    }
}

struct Informer {
    shared: Arc<Shared>,
    /// Where the cache is.
    token: Option<ResumeToken>,
    /// What the watch was opened with, until its first snapshot.
    opened: Option<Vec<u32>>,
    /// One that is coming in.
    snapshot: Option<Snapshot>,
    /// Lists that failed.
    unlisted: Spell,
}

struct Snapshot {
    incarnation: String,
    objects: Vec<Object>,
    /// The shards it speaks of.
    shards: Vec<u32>,
    partial: bool,
}

pub fn list_of(shards: &ShardSet) -> Vec<u32> {
    shards.as_deref().cloned().unwrap_or_default()
}

fn kinds() -> Vec<String> {
    KINDS.iter().map(|kind| kind.info().kind.to_owned()).collect()
}

impl Informer {
    /// One watch, from opening to its end.
    async fn follow(&mut self) -> Result<()> {
        let mut wanted = self.shared.wanted.subscribe();
        let shards = list_of(&wanted.borrow_and_update());
        // What was let go while no watch was open must not pass for covered when it's wanted again.
        self.cover(&shards);
        self.snapshot = None;
        self.opened = Some(shards.clone());
        let options = WatchOptions {
            filter: Filter { kinds: kinds(), shards: Some(shards.clone()), ..Filter::default() },
            // A resumed watch brings changes only: that is not enough where the shards are others now.
            resume: self.token.clone().filter(|_| self.shared.cache.covers_all(&shards)),
            min_revision: Revision::ZERO,
            shards: Some(self.shared.watched.subscribe()),
        };
        let stream = self.shared.store.watch(options).await?;
        self.shared.stats.watching.set(1);
        let ended = self.pump(stream, wanted, shards).await;
        self.shared.stats.watching.set(0);
        ended
    }

    async fn pump(
        &mut self,
        mut stream: WatchStream,
        mut wanted: watch::Receiver<ShardSet>,
        opened: Vec<u32>,
    ) -> Result<()> {
        let mut uncovered: Option<Instant> = None;
        let mut watched = Watched::open(&opened);
        loop {
            let waits = self.snapshot.is_none() && !self.shared.cache.covers_all(&list_of(&wanted.borrow()));
            uncovered = waits.then(|| uncovered.unwrap_or_else(Instant::now));
            let item = tokio::select! {
                item = tokio::time::timeout(SILENCE_MAX, stream.next()) => item,
                () = sleep_until(uncovered.unwrap_or_else(Instant::now) + UNCOVERED_MAX), if waits => {
                    return Err(store::Error::Unavailable("no snapshot of some shards came".into()));
                }
                Ok(()) = wanted.changed() => {
                    let shards = list_of(&wanted.borrow_and_update());
                    let in_doubt = |InDoubt| store::Error::Unavailable("shards just let go are wanted again".into());
                    watched.want(&shards, Instant::now()).map_err(in_doubt)?;
                    self.cover(&watched.shards());
                    continue;
                }
                () = sleep_until(watched.due().unwrap_or_else(Instant::now)), if watched.due().is_some() => {
                    watched.pass(Instant::now());
                    self.cover(&watched.shards());
                    continue;
                }
            };
            match item {
                Ok(Some(Ok(WatchItem::End { reason, message }))) => {
                    info!(%reason, %message, "the server ended the watch");
                    return Ok(());
                }
                Ok(Some(Ok(item))) => self.handle(item).await?,
                Ok(Some(Err(error))) => return Err(error),
                Ok(None) => return Err(store::Error::Unavailable("the stream ended without a reason".into())),
                Err(_) => return Err(store::Error::Unavailable("no bookmark in time".into())),
            }
        }
    }

    /// What the watch is asked for, and the cache keeps.
    fn cover(&self, shards: &[u32]) {
        self.shared.watched.send_if_modified(|watched| {
            let changed = list_of(watched) != shards;
            *watched = Some(Arc::new(shards.to_vec()));
            changed
        });
        self.shared.cache.forget_all_but(shards);
    }

    async fn handle(&mut self, item: WatchItem) -> Result<()> {
        match item {
            WatchItem::SnapshotStart { incarnation, time, partial, .. } => {
                self.shared.cache.set_clock(time);
                // A whole one in the middle of a watch may not speak yet of what was asked for last; that gets one of its
                // own then.
                let all = self.opened.take().unwrap_or_else(|| self.shared.cache.covered().into_iter().collect());
                let (shards, partial) = partial.map_or((all, false), |shards| (shards, true));
                self.snapshot = Some(Snapshot { incarnation, objects: Vec::new(), shards, partial });
            }
            WatchItem::Snapshot(objects) => {
                if let Some(snapshot) = &mut self.snapshot {
                    snapshot.objects.extend(objects);
                }
            }
            WatchItem::SnapshotEnd { revision } => self.complete(revision)?,
            WatchItem::Changes(group) => {
                let shared = self.shared.clone();
                let _noting = shared.causes.noting();
                let changed = self.shared.cache.apply(&group.changes);
                self.shared.measure_lag(&changed);
                self.reached(group.to);
                wake(&shared, &changed, Came::Live);
            }
            WatchItem::Bookmark(bookmark) => self.bookmark(bookmark).await,
            WatchItem::End { .. } => {}
        }
        Ok(())
    }

    fn reached(&mut self, revision: Revision) {
        if let Some(token) = &mut self.token {
            token.revision = token.revision.max(revision);
        }
        self.shared.cache.advance(revision);
    }

    fn complete(&mut self, revision: Revision) -> Result<()> {
        let Some(snapshot) = self.snapshot.take() else { return Ok(()) };
        let shared = self.shared.clone();
        let cache = &shared.cache;
        let known = cache.incarnation();
        if !known.is_empty() && known != snapshot.incarnation {
            warn!(incarnation = %snapshot.incarnation, "the store is another one now: all that was known is forgotten");
            // First: what is held there is held in no other. The member hears of it from the cache.
            self.shared.holdings.end_all();
        }
        let _noting = shared.causes.noting();
        cache.begin(&snapshot.incarnation);
        let listed = Listed {
            incarnation: &snapshot.incarnation,
            objects: &snapshot.objects,
            shards: &snapshot.shards,
            global: !snapshot.partial,
            revision,
        };
        // A server may lag behind the one before it.
        let older = || store::Error::Unavailable("the server's snapshot is older than what was seen".into());
        let changed = cache.complete(&listed).ok_or_else(older)?;
        // Nor what was let go while this was on its way: its changes are not told any more.
        cache.forget_all_but(&list_of(&self.shared.watched.borrow()));
        self.shared.holdings.look_again();
        if !snapshot.partial {
            add(&self.shared.stats.snapshots, 1);
            cache.set_live_since_now();
            self.token = Some(ResumeToken { incarnation: snapshot.incarnation, revision });
        }
        debug!(objects = snapshot.objects.len(), shards = snapshot.shards.len(), %revision, "snapshot complete");
        self.reached(revision);
        wake(&shared, &changed, Came::Listed(cache.now()));
        Ok(())
    }

    async fn bookmark(&mut self, bookmark: Bookmark) {
        self.shared.cache.set_clock(bookmark.time);
        self.reached(bookmark.revision);
        if bookmark.digests.is_empty() || self.shared.cache.revision() != bookmark.revision {
            return;
        }
        self.shared.checked();
        let differing = self.shared.cache.differing(&bookmark.digests);
        if differing.is_empty() {
            return;
        }
        let watched = list_of(&self.shared.watched.borrow());
        let shards: Vec<u32> = watched.into_iter().filter(|shard| self.shared.cache.covers(*shard)).collect();
        let shards: Vec<u32> = match shards.iter().any(|shard| differing.contains(shard)) {
            true => shards.into_iter().filter(|shard| differing.contains(shard)).collect(),
            // What differs is of a global kind, which any list brings along.
            false => Vec::new(),
        };
        warn!(?differing, "the cache differs from the server's in these shards: listing");
        if let Err(error) = relist(&self.shared, &shards).await
            && let Some(times) = self.unlisted.failed(1, Instant::now())
        {
            warn!(%error, times, "listing failed; the next bookmark or sweep tries again");
        }
    }
}

impl Shared {
    /// How old the newest of the changes is that arrived together, by the servers' clock.
    fn measure_lag(&self, changed: &[Changed]) {
        let stamps = changed.iter().filter_map(|(_, after)| after.as_ref()?.metadata().updated_time);
        let newest = stamps.map(|stamp| Time::from(&stamp)).max();
        if let Some((now, newest)) = self.cache.now().zip(newest) {
            self.stats.lag.observe(now.since(newest));
        }
    }
}

/// Puts every key to look at again for these changes into the queue.
pub fn wake(shared: &Shared, changed: &[Changed], came: Came) {
    let woken: Vec<Vec<Work>> = shared.cache.world(|world| changed.iter().map(|one| woken_by(world, one)).collect());
    shared.causes.note(changed, &woken, came);
    let woken: BTreeSet<Work> = woken.into_iter().flatten().collect();
    for work in woken {
        shared.queue.add(work, Lane::Change);
    }
}

pub fn woken_by(world: &World, (before, after): &Changed) -> Vec<Work> {
    let items = || before.iter().chain(after);
    let of = |(reconciler, r): (usize, &&'static dyn Reconciler)| {
        items().flat_map(|item| r.wakes(world, item)).map(move |key| Work { reconciler, key }).collect::<Vec<_>>()
    };
    RECONCILERS.iter().enumerate().flat_map(of).collect()
}

/// Lists what these shards (and the global kinds) have and mends the cache. Counts and logs what differed. Returns the
/// revision that the list shows, and of which incarnation of the store.
pub async fn relist(shared: &Shared, shards: &[u32]) -> Result<(String, Revision)> {
    let incarnation = shared.cache.incarnation();
    add(&shared.stats.relists, 1);
    let filter = Filter { kinds: kinds(), shards: Some(shards.to_vec()), ..Filter::default() };
    let mut objects: Vec<Object> = Vec::new();
    let mut after: Option<Key> = None;
    let mut at = None;
    let revision = loop {
        let page = shared.store.list(List { filter: filter.clone(), after, at, ..List::default() }).await?;
        at = Some(page.revision);
        objects.extend(page.objects);
        after = objects.last().map(|object| object.key.clone());
        if !page.more {
            break page.revision;
        }
    };
    let before = shared.cache.revision();
    let _noting = shared.causes.noting();
    let listed = Listed { incarnation: &incarnation, objects: &objects, shards, global: true, revision };
    let Some(changed) = shared.cache.replace(&listed) else {
        return Err(store::Error::WrongIncarnation(shared.cache.incarnation()));
    };
    // What the watch may still bring is no divergence.
    let lied = changed.iter().filter(|(old, new)| {
        let revision = new.as_ref().or(old.as_ref()).map_or(revision, |item| item.revision);
        revision <= before
    });
    for (old, new) in lied {
        add(&shared.stats.divergences, 1);
        let key = new.as_ref().or(old.as_ref()).map(|item| item.key.to_string()).unwrap_or_default();
        let revision = |item: &Option<Arc<kinds::Item>>| item.as_ref().map_or(0, |i| i.revision.0);
        let altered = old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.revision == new.revision);
        warn!(%key, cached = revision(old), stored = revision(new), altered, "the cache was wrong here");
    }
    wake(shared, &changed, Came::Listed(shared.cache.now()));
    Ok((incarnation, revision))
}

#[cfg(test)]
mod tests;
