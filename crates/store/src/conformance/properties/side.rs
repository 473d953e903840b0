//! One of the two stores: runs operations on it, and says what came of them and what can be seen, with ranks in place
//! of revisions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::v1;
use bytes::Bytes;
use model::{Epoch, Fence, Key, Revision};

use super::{
    super::{
        fixtures::{key, resource},
        reader::{Coordinated, Reader},
    },
    operation::{By, Change, Operation, Seen},
};
use crate::{
    ClaimChange, Error, Expect, HistoryQuery, List, LogEntry, Result, SessionOpen, Store, Transaction, WatchOptions,
    Write,
};

/// The how-many-th commit a revision is of; 0 is none at all.
pub type Rank = usize;

/// What can be seen of a store. Two stores that were told the same are seen the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    pub objects: BTreeMap<Key, (Rank, String, Bytes)>,
    pub members: BTreeMap<String, v1::Member>,
    /// Owner, epoch, and rank of the last change.
    pub claims: BTreeMap<String, (String, u64, Rank)>,
    pub commits: u64,
    history: Vec<(Rank, String, Bytes)>,
}

pub struct Side {
    pub store: Arc<dyn Store>,
    /// Of each commit, and zero before them.
    revisions: Vec<Revision>,
    reader: Reader,
}

impl Side {
    pub async fn new(store: Arc<dyn Store>) -> Self {
        let reader = Reader::with_snapshot(&*store).await;
        Self { store, revisions: vec![Revision::ZERO], reader }
    }

    /// Goes on with the store as it was opened anew, and the watch where it was.
    pub async fn reopened(&mut self, store: Arc<dyn Store>) {
        let options = WatchOptions { resume: Some(self.reader.token()), ..WatchOptions::default() };
        let world = std::mem::take(&mut self.reader.world);
        self.reader = Reader::open(&*store, options).await;
        self.reader.world = world;
        self.store = store;
    }

    /// What came of it, in words that are the same for every store. `number` names the operation, `era` the opening.
    pub async fn run(&mut self, operation: &Operation, before: &Observed, number: usize, era: usize) -> String {
        match operation {
            Operation::Commit { .. } => {
                let transaction = self.transaction(operation, before, number, era);
                let outcome = self.store.commit(transaction).await;
                self.ranked("committed", outcome)
            }
            Operation::Open { session } => said(self.store.open_session(open(*session, era)).await),
            Operation::Beat { session, ready } => {
                let report = v1::MemberReport { ready: *ready, ..v1::MemberReport::default() };
                said(self.store.beat(&id(*session, era), Some(report)).await)
            }
            Operation::End { session, attach } => {
                let session = id(*session, era);
                let attach = attach.map(|seen| number_as(seen, before.members.get(&session).map_or(0, |m| m.attach)));
                said(self.store.end_session(&session, attach).await)
            }
            Operation::Claim { .. } => {
                let outcome = self.store.change_claim(claim_change(operation, before, era)).await;
                let described = outcome.as_ref().map(|c| format!("{} {} {}", c.name, c.owner, c.epoch)).ok();
                let ranked = self.ranked("changed", outcome.map(|claim| Revision(claim.revision)));
                described.map_or(ranked.clone(), |described| format!("{described}: {ranked}"))
            }
            Operation::Trim { before } => {
                let up_to = self.revisions.len().saturating_sub(usize::from(*before) + 1);
                said(self.store.trim_history(self.revisions[up_to]).await)
            }
            Operation::Reopen => "reopened".into(),
        }
    }

    fn ranked(&mut self, verb: &str, outcome: Result<Revision>) -> String {
        if let Ok(revision) = outcome {
            assert!(self.revisions.last().is_some_and(|last| *last < revision), "{revision} doesn't grow");
            self.revisions.push(revision);
        }
        said(outcome.map(|_| format!("{verb} as {}", self.revisions.len() - 1)))
    }

    fn rank(&self, revision: Revision) -> Rank {
        self.revisions.binary_search(&revision).unwrap_or_else(|_| panic!("nobody was told of revision {revision}"))
    }

    fn transaction(&self, operation: &Operation, before: &Observed, number: usize, era: usize) -> Transaction {
        let Operation::Commit { fence, expects, writes, roots } = operation else {
            panic!("{operation:?} is no commit");
        };
        let at = |name: u8, seen: Seen| {
            let now = before.objects.get(&key(&web(name))).map_or(0, |(rank, ..)| *rank);
            match seen {
                Seen::Now => self.revisions[now],
                Seen::Absent => Revision::ZERO,
                // The commit before, or of something that doesn't exist the newest one.
                Seen::Stale => self.revisions[now.checked_sub(1).unwrap_or(self.revisions.len() - 1)],
            }
        };
        let entry = |root: &u8| LogEntry {
            root_uid: format!("root-{root}"),
            step_id: format!("step-{number}"),
            bytes: format!("entry of {number}").into(),
            // Some fold.
            slot: if number.is_multiple_of(3) { format!("slot-{}", number % 2) } else { String::new() },
        };
        Transaction {
            fence: fence.as_ref().map(|by| fence_by(by, before, era)),
            expects: expects.iter().map(|(n, seen)| Expect { key: key(&web(*n)), revision: at(*n, *seen) }).collect(),
            writes: writes.iter().map(|c| write(c, at(c.name, c.seen), before, number)).collect(),
            log: roots.iter().map(entry).collect(),
            ..Transaction::default()
        }
    }

    /// Everything that can be seen, by every way to see it.
    pub async fn observe(&mut self) -> Observed {
        let page = self.store.list(List::default()).await.expect("it lists");
        let head = self.store.head().await.expect("head is read");
        assert_eq!((page.revision, head.commits as usize), (head.revision, self.revisions.len() - 1));
        self.reader.until(head.revision).await;
        assert_eq!(self.reader.world.values().cloned().collect::<Vec<_>>(), page.objects, "watched and listed");
        let mut objects = BTreeMap::new();
        for object in page.objects {
            assert_eq!(self.store.get(&object.key).await.as_ref(), Ok(&Some(object.clone())), "got and listed");
            let uid = object.resource().expect("it decodes").metadata.unwrap_or_default().uid;
            objects.insert(object.key, (self.rank(object.revision), uid, object.bytes));
        }
        let coordination = Coordinated::open(&*self.store).await.next().await;
        let claim = |c: &v1::Claim| (c.name.clone(), (c.owner.clone(), c.epoch, self.rank(Revision(c.revision))));
        let mut history = Vec::new();
        for record in self.store.history(HistoryQuery::default()).await.expect("history is read") {
            history.push((self.rank(record.revision), record.entry.root_uid, record.entry.bytes));
        }
        // Within one commit stores may order entries as they like.
        history.sort();
        Observed {
            objects,
            members: coordination.members.iter().map(|m| (m.session.clone(), m.clone())).collect(),
            claims: coordination.claims.iter().map(claim).collect(),
            commits: head.commits,
            history,
        }
    }
}

/// Errors by what they mean; their words differ. Where several keys are in conflict any of them may be named.
fn said<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Ok(value) => format!("{value:?}"),
        Err(Error::Conflict { .. }) => "conflict".into(),
        Err(Error::ClaimConflict { claim, .. }) => format!("claim conflict on {claim}"),
        Err(Error::Fenced(_)) => "fenced".into(),
        Err(Error::Invalid(_)) => "invalid".into(),
        Err(Error::SessionEnded(session)) => format!("{session} has ended"),
        Err(error) => panic!("nothing was to go wrong: {error}"),
    }
}

fn web(name: u8) -> String {
    format!("web-{name}")
}

/// Ids of an earlier opening aren't used again.
fn id(session: u8, era: usize) -> String {
    format!("session-{session}-of-{era}")
}

fn open(session: u8, era: usize) -> SessionOpen {
    SessionOpen {
        session: id(session, era),
        role: "controller".into(),
        name: format!("name-{session}"),
        server: "s1".into(),
        server_address: String::new(),
        // No run takes that long.
        ttl: Duration::from_secs(600),
        machine_id: String::new(),
    }
}

fn number_as(seen: Seen, now: u64) -> u64 {
    match seen {
        Seen::Now => now,
        Seen::Absent => 0,
        Seen::Stale => now.wrapping_sub(1).min(now + 1),
    }
}

fn fence_by(by: &By, before: &Observed, era: usize) -> Fence {
    match by {
        By::Claim { claim, session, seen } => {
            let claim = format!("shard-{claim}");
            let epoch = before.claims.get(&claim).map_or(0, |(_, epoch, _)| *epoch);
            Fence::Claim { claim, epoch: Epoch(number_as(*seen, epoch)), session: id(*session, era) }
        }
        By::Session { session, seen } => {
            let session = id(*session, era);
            let attach = before.members.get(&session).map_or(0, |m| m.attach);
            Fence::Session { session, attach: number_as(*seen, attach) }
        }
    }
}

fn claim_change(operation: &Operation, before: &Observed, era: usize) -> ClaimChange {
    let Operation::Claim { claim, expected, owner, owner_must_be_dead } = operation else {
        panic!("{operation:?} is no change of a claim");
    };
    let name = format!("shard-{claim}");
    let (now, epoch, _) = before.claims.get(&name).cloned().unwrap_or_default();
    ClaimChange {
        name,
        expected_owner: if *expected == Seen::Absent { String::new() } else { now },
        expected_epoch: Epoch(number_as(*expected, epoch)),
        owner: id(*owner, era),
        owner_must_be_dead: *owner_must_be_dead,
    }
}

fn write(change: &Change, revision: Revision, before: &Observed, number: usize) -> Write {
    let name = web(change.name);
    // What is created gets a uid of its own.
    let now = before.objects.get(&key(&name)).map(|(_, uid, _)| uid.clone());
    let uid = match (change.right_uid, now) {
        (true, Some(uid)) => uid,
        _ => format!("uid-{number}"),
    };
    if change.removes {
        return Write::Remove { key: key(&name), uid, revision };
    }
    let mut resource = resource(&name);
    let metadata = resource.metadata.get_or_insert_default();
    (metadata.uid, metadata.revision) = (uid, revision.0);
    metadata.labels.insert("written-by".into(), number.to_string());
    Write::Put(Box::new(resource))
}
