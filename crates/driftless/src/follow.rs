//! A watch that goes on: what it tells is complete however often the connection breaks.
//!
//! A broken stream is opened anew from the last revision; where the server answers with a snapshot, what changed or
//! went meanwhile is found by comparing.

use std::{collections::BTreeMap, time::Duration};

use api::v1;
use futures::StreamExt;
use model::{Filter, Key, Revision};
use store::{Change, ResumeToken, WatchItem, WatchOptions, WatchStream};
use tokio::time::Instant;

use crate::client::Client;

const REDIAL_FIRST: Duration = Duration::from_millis(50);
const REDIAL_MAX: Duration = Duration::from_secs(1);
/// Lets go after that long without any answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum Update {
    Put(Box<v1::Resource>),
    Gone(Key),
    /// Everything that existed at that revision was told; said once.
    Complete(Revision),
}

pub struct Follow<'a> {
    client: &'a Client,
    filter: Filter,
    stream: Option<WatchStream>,
    resume: Option<ResumeToken>,
    /// What was told, and still exists.
    known: BTreeMap<Key, (String, Revision)>,
    /// While a snapshot comes in: what it named.
    snapshot: Option<BTreeMap<Key, (String, Revision)>>,
    complete: bool,
}

impl<'a> Follow<'a> {
    pub fn new(client: &'a Client, filter: Filter) -> Self {
        let known = BTreeMap::new();
        Self { client, filter, stream: None, resume: None, known, snapshot: None, complete: false }
    }

    /// The next updates, which belong together. Fails where the watch can't be had.
    pub async fn next(&mut self) -> anyhow::Result<Vec<Update>> {
        let deadline = Instant::now() + SILENCE_MAX;
        let mut pause = REDIAL_FIRST;
        loop {
            let failure = match self.step().await {
                Ok(Some(updates)) if updates.is_empty() => continue,
                Ok(Some(updates)) => return Ok(updates),
                Ok(None) => None,
                Err(error) => Some(error),
            };
            self.stream = None;
            self.snapshot = None;
            let lasting = |e: &store::Error| matches!(e.class(), store::Class::Terminal);
            if let Some(error) = failure.filter(|e| lasting(e) || !self.complete || Instant::now() >= deadline) {
                return Err(error.into());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REDIAL_MAX);
        }
    }

    /// One item of the stream; none where it ended.
    async fn step(&mut self) -> store::Result<Option<Vec<Update>>> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let (filter, resume) = (self.filter.clone(), self.resume.clone());
                let options = WatchOptions { filter, resume, ..Default::default() };
                self.stream.insert(self.client.api.watch(options).await?)
            }
        };
        match stream.next().await.transpose()? {
            Some(WatchItem::End { .. }) | None => Ok(None),
            Some(item) => self.take(item).map(Some),
        }
    }

    fn take(&mut self, item: WatchItem) -> store::Result<Vec<Update>> {
        let mut updates = Vec::new();
        match item {
            WatchItem::SnapshotStart { incarnation, revision, .. } => {
                self.resume = Some(ResumeToken { incarnation, revision });
                self.snapshot = Some(BTreeMap::new());
            }
            WatchItem::Snapshot(objects) => {
                for object in objects {
                    self.put(&object, &mut updates)?;
                }
            }
            WatchItem::SnapshotEnd { revision } => self.snapshot_end(revision, &mut updates),
            WatchItem::Changes(group) => {
                for change in group.changes {
                    match change {
                        Change::Put(object) => self.put(&object, &mut updates)?,
                        Change::Deleted { key, .. } => {
                            if self.known.remove(&key).is_some() {
                                updates.push(Update::Gone(key));
                            }
                        }
                    }
                }
                self.reached(group.to);
            }
            WatchItem::Bookmark(bookmark) => self.reached(bookmark.revision),
            WatchItem::End { .. } => {}
        }
        Ok(updates)
    }

    fn reached(&mut self, revision: Revision) {
        if let Some(resume) = &mut self.resume {
            resume.revision = resume.revision.max(revision);
        }
    }

    fn put(&mut self, object: &model::Object, updates: &mut Vec<Update>) -> store::Result<()> {
        let resource =
            object.resource().map_err(|e| store::Error::Corrupt(format!("{} can't be decoded: {e}", object.key)))?;
        let uid = resource.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
        if let Some(named) = &mut self.snapshot {
            named.insert(object.key.clone(), (uid.clone(), object.revision));
        }
        let before = self.known.insert(object.key.clone(), (uid.clone(), object.revision));
        match before {
            // In another store the same revision may be somebody else's.
            Some((other, _)) if other != uid => updates.push(Update::Gone(object.key.clone())),
            Some((_, revision)) if revision == object.revision => return Ok(()),
            _ => {}
        }
        updates.push(Update::Put(Box::new(resource)));
        Ok(())
    }

    fn snapshot_end(&mut self, revision: Revision, updates: &mut Vec<Update>) {
        let named = self.snapshot.take().unwrap_or_default();
        let gone = self.known.keys().filter(|k| !named.contains_key(*k)).cloned();
        updates.extend(gone.map(Update::Gone));
        self.known = named;
        if !std::mem::replace(&mut self.complete, true) {
            updates.push(Update::Complete(revision));
        }
    }
}
