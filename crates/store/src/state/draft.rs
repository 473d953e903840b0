//! Applies operations on top of a state without touching it: what they would change is collected, for a log to make
//! durable and for `State::publish` to make visible.

use std::{collections::BTreeMap, sync::Arc};

use api::v1;
use model::{Epoch, Fence, Key, Revision};

use super::{Instant, Kept, KeptChange, Record, Session, State};
use crate::{ClaimChange, Error, Head, HeadNote, LogEntry, Prepared, PreparedWrite, Result, SessionOpen};

/// What a group of operations changes; each value is the last one.
#[derive(Debug)]
pub struct Staged {
    pub head: Head,
    /// None: removed.
    pub objects: BTreeMap<Key, Option<Record>>,
    pub claims: BTreeMap<String, v1::Claim>,
    /// None: ended.
    pub sessions: BTreeMap<String, Option<Session>>,
    pub log: Vec<(Revision, LogEntry)>,
    pub groups: Vec<Arc<Kept>>,
}

impl Staged {
    pub fn on(state: &State) -> Self {
        Self {
            head: state.head(),
            objects: BTreeMap::new(),
            claims: BTreeMap::new(),
            sessions: BTreeMap::new(),
            log: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Whether anything in it must outlive the process.
    pub fn is_durable(&self) -> bool {
        !self.groups.is_empty()
    }
}

/// A state with what is staged on top. An operation that fails leaves no trace.
pub struct Draft<'a> {
    base: &'a State,
    staged: &'a mut Staged,
}

impl<'a> Draft<'a> {
    pub fn new(base: &'a State, staged: &'a mut Staged) -> Self {
        Self { base, staged }
    }

    /// The one way to write. A fence is told before a conflict, so that a deposed owner learns that it is one.
    pub fn commit(&mut self, prepared: Prepared) -> Result<Revision> {
        let incarnation = &self.base.cluster().incarnation;
        if !prepared.incarnation.is_empty() && prepared.incarnation != *incarnation {
            return Err(Error::WrongIncarnation(incarnation.clone()));
        }
        prepared.fence.as_ref().map_or(Ok(()), |fence| self.check_fence(fence))?;
        for expect in &prepared.expects {
            self.check_expected(&expect.key, expect.revision)?;
        }
        for write in &prepared.writes {
            write.check(self.record(&write.key).map(|r| (r.revision, r.known.uid.as_str())))?;
        }
        prepared.check()?;
        let revision = self.next_revision();
        let changes: Vec<KeptChange> = prepared.writes.into_iter().map(|write| self.write(write, revision)).collect();
        self.staged.log.extend(prepared.log.into_iter().map(|entry| (revision, entry)));
        self.close_group(revision, changes);
        Ok(revision)
    }

    pub fn change_claim(&mut self, change: ClaimChange) -> Result<v1::Claim> {
        let refused = |message: String| Err(Error::ClaimConflict { claim: change.name.clone(), message });
        let (owner, epoch) = self.claim(&change.name);
        if (owner, epoch) != (change.expected_owner.as_str(), change.expected_epoch) {
            let (expected, at) = (&change.expected_owner, change.expected_epoch);
            return refused(format!("expected {expected:?} at epoch {at}, but it is {owner:?} at epoch {epoch}"));
        }
        if self.session(&change.owner).is_none() {
            return refused(format!("its new owner, session {:?}, isn't alive", change.owner));
        }
        if change.owner_must_be_dead && self.session(owner).is_some() {
            return refused(format!("its owner, session {owner:?}, is alive"));
        }
        let revision = self.next_revision();
        let ClaimChange { name, owner, .. } = change;
        let claim =
            v1::Claim { name: name.clone(), owner, epoch: epoch.0 + 1, revision: revision.0, ..Default::default() };
        self.staged.claims.insert(name, claim.clone());
        self.close_group(revision, Vec::new());
        Ok(claim)
    }

    pub fn open_session(&mut self, open: SessionOpen, now: Instant) -> Result<u64> {
        let id = open.session.clone();
        if id.is_empty() {
            return Err(Error::invalid("session", "a session needs an id"));
        }
        if open.ttl.is_zero() {
            return Err(Error::invalid("ttl", "a session needs a time to live"));
        }
        if self.has_ended(&id) {
            return Err(Error::SessionEnded(id));
        }
        let attach = self.session(&id).map_or(1, |s| s.attach + 1);
        self.staged.sessions.insert(id, Some(Session::new(open, attach, now)));
        Ok(attach)
    }

    pub fn end_session(&mut self, session: &str, attach: Option<u64>) -> bool {
        let ends = self.session(session).is_some_and(|s| attach.is_none_or(|attach| attach == s.attach));
        if ends {
            self.staged.sessions.insert(session.into(), None);
        }
        ends
    }

    /// Ends it unless it was renewed since somebody saw that deadline pass.
    pub fn expire(&mut self, session: &str, deadline: Instant) -> bool {
        let expires = self.session(session).is_some_and(|s| s.deadline <= deadline);
        if expires {
            self.staged.sessions.insert(session.into(), None);
        }
        expires
    }

    fn check_fence(&self, fence: &Fence) -> Result<()> {
        let refused = |message: String| Err(Error::Fenced(message));
        match fence {
            Fence::Claim { claim, epoch, session } => match self.claim(claim) {
                (owner, now) if owner.is_empty() || (owner, now) != (session.as_str(), *epoch) => {
                    refused(format!("{session:?} at epoch {epoch} of {claim:?}, which is {owner:?}'s at epoch {now}"))
                }
                _ => Ok(()),
            },
            Fence::Session { session, attach } => match self.session(session) {
                None => refused(format!("session {session:?} has ended")),
                Some(s) if s.attach != *attach => {
                    refused(format!("attachment {attach} of session {session:?}, which is at {}", s.attach))
                }
                Some(_) => Ok(()),
            },
        }
    }

    fn check_expected(&self, key: &Key, expected: Revision) -> Result<()> {
        match self.record(key).map(|r| r.revision) {
            found if found.unwrap_or_default() == expected => Ok(()),
            None => Err(Error::conflict(key, format!("expected at revision {expected}, but it doesn't exist"))),
            Some(now) => Err(Error::conflict(key, format!("expected at revision {expected}, but it is at {now}"))),
        }
    }

    fn next_revision(&self) -> Revision {
        Revision(self.staged.head.revision.0 + 1)
    }

    fn write(&mut self, write: PreparedWrite, revision: Revision) -> KeptChange {
        let before = self.record(&write.key).map(|r| r.known.clone());
        let after = write.after.map(|(bytes, known)| (bytes, Arc::new(known)));
        let record = after.clone().map(|(bytes, known)| Record { revision, bytes, known });
        self.staged.objects.insert(write.key.clone(), record);
        KeptChange { key: write.key, before, after }
    }

    fn close_group(&mut self, revision: Revision, changes: Vec<KeptChange>) {
        let commits = self.staged.head.commits + 1;
        self.staged.head = Head { revision, commits };
        let writes = u32::try_from(changes.len()).expect("at most PUTS_MAX");
        self.staged.groups.push(Arc::new(Kept { revision, head: HeadNote { commits, writes }, changes }));
    }

    fn record(&self, key: &Key) -> Option<&Record> {
        match self.staged.objects.get(key) {
            Some(staged) => staged.as_ref(),
            None => self.base.objects.get(key),
        }
    }

    /// An absent claim is nobody's, at epoch 0.
    fn claim(&self, name: &str) -> (&str, Epoch) {
        let claim = self.staged.claims.get(name).or_else(|| self.base.claims.get(name));
        claim.map_or(("", Epoch(0)), |c| (c.owner.as_str(), Epoch(c.epoch)))
    }

    fn session(&self, id: &str) -> Option<&Session> {
        match self.staged.sessions.get(id) {
            Some(staged) => staged.as_ref(),
            None => self.base.sessions().get(id),
        }
    }

    fn has_ended(&self, id: &str) -> bool {
        matches!(self.staged.sessions.get(id), Some(None)) || self.base.sessions().has_ended(id)
    }
}
