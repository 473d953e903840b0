//! The claim protocol: pure. What one replica should do about claims, given what it sees and what it holds.
//!
//! Nothing here makes anyone an owner: `Take` and `HandOver` are requests, decided by the compare inside the store's
//! transaction. A view may be old, an answer may be lost or late; whatever is decided on an old view fails its compare.
//!
//! ```text
//!            Take answered / seen as owner          cache reached the claim's revision
//!   (none) -------------------------------> Barrier -----------------------------------> Active
//!      ^                                       |                                          |  ^
//!      |      another owner or epoch is seen   |       should be another's, who is warm   |  | should be mine
//!      +---------------------------------------+---------------------- Draining <---------+--+ again
//!                                     HandOver answered / seen
//! ```
//!
//! The model checker in `claims/checker.rs` runs these very functions.

use std::collections::{BTreeMap, BTreeSet};

use api::v1;
use model::{Epoch, LEADER, Revision};
use store::ClaimChange;

use crate::ring;

#[cfg(test)]
mod checker;
mod holds;
#[cfg(test)]
mod tests;

pub use holds::{Hold, Holds, Phase, taken};

/// The coordination state, as far as claims go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Controllers with a session.
    pub controllers: BTreeMap<String, Peer>,
    /// Those that exist; an absent one is owned by nobody at epoch 0.
    pub claims: BTreeMap<String, Owned>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Ready to own, and staying.
    pub ready: bool,
    /// Claims whose resources it has in its cache.
    pub warm: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owned {
    pub owner: String,
    pub epoch: Epoch,
    pub revision: Revision,
}

impl Owned {
    pub fn of(claim: &v1::Claim) -> Self {
        Self { owner: claim.owner.clone(), epoch: Epoch(claim.epoch), revision: Revision(claim.revision) }
    }
}

/// What only this replica knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Local {
    /// How far its cache is.
    pub cache: Revision,
    /// Claims with a step in flight.
    pub busy: BTreeSet<String>,
    /// Claims with a request in flight.
    pub pending: BTreeSet<String>,
    /// Claims that it has seen without a living owner for longer than the orphan guard.
    pub orphans: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask the store for it.
    Take(Request),
    /// Ask the store to make another its owner.
    HandOver(Request),
    /// The hold becomes this.
    Set(String, Hold),
    /// Not ours any more at that epoch.
    Drop(String, Epoch),
}

/// A `ClaimChange`, as a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub claim: String,
    pub expected: (String, Epoch),
    pub owner: String,
    pub owner_must_be_dead: bool,
}

impl From<&Request> for ClaimChange {
    fn from(request: &Request) -> Self {
        Self {
            name: request.claim.clone(),
            expected_owner: request.expected.0.clone(),
            expected_epoch: request.expected.1,
            owner: request.owner.clone(),
            owner_must_be_dead: request.owner_must_be_dead,
        }
    }
}

impl Seen {
    pub fn of(coordination: &v1::Coordination) -> Self {
        let controllers = coordination.members.iter().filter(|m| m.role == "controller").map(|member| {
            let report = member.report.clone().unwrap_or_default();
            let peer = Peer { ready: report.ready && !report.leaving, warm: report.warm.into_iter().collect() };
            (member.session.clone(), peer)
        });
        let claims = coordination.claims.iter().map(|claim| (claim.name.clone(), Owned::of(claim)));
        Self { controllers: controllers.collect(), claims: claims.collect() }
    }

    pub fn claim(&self, name: &str) -> Owned {
        self.claims.get(name).cloned().unwrap_or_default()
    }

    /// Nobody owns it who has a session.
    pub fn is_free(&self, claim: &Owned) -> bool {
        !self.controllers.contains_key(&claim.owner)
    }

    /// Who should own what, of these claims.
    pub fn assignment(&self, names: &[String]) -> ring::Assignment {
        let ready: Vec<&str> = self.controllers.iter().filter(|(_, p)| p.ready).map(|(s, _)| s.as_str()).collect();
        let owner = |name: &str| self.claims.get(name).map_or("", |c| c.owner.as_str());
        let shards = names.iter().filter(|n| *n != LEADER).map(|n| (n.as_str(), owner(n)));
        let mut assignment = ring::assign(shards, &ready);
        if names.iter().any(|n| n == LEADER) {
            assignment.extend(ring::assign_one(LEADER, owner(LEADER), &ready).map(|to| (LEADER.to_owned(), to)));
        }
        assignment
    }
}

/// Everything to do now. `names` are all claims of the cluster, in any order.
pub fn decide(me: &str, names: &[String], seen: &Seen, holds: &Holds, local: &Local) -> Vec<Action> {
    let assignment = seen.assignment(names);
    let decide_one = |name: &String| {
        let target = assignment.get(name).map(String::as_str);
        match holds.get(name) {
            Some(hold) => held(me, name, hold, target, seen, local),
            // A view from before our own time ended says nothing.
            None if holds.is_over(name, seen.claim(name).epoch) => None,
            None => not_held(me, name, target, seen, local),
        }
    };
    names.iter().filter_map(decide_one).collect()
}

/// Not ours as far as we know: adopt it, take it, or leave it.
fn not_held(me: &str, name: &str, target: Option<&str>, seen: &Seen, local: &Local) -> Option<Action> {
    let claim = seen.claim(name);
    if claim.owner == me {
        // Handed to us, or an answer of ours was lost.
        return Some(Action::Set(name.to_owned(), taken(claim.epoch, claim.revision)));
    }
    let mine_to_take = target == Some(me) || local.orphans.contains(name);
    let able = seen.controllers.get(me).is_some_and(|peer| peer.ready);
    if !(mine_to_take && able && seen.is_free(&claim)) || local.pending.contains(name) {
        return None;
    }
    Some(Action::Take(Request {
        claim: name.to_owned(),
        expected: (claim.owner, claim.epoch),
        owner: me.to_owned(),
        owner_must_be_dead: true,
    }))
}

/// Ours at some epoch.
fn held(me: &str, name: &str, hold: &Hold, target: Option<&str>, seen: &Seen, local: &Local) -> Option<Action> {
    let claim = seen.claim(name);
    if claim.epoch > hold.epoch || (claim.epoch == hold.epoch && claim.owner != me) {
        return Some(Action::Drop(name.to_owned(), hold.epoch));
    }
    // A view from before our own change says nothing.
    let view_is_old = claim.epoch < hold.epoch;
    let heir = target.filter(|to| *to != me && seen.controllers.get(*to).is_some_and(|p| p.warm.contains(name)));
    let set = |phase: Phase| Some(Action::Set(name.to_owned(), Hold { phase, ..hold.clone() }));
    match &hold.phase {
        Phase::Barrier if local.cache >= hold.revision => set(Phase::Active),
        Phase::Barrier => None,
        Phase::Active => heir.filter(|_| !view_is_old).and_then(|to| set(Phase::Draining { to: to.to_owned() })),
        Phase::Draining { .. } if local.pending.contains(name) => None,
        Phase::Draining { to } if heir != Some(to.as_str()) => set(Phase::Active),
        Phase::Draining { .. } if local.busy.contains(name) => None,
        Phase::Draining { to } => Some(Action::HandOver(Request {
            claim: name.to_owned(),
            expected: (me.to_owned(), hold.epoch),
            owner: to.clone(),
            owner_must_be_dead: false,
        })),
    }
}
