//! Reads streams with patience, and checks what holds of every stream.

use std::{collections::BTreeMap, sync::Arc};

use api::v1;
use futures::StreamExt;
use model::{Key, Object, Revision};
use tokio::time::timeout;

use super::PATIENCE;
use crate::{Change, CoordinationStream, Group, ResumeToken, Store, WatchItem, WatchOptions, WatchStream};

/// A watch, and the world as it told it.
pub struct Reader {
    stream: WatchStream,
    incarnation: String,
    /// Everything up to here was told.
    pub at: Revision,
    pub world: BTreeMap<Key, Object>,
    in_snapshot: bool,
    commits: Option<u64>,
    unfiltered: bool,
}

impl Reader {
    pub async fn open(store: &dyn Store, options: WatchOptions) -> Self {
        let incarnation = store.cluster().await.expect("the cluster is known").incarnation;
        let at = options.resume.as_ref().map(|token| token.revision).unwrap_or_default();
        let unfiltered = options.filter == model::Filter::default();
        let stream = store.watch(options).await.expect("a watch opens");
        Self { stream, incarnation, at, world: BTreeMap::new(), in_snapshot: false, commits: None, unfiltered }
    }

    /// Opens one on everything and reads its snapshot.
    pub async fn with_snapshot(store: &dyn Store) -> Self {
        let mut reader = Self::open(store, WatchOptions::default()).await;
        reader.snapshot().await;
        reader
    }

    pub fn token(&self) -> ResumeToken {
        ResumeToken { incarnation: self.incarnation.clone(), revision: self.at }
    }

    /// The next item, which is applied to `world`.
    pub async fn item(&mut self) -> WatchItem {
        let next = timeout(PATIENCE, self.stream.next()).await;
        let item = next.expect("the watch says something").expect("the watch goes on").expect("the watch is well");
        self.apply(&item);
        item
    }

    /// Reads a whole snapshot, which must come now.
    pub async fn snapshot(&mut self) -> Vec<Object> {
        let first = self.item().await;
        assert!(matches!(first, WatchItem::SnapshotStart { .. }), "a snapshot should start, not {first:?}");
        while self.in_snapshot {
            self.item().await;
        }
        self.world.values().cloned().collect()
    }

    /// The next group that changed something.
    pub async fn group(&mut self) -> Group {
        loop {
            match self.item().await {
                WatchItem::Changes(group) if !group.changes.is_empty() => return group,
                WatchItem::Changes(_) | WatchItem::Bookmark(_) => {}
                other => panic!("changes should follow, not {other:?}"),
            }
        }
    }

    /// Reads until everything up to that revision was told, one way or another.
    pub async fn until(&mut self, revision: Revision) {
        while self.at < revision || self.in_snapshot {
            self.item().await;
        }
    }

    fn apply(&mut self, item: &WatchItem) {
        match item {
            WatchItem::SnapshotStart { incarnation, revision, partial, .. } => {
                assert_eq!((incarnation, partial), (&self.incarnation, &None));
                assert!(!self.in_snapshot, "a snapshot within a snapshot");
                assert!(*revision >= self.at, "a snapshot never goes back");
                self.world.clear();
                (self.in_snapshot, self.commits) = (true, None);
            }
            WatchItem::Snapshot(objects) => {
                assert!(self.in_snapshot, "a part of no snapshot");
                for object in objects {
                    let before = self.world.insert(object.key.clone(), object.clone());
                    assert_eq!(before, None, "twice in one snapshot");
                }
            }
            WatchItem::SnapshotEnd { revision } => {
                assert!(self.in_snapshot, "an end of no snapshot");
                assert!(self.world.values().all(|o| o.revision <= *revision), "newer than the snapshot");
                (self.in_snapshot, self.at) = (false, *revision);
            }
            WatchItem::Changes(group) => self.apply_group(group),
            WatchItem::Bookmark(bookmark) => {
                assert_eq!(bookmark.incarnation, self.incarnation);
                assert!(bookmark.revision >= self.at, "a bookmark never goes back");
                self.at = bookmark.revision;
            }
            WatchItem::End { reason, message } => panic!("the watch ended: {reason}: {message}"),
        }
    }

    fn apply_group(&mut self, group: &Group) {
        assert!(!self.in_snapshot, "changes within a snapshot");
        assert!(group.from <= self.at && self.at < group.to, "{} is followed by {group:?}", self.at);
        self.at = group.to;
        if self.unfiltered {
            self.check_head(group);
        }
        for change in &group.changes {
            match change {
                Change::Put(object) => {
                    assert!(group.coalesced || object.revision == group.to, "{object:?} in {group:?}");
                    let before = self.world.insert(object.key.clone(), object.clone());
                    assert!(before.is_none_or(|b| b.revision < object.revision), "{} went back", object.key);
                }
                Change::Deleted { key, revision, .. } => {
                    assert!(*revision <= group.to, "{key} deleted in the future");
                    self.world.remove(key);
                }
            }
        }
    }

    /// A watch on everything hears of each commit, and of all its writes.
    fn check_head(&mut self, group: &Group) {
        let head = group.head.expect("a backend tells what head said");
        if !group.coalesced {
            assert_eq!(head.writes as usize, group.changes.len(), "announced and told");
            assert!(self.commits.is_none_or(|before| before + 1 == head.commits), "a gap before {head:?}");
        }
        self.commits = Some(head.commits);
    }
}

/// A stream of members and claims.
pub struct Coordinated(CoordinationStream);

impl Coordinated {
    pub async fn open(store: &dyn Store) -> Self {
        Self(store.coordination().await.expect("the stream opens"))
    }

    pub async fn next(&mut self) -> Arc<v1::Coordination> {
        let next = timeout(PATIENCE, self.0.next()).await;
        next.expect("the stream says something").expect("the stream goes on").expect("the stream is well")
    }

    /// The first state of which that holds.
    pub async fn until(&mut self, holds: impl Fn(&v1::Coordination) -> bool) -> Arc<v1::Coordination> {
        loop {
            let state = self.next().await;
            if holds(&state) {
                return state;
            }
        }
    }

    pub async fn until_gone(&mut self, session: &str) -> Arc<v1::Coordination> {
        self.until(|state| state.members.iter().all(|m| m.session != session)).await
    }
}
