//! What one replica took, and what it knows to be over. Pure; every change of it is here.
//!
//! Views and answers may be older than what it knows: one that calls it the owner at an epoch that is over must not
//! bring the hold back, or it would act for nothing until a newer view came.

use std::collections::BTreeMap;

use model::{Epoch, Revision};

use super::Owned;

/// One claim that this replica took.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub epoch: Epoch,
    /// Of the claim's change: the barrier.
    pub revision: Revision,
    pub phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Owner, but may not have seen yet what the owner before wrote: acts on nothing.
    Barrier,
    /// Acts.
    Active,
    /// Starts nothing new; hands over once the step in flight has ended.
    Draining { to: String },
}

/// The holds of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holds {
    held: BTreeMap<String, Hold>,
    /// The newest epoch of each claim that was this session's and isn't any more.
    over: BTreeMap<String, Epoch>,
}

/// What a positive answer to `Take`, or seeing oneself as the owner, makes of it.
pub fn taken(epoch: Epoch, revision: Revision) -> Hold {
    Hold { epoch, revision, phase: Phase::Barrier }
}

impl Holds {
    pub fn get(&self, claim: &str) -> Option<&Hold> {
        self.held.get(claim)
    }

    pub fn contains(&self, claim: &str) -> bool {
        self.held.contains_key(claim)
    }

    pub fn is_active(&self, claim: &str) -> bool {
        self.get(claim).is_some_and(|hold| hold.phase == Phase::Active)
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Hold)> {
        self.held.iter()
    }

    /// Whether this epoch of the claim was this session's, or came before one that was, and has ended.
    pub fn is_over(&self, claim: &str, epoch: Epoch) -> bool {
        self.over.get(claim).is_some_and(|over| epoch <= *over)
    }

    /// Does what `Action::Set` says, unless that epoch has ended since. Returns what was held before.
    pub fn set(&mut self, claim: &str, hold: Hold) -> Option<Hold> {
        if self.is_over(claim, hold.epoch) {
            return self.get(claim).cloned();
        }
        self.held.insert(claim.to_owned(), hold)
    }

    /// The store granted a request of `me`: to take the claim, or to hand it over. The same may have been seen before.
    pub fn granted(&mut self, me: &str, claim: &str, now: &Owned) {
        if now.owner != me {
            return self.end(claim, Epoch(now.epoch.0.saturating_sub(1)));
        }
        let known = self.get(claim).is_some_and(|hold| hold.epoch >= now.epoch);
        if !known {
            self.set(claim, taken(now.epoch, now.revision));
        }
    }

    /// That epoch is over: the store refused a write under it, or a newer one was seen. A newer hold stays.
    pub fn end(&mut self, claim: &str, epoch: Epoch) {
        let over = self.over.entry(claim.to_owned()).or_default();
        *over = epoch.max(*over);
        self.held.retain(|name, hold| name != claim || hold.epoch > epoch);
    }
}
