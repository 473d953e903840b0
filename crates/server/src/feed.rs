//! Keeps the cache fed from the backend's watch: goes on where it broke off, and lists anew as soon as the watch said
//! what can't be, or somebody doubts it. What a relist finds reaches watchers as one coalesced group.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use model::{Object, Revision};
use store::{Error, Group, Result, ResumeToken, WatchItem, WatchOptions};
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::{founding, shared::Shared};

/// Groups taken over under one lock, before watchers are woken.
const GROUPS_AT_ONCE: usize = 64;
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A list of which nothing comes for so long is begun anew.
const LIST_SILENCE_MAX: Duration = Duration::from_secs(5);
/// Keys of a difference that are named in the log.
const NAMED_MAX: usize = 5;

/// How a watch of the backend ended.
enum Ended {
    /// The stream did: go on from the last revision.
    Broken(String),
    /// Its word can't be taken: start from a snapshot.
    Doubted,
}

/// Never ends by itself.
pub async fn run(shared: Arc<Shared>) {
    let mut listing = true;
    let mut backoff = BACKOFF_MIN;
    loop {
        let before = shared.cache().revision;
        match follow(&shared, &mut listing).await {
            Ended::Doubted => listing = true,
            Ended::Broken(why) => {
                shared.counters.feed_reconnects.add(1);
                // An embedded store ends with its server.
                if !shared.is_draining() {
                    warn!(server = %shared.config.name, %why, "the store's watch ended; opening another");
                }
                backoff = if shared.cache().revision > before { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
                sleep(backoff).await;
            }
        }
    }
}

/// `listing`: nothing less than a snapshot will do, until one is complete.
async fn follow(shared: &Shared, listing: &mut bool) -> Ended {
    let options = WatchOptions { resume: token(shared).filter(|_| !*listing), ..Default::default() };
    let stream = match shared.backend.watch(options).await {
        Ok(stream) => stream,
        Err(error) => return Ended::Broken(error.to_string()),
    };
    let mut stream = stream.ready_chunks(GROUPS_AT_ONCE);
    let mut snapshot: Option<Snapshot> = None;
    loop {
        let items = tokio::select! {
            items = stream.next() => items,
            // A list under way is what whoever doubts asks for: begun anew each time, a long one would never end.
            () = shared.relist.notified(), if !*listing => return Ended::Doubted,
            () = sleep(LIST_SILENCE_MAX), if *listing => {
                return Ended::Broken(format!("nothing came of a list for {LIST_SILENCE_MAX:?}"));
            }
        };
        let Some(items) = items else { return Ended::Broken("the stream ended".into()) };
        if begins_another(shared, &items)
            && let Err(error) = check_shards(shared).await
        {
            return Ended::Broken(error.to_string());
        }
        match take(shared, &mut snapshot, items) {
            Ok(false) => {}
            Ok(true) => {
                if let Err(error) = found(shared).await {
                    return Ended::Broken(error.to_string());
                }
                *listing = false;
                // It was doubted before. What is wrong still is doubted again.
                let _ = shared.relist.notified().now_or_never();
            }
            Err(ended) => return ended,
        }
        // A token may be answered by a snapshot, too.
        *listing |= snapshot.is_some();
    }
}

/// Whether a snapshot of another store than before begins there.
fn begins_another(shared: &Shared, items: &[Result<WatchItem>]) -> bool {
    let cache = shared.cache();
    let is_another = |item: &Result<WatchItem>| match item {
        Ok(WatchItem::SnapshotStart { incarnation, .. }) => *incarnation != cache.incarnation,
        _ => false,
    };
    items.iter().any(is_another)
}

/// The number of shards is for the life of a cluster, but another store is another cluster. What was computed from the number
/// found at the start is in too many places to be changed below them.
async fn check_shards(shared: &Shared) -> Result<()> {
    let (found, now) = (shared.config.shards, shared.backend.cluster().await?.shards);
    if found != now {
        error!(server = %shared.config.name, found, now, "the store has another number of shards than at the start");
        shared.broke();
    }
    Ok(())
}

/// Another store than before may be an empty one.
async fn found(shared: &Shared) -> Result<()> {
    let lacks = shared.cache().get(&founding::placement()).is_none();
    if lacks { founding::make_placement(&shared.config, shared.backend.as_ref()).await } else { Ok(()) }
}

fn token(shared: &Shared) -> Option<ResumeToken> {
    let cache = shared.cache();
    let token = ResumeToken { incarnation: cache.incarnation.clone(), revision: cache.revision };
    (!token.incarnation.is_empty()).then_some(token)
}

/// A snapshot that isn't complete yet.
struct Snapshot {
    incarnation: String,
    objects: Vec<Object>,
}

/// Whether a snapshot came to its end.
fn take(shared: &Shared, snapshot: &mut Option<Snapshot>, items: Vec<Result<WatchItem>>) -> Result<bool, Ended> {
    let mut groups = Vec::new();
    let mut complete = false;
    for item in items {
        match item.map_err(|error| Ended::Broken(error.to_string()))? {
            WatchItem::Changes(group) => groups.push(group),
            WatchItem::SnapshotStart { incarnation, .. } => {
                apply(shared, std::mem::take(&mut groups))?;
                *snapshot = Some(Snapshot { incarnation, objects: Vec::new() });
            }
            WatchItem::Snapshot(objects) => {
                let Some(snapshot) = snapshot else { return Err(Ended::Doubted) };
                snapshot.objects.extend(objects);
            }
            WatchItem::SnapshotEnd { revision } => {
                let Some(snapshot) = snapshot.take() else { return Err(Ended::Doubted) };
                install(shared, snapshot, revision)?;
                complete = true;
            }
            // The revision moves by commits alone, each of which has a group.
            WatchItem::Bookmark(_) => {}
            WatchItem::End { reason, message } => return Err(Ended::Broken(format!("{reason}: {message}"))),
        }
    }
    apply(shared, groups)?;
    Ok(complete)
}

fn apply(shared: &Shared, groups: Vec<Group>) -> Result<(), Ended> {
    if groups.is_empty() {
        return Ok(());
    }
    shared.counters.groups.add(groups.len());
    shared.apply(groups).map_err(|lie| {
        shared.counters.head_gaps.add(1);
        warn!(server = %shared.config.name, %lie, "the store's watch can't be trusted; listing anew");
        Ended::Doubted
    })
}

fn install(shared: &Shared, snapshot: Snapshot, revision: Revision) -> Result<(), Ended> {
    let (known, seen) = {
        let cache = shared.cache();
        (cache.incarnation == snapshot.incarnation, cache.revision)
    };
    if known && revision < seen {
        return Err(Ended::Broken(format!("its snapshot is of revision {revision}, but {seen} was seen")));
    }
    let another = !known && seen > Revision::ZERO;
    shared.counters.relists.add(1);
    let healed = shared.install(&snapshot.incarnation, revision, &snapshot.objects);
    shared.filled(another);
    info!(server = %shared.config.name, %revision, resources = snapshot.objects.len(), "took a snapshot of the store");
    if !healed.differed.is_empty() {
        shared.counters.healed.add(healed.differed.len());
        let named = &healed.differed[..healed.differed.len().min(NAMED_MAX)];
        warn!(server = %shared.config.name, count = healed.differed.len(), ?named, "the cache differed from the store; healed");
    }
    Ok(())
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Broken(error.to_string())
    }
}
