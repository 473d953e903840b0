//! A watch: a position in the ring of recent groups, and what was taken from there but not yet handed out.
//!
//! A watcher that is too slow for the ring, or comes with a token from before it, gets a fresh snapshot on the same
//! stream; so its memory is bounded by the number of keys, whatever it does.

use std::{collections::VecDeque, sync::Arc};

use futures::{StreamExt, stream};
use model::{Filter, Object, Revision, Time};
use tokio::sync::watch;

use super::published::{Progress, Published, closed};
use crate::{
    Bookmark, Group, Result, WatchItem, WatchOptions, WatchStream,
    state::{Kept, State},
};

/// Groups taken from the ring at once.
const GROUPS_TAKEN_MAX: usize = 64;
/// Objects in one part of a snapshot.
const SNAPSHOT_PART_MAX: usize = 500;

pub(crate) fn watch(published: &Arc<Published>, options: WatchOptions) -> WatchStream {
    let watcher = Watcher::new(published, options);
    stream::unfold(Some(watcher), async |watcher| {
        let mut watcher = watcher?;
        match watcher.next().await {
            Ok(item) => Some((Ok(item), Some(watcher))),
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

struct Watcher {
    published: Arc<Published>,
    progress: watch::Receiver<Progress>,
    filter: Filter,
    /// Everything up to here was taken; none before the first snapshot.
    at: Option<Revision>,
    /// `Group::from` of the next group.
    told: Revision,
    /// A bookmark is owed once this is reached.
    owed: Option<Revision>,
    ready: VecDeque<WatchItem>,
}

impl Watcher {
    fn new(published: &Arc<Published>, options: WatchOptions) -> Self {
        let incarnation = published.read().cluster().incarnation.clone();
        let resume = options.resume.filter(|token| token.incarnation == incarnation);
        Self {
            published: published.clone(),
            progress: published.progress(),
            filter: options.filter,
            at: resume.as_ref().map(|token| token.revision),
            told: resume.map(|token| token.revision).unwrap_or_default(),
            owed: (options.min_revision > Revision::ZERO).then_some(options.min_revision),
            ready: VecDeque::new(),
        }
    }

    async fn next(&mut self) -> Result<WatchItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            if self.progress.borrow_and_update().closed {
                return Err(closed());
            }
            self.take();
            if self.ready.is_empty() {
                self.progress.changed().await.map_err(|_| closed())?;
            }
        }
    }

    /// Takes what comes next from the state.
    fn take(&mut self) {
        let published = self.published.clone();
        let state = published.read();
        // A token from beyond the head is of a history that this store never had.
        self.at = self.at.filter(|at| *at <= state.head().revision);
        while self.ready.is_empty() {
            match self.at.and_then(|at| state.ring().since(at, GROUPS_TAKEN_MAX)) {
                None => self.take_snapshot(&state),
                Some(groups) if groups.is_empty() => break,
                Some(groups) => groups.iter().for_each(|group| self.take_group(group)),
            }
        }
        self.take_bookmark(&state);
    }

    fn take_snapshot(&mut self, state: &State) {
        let (incarnation, revision) = (state.cluster().incarnation.clone(), state.head().revision);
        self.ready.push_back(WatchItem::SnapshotStart { incarnation, revision, time: Time::default(), partial: None });
        let mut objects = state.matching(&self.filter, None).peekable();
        while objects.peek().is_some() {
            let part: Vec<Object> = objects.by_ref().take(SNAPSHOT_PART_MAX).collect();
            self.ready.push_back(WatchItem::Snapshot(part));
        }
        self.ready.push_back(WatchItem::SnapshotEnd { revision });
        (self.at, self.told) = (Some(revision), revision);
    }

    /// A filtered watch isn't told of commits that it can't see.
    fn take_group(&mut self, kept: &Kept) {
        self.at = Some(kept.revision);
        let changes = kept.changes(&self.filter);
        if changes.is_empty() && self.filter != Filter::default() {
            return;
        }
        let (from, to) = (self.told, kept.revision);
        self.told = to;
        let head = Some(kept.head);
        self.ready.push_back(WatchItem::Changes(Group { from, to, coalesced: false, changes, head }));
    }

    fn take_bookmark(&mut self, state: &State) {
        let Some(revision) = self.at.filter(|at| self.owed.is_some_and(|owed| *at >= owed)) else { return };
        self.owed = None;
        let incarnation = state.cluster().incarnation.clone();
        self.ready.push_back(WatchItem::Bookmark(Bookmark { incarnation, revision, ..Bookmark::default() }));
    }
}
