//! One watch, pulled by whoever reads it: a position in the ring, a filter, and at most one look's worth of items. So a
//! slow reader holds nothing but that; what it lags is coalesced when it looks again.

mod digests;
mod opening;
mod waiting;

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt};
use model::{Filter, Object, Revision};
use store::{Bookmark, Result, ShardSet, WatchItem, WatchOptions, WatchStream};
use tokio::time::Instant;

use crate::{
    cache::Cache,
    ring::Position,
    seen,
    shared::{Readiness, Shared},
};

use digests::digests;
pub use opening::open;
use waiting::Waiting;

/// Groups that a watcher may lag before they are coalesced.
pub const LAG_GROUPS_MAX: usize = 256;
/// Resources in one part of a snapshot.
const PART_MAX: usize = 500;
/// A watcher that sees nothing of what happens is told how far it is this soon,
const SOON: Duration = Duration::from_millis(5);
/// or, where there are many, so much later for each: at most 10,000 such bookmarks a second in all.
const SOON_PER_WATCHER: Duration = Duration::from_micros(100);

/// A node's watcher is woken for its own alone; it looks this often so that the ring doesn't outrun it.
const NODE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// The watch itself, without looking at whether it may be opened.
pub fn stream_of(shared: Arc<Shared>, options: WatchOptions) -> WatchStream {
    Watcher::new(shared, options).boxed()
}

/// Where it is.
#[derive(Clone, Copy)]
enum At {
    /// It knows nothing, or nothing that can be continued.
    Nowhere,
    /// Where it left off, here or on another server.
    After(Revision),
    Ring(Position),
}

/// Shards that were asked for on the open watch.
enum Wanted {
    All,
    Also(Vec<u32>),
}

/// What is read of a watch.
struct Watcher {
    shared: Arc<Shared>,
    /// Until it should look again.
    waiting: Waiting,
    sight: Sight,
}

/// What a watcher knows and has to say.
struct Sight {
    filter: Filter,
    at: At,
    incarnation: String,
    /// The revision that the reader knows it is complete up to.
    told: Revision,
    /// The revision that was looked at.
    looked: Revision,
    /// Asked for; until it was answered by a bookmark.
    awaited: Option<Revision>,
    items: VecDeque<WatchItem>,
    /// Since when the reader could be told more.
    untold_since: Option<Instant>,
    bookmark_due: Instant,
    ended: bool,
}

impl Watcher {
    fn new(shared: Arc<Shared>, options: WatchOptions) -> Self {
        let WatchOptions { mut filter, resume, min_revision, mut shards } = options;
        // What the reader opened it with comes first; where more was asked for since, that follows as a change.
        if let Some(shards) = &mut shards {
            match &filter.shards {
                Some(_) => shards.mark_changed(),
                None => filter.shards = shards.borrow_and_update().as_deref().cloned(),
            }
        }
        shared.counters.watchers.add(1);
        shared.counters.node_watchers.add(usize::from(!filter.node.is_empty()));
        let bookmark_due = Instant::now() + shared.config.bookmark_every;
        let incarnation = shared.cache().incarnation.clone();
        let mut waiting = Waiting::new(&shared.wakes, &filter.node, bookmark_due, shards);
        waiting.for_everything(&shared.wakes, min_revision > Revision::ZERO && !filter.node.is_empty());
        let mut sight = Sight {
            filter,
            at: At::Nowhere,
            incarnation,
            told: Revision::ZERO,
            looked: Revision::ZERO,
            awaited: (min_revision > Revision::ZERO).then_some(min_revision),
            items: VecDeque::new(),
            untold_since: None,
            bookmark_due,
            ended: false,
        };
        if let Some(token) = resume.filter(|token| token.incarnation == sight.incarnation) {
            sight.at = At::After(token.revision);
            (sight.told, sight.looked) = (token.revision, token.revision);
        }
        Self { shared, waiting, sight }
    }

    fn look(&mut self) {
        let Self { shared, waiting, sight } = self;
        sight.look(shared, waiting);
        waiting.until(sight.due(shared));
        if sight.awaited.is_none() {
            waiting.for_everything(&shared.wakes, false);
        }
    }
}

impl Sight {
    /// Until when it needn't look if nothing happens.
    fn due(&self, shared: &Shared) -> Instant {
        let soon = self.untold_since.map(|since| since + soon(shared));
        let due = soon.map_or(self.bookmark_due, |soon| soon.min(self.bookmark_due));
        match self.filter.node.as_str() {
            "" => due,
            _ => due.min(Instant::now() + NODE_LOOK_EVERY),
        }
    }

    /// Collects what there is to say, as of one moment.
    fn look(&mut self, shared: &Shared, waiting: &mut Waiting) {
        let cache = shared.cache();
        let readiness = shared.current_readiness();
        if readiness != Readiness::Ready {
            return self.end(readiness);
        }
        if cache.incarnation != self.incarnation {
            return self.end(Readiness::RolledBack);
        }
        if matches!(self.at, At::After(revision) if revision > cache.revision) {
            // It comes from a server that is ahead.
            self.bookmark_due = Instant::now() + shared.config.bookmark_every;
            return;
        }
        let wanted = waiting.another_set().and_then(|set| self.wanted(set));
        self.catch_up(shared, &cache);
        if let Some(wanted) = wanted {
            self.add_shards(shared, &cache, wanted);
        }
        self.bookmark(shared, &cache);
    }

    fn end(&mut self, readiness: Readiness) {
        self.ended = true;
        let (reason, message) = (readiness.reason().to_owned(), readiness.message().to_owned());
        self.items.push_back(WatchItem::End { reason, message });
    }

    fn catch_up(&mut self, shared: &Shared, cache: &Cache) {
        let position = match self.at {
            At::After(revision) => cache.ring.position_of(revision),
            At::Ring(position) => Some(position),
            At::Nowhere => None,
        };
        let groups = position.and_then(|position| cache.ring.since(position));
        // When the oldest change arrived that it's told now.
        let mut oldest: Option<Instant> = None;
        match groups {
            None => {
                let filter = self.filter.clone();
                self.snapshot(shared, cache, &filter, None);
            }
            Some(groups) if groups.len() > LAG_GROUPS_MAX => {
                let mut groups = groups.peekable();
                oldest = groups.peek().map(|kept| kept.at);
                let (group, saved) = seen::coalesced(groups, &self.filter, self.told);
                shared.counters.coalesced.add(saved);
                self.items.extend(group.map(WatchItem::Changes));
            }
            Some(groups) => {
                let mut from = self.told;
                for kept in groups {
                    if let Some(group) = seen::one(kept, &self.filter, from) {
                        from = group.to;
                        oldest.get_or_insert(kept.at);
                        self.items.push_back(WatchItem::Changes(group));
                    }
                }
                shared.counters.groups_sent.add(self.items.len());
            }
        }
        if let Some(oldest) = oldest {
            shared.watch_lag.observe(oldest.elapsed());
        }
        self.at = At::Ring(cache.ring.end());
        self.looked = cache.revision;
        if let Some(WatchItem::Changes(group)) = self.items.back() {
            self.told = group.to;
        }
    }

    /// Everything that matches now.
    fn snapshot(&mut self, shared: &Shared, cache: &Cache, filter: &Filter, partial: Option<Vec<u32>>) {
        let revision = cache.revision;
        let only_shards = partial.is_some();
        self.items.push_back(WatchItem::SnapshotStart {
            incarnation: cache.incarnation.clone(),
            revision,
            time: shared.now(),
            partial,
        });
        let mut part: Vec<Object> = Vec::new();
        for object in cache.matching(filter, None).filter(|o| !only_shards || !is_global(o)) {
            part.push(object);
            if part.len() == PART_MAX {
                self.items.push_back(WatchItem::Snapshot(std::mem::take(&mut part)));
            }
        }
        if !part.is_empty() {
            self.items.push_back(WatchItem::Snapshot(part));
        }
        self.items.push_back(WatchItem::SnapshotEnd { revision });
        self.told = revision;
        shared.counters.snapshots_sent.add(1);
    }

    /// The set of shards that is wanted from now on, if it's another. What went is not told of any more.
    fn wanted(&mut self, set: ShardSet) -> Option<Wanted> {
        let next = set.as_deref().cloned();
        let before = self.filter.shards.clone();
        match (before, next) {
            (before, next) if before == next => None,
            (None, next) => {
                self.filter.shards = next;
                None
            }
            (Some(_), None) => Some(Wanted::All),
            (Some(before), Some(next)) => {
                let (kept, added) = next.into_iter().partition(|shard| before.contains(shard));
                self.filter.shards = Some(kept);
                Some(Wanted::Also(added))
            }
        }
    }

    /// Shards that are new to the watch get a snapshot of their own.
    fn add_shards(&mut self, shared: &Shared, cache: &Cache, wanted: Wanted) {
        match wanted {
            Wanted::All => {
                self.filter.shards = None;
                let filter = self.filter.clone();
                self.snapshot(shared, cache, &filter, None);
            }
            Wanted::Also(added) if added.is_empty() => {}
            Wanted::Also(added) => {
                let filter = Filter { shards: Some(added.clone()), ..self.filter.clone() };
                self.filter.shards.get_or_insert_default().extend(&added);
                self.snapshot(shared, cache, &filter, Some(added));
            }
        }
    }

    /// Tells how far it is: when that is asked for, soon after something happened that the filter doesn't see, and
    /// every few seconds, then with digests.
    fn bookmark(&mut self, shared: &Shared, cache: &Cache) {
        let now = Instant::now();
        let reached = self.awaited.is_some_and(|awaited| awaited <= self.looked);
        let periodic = now >= self.bookmark_due;
        let untold = self.told < self.looked;
        self.untold_since = match self.untold_since {
            Some(since) if untold => Some(since),
            _ => untold.then_some(now),
        };
        let soon = self.untold_since.is_some_and(|since| now >= since + soon(shared));
        if !(reached || periodic || soon) {
            return;
        }
        let digests = if periodic { digests(cache, &self.filter, shared.config.shards) } else { Vec::new() };
        if periodic {
            self.bookmark_due = now + shared.config.bookmark_every;
        }
        if reached {
            self.awaited = None;
        }
        self.told = self.looked;
        self.untold_since = None;
        self.items.push_back(WatchItem::Bookmark(Bookmark {
            incarnation: cache.incarnation.clone(),
            revision: self.looked,
            digests,
            time: shared.now(),
        }));
        shared.counters.bookmarks_sent.add(1);
    }
}

/// How long a watcher that could be told more is left alone.
fn soon(shared: &Shared) -> Duration {
    let counters = &shared.counters;
    let watchers = counters.watchers.get().saturating_sub(counters.node_watchers.get());
    let watchers = u32::try_from(watchers).unwrap_or(u32::MAX);
    SOON.max(SOON_PER_WATCHER * watchers)
}

impl Stream for Watcher {
    type Item = Result<WatchItem>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.sight.items.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            if self.sight.ended {
                return Poll::Ready(None);
            }
            if !self.waiting.is_over(cx) {
                return Poll::Pending;
            }
            self.look();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.counters.watchers.subtract(1);
        if !self.sight.filter.node.is_empty() {
            self.shared.counters.node_watchers.subtract(1);
        }
    }
}

fn is_global(object: &Object) -> bool {
    kinds::kind(object.key.kind()).is_some_and(|kind| kind.info().global)
}
