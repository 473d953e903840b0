//! What this replica holds, as its workers and its member see it: one lock, and what may be asked of it.
//!
//! Whoever looks at the cache may ask here, so nobody who holds this lock may ask the cache: with a writer waiting between
//! the two, both would wait for ever. Therefore the lock never leaves this file, nothing in here knows the cache, and
//! nothing in here runs a caller's closure: values go in, values come out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use api::v1;
use model::{Epoch, Fence, Key, Time, shard_of_claim};
use tokio::sync::Notify;

use crate::{
    claims::{self, Action, Hold, Holds, Local, Owned, Phase, Seen},
    execute::MOVES_MAX,
    tenure::Tenures,
};

#[derive(Default)]
pub struct Holdings {
    inner: Mutex<Held>,
    /// A step ended, or a hold changed.
    changed: Notify,
}

#[derive(Default)]
struct Held {
    session: String,
    holds: Holds,
    busy: HashMap<String, usize>,
    /// Moves in a step, where conflicts made them fewer.
    moves: HashMap<Key, usize>,
    checked: bool,
    tenures: Tenures,
}

/// A look in work under a claim.
pub struct Busy<'a> {
    holdings: &'a Holdings,
    claim: String,
    /// What its step is compared with: the epoch that was active when the look began, and no later one, whose barrier
    /// the cache may not have reached.
    pub fence: Fence,
    epoch: Epoch,
}

impl Busy<'_> {
    pub fn claim(&self) -> &str {
        &self.claim
    }

    /// The store refused the step. That says nothing of what a later session holds, whose epoch may be the same: in another
    /// store epochs begin anew.
    pub fn fenced(&self) {
        let Fence::Claim { session, .. } = &self.fence else { return };
        let mut held = self.holdings.lock();
        if held.session == *session {
            held.holds.end(&self.claim, self.epoch);
            drop(held);
            self.holdings.changed.notify_one();
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut held = self.holdings.lock();
        if let Some(count) = held.busy.get_mut(&self.claim) {
            *count -= 1;
            if *count == 0 {
                held.busy.remove(&self.claim);
                // It may be handed over now; or handed to us, where the step was an older session's.
                let waits = !held.holds.is_active(&self.claim);
                drop(held);
                if waits {
                    self.holdings.changed.notify_one();
                }
            }
        }
    }
}

/// For workers and sweeps.
impl Holdings {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a look under the claim, if it's active.
    pub fn enter(&self, claim: &str) -> Option<Busy<'_>> {
        let mut held = self.lock();
        let epoch = held.holds.get(claim).filter(|hold| hold.phase == Phase::Active)?.epoch;
        *held.busy.entry(claim.to_owned()).or_default() += 1;
        let fence = Fence::Claim { claim: claim.to_owned(), epoch, session: held.session.clone() };
        Some(Busy { holdings: self, claim: claim.to_owned(), fence, epoch })
    }

    pub fn is_active(&self, claim: &str) -> bool {
        self.lock().holds.is_active(claim)
    }

    /// Those that it may act on.
    pub fn shards(&self) -> BTreeSet<u32> {
        let held = self.lock();
        let active = held.holds.iter().filter(|(_, hold)| hold.phase == Phase::Active);
        active.filter_map(|(claim, _)| shard_of_claim(claim)).collect()
    }

    pub fn moves_max(&self, key: &Key) -> usize {
        self.lock().moves.get(key).copied().unwrap_or(MOVES_MAX)
    }

    /// False: it was a single one already.
    pub fn halve_moves(&self, key: &Key) -> bool {
        let mut held = self.lock();
        let moves = held.moves.entry(key.clone()).or_insert(MOVES_MAX);
        let fewer = *moves > 1;
        *moves = (*moves / 2).max(1);
        fewer
    }

    pub fn reset_moves(&self, key: &Key) {
        self.lock().moves.remove(key);
    }

    pub fn set_checked(&self) {
        self.lock().checked = true;
    }

    pub fn take_checked(&self) -> bool {
        std::mem::take(&mut self.lock().checked)
    }

    /// More may be due: more is covered, or a hold changed.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// When the shard was swept that waits longest.
    pub fn oldest_sweep(&self) -> Option<Time> {
        self.lock().tenures.oldest_sweep()
    }

    pub fn has_session(&self) -> bool {
        !self.lock().session.is_empty()
    }

    /// Everything of these shards that the sweep put up until now was looked at.
    pub fn swept(&self, shards: &BTreeSet<u32>, now: Time) {
        self.lock().tenures.swept(shards, now);
        self.changed.notify_one();
    }
}

/// For the member.
impl Holdings {
    /// More may be due than when this was last waited for.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A session's life begins, with nothing held.
    pub fn begin(&self, session: &str) {
        let mut held = self.lock();
        held.session = session.to_owned();
        held.holds = Holds::default();
    }

    /// What to do now, by the pure protocol. Which claims are busy is filled in here.
    pub fn decide(&self, names: &[String], seen: &Seen, local: Local) -> Vec<Action> {
        let held = self.lock();
        if held.session.is_empty() {
            // It ended since; who owns nothing as nobody would take what is nobody's for its own.
            return Vec::new();
        }
        let local = Local { busy: held.busy.keys().cloned().collect(), ..local };
        claims::decide(&held.session, names, seen, &held.holds, &local)
    }

    /// The store granted a request of this session.
    pub fn granted(&self, claim: &str, now: &Owned) {
        let mut held = self.lock();
        let session = held.session.clone();
        held.holds.granted(&session, claim, now);
    }

    /// Returns what was held before.
    pub fn set(&self, claim: &str, hold: Hold) -> Option<Hold> {
        self.lock().holds.set(claim, hold)
    }

    /// That epoch is over.
    pub fn end(&self, claim: &str, epoch: Epoch) {
        self.lock().holds.end(claim, epoch);
        self.changed.notify_one();
    }

    pub fn end_all(&self) {
        let mut held = self.lock();
        held.holds = Holds::default();
        held.moves.clear();
        held.session.clear();
    }

    pub fn in_barrier(&self) -> bool {
        self.lock().holds.iter().any(|(_, hold)| hold.phase == Phase::Barrier)
    }

    /// No look is in work.
    pub fn is_idle(&self) -> bool {
        self.lock().busy.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().holds.is_empty()
    }

    /// In any phase.
    pub fn held(&self) -> BTreeSet<String> {
        self.lock().holds.iter().map(|(claim, _)| claim.clone()).collect()
    }

    /// Held, or worked on by a step of an older session.
    pub fn occupied(&self) -> BTreeSet<String> {
        let held = self.lock();
        held.holds.iter().map(|(claim, _)| claim).chain(held.busy.keys()).cloned().collect()
    }

    /// What there is to tell of the claims held now: each shard's last sweep, and each claim's first moment.
    pub fn tenures(&self, now: Option<Time>) -> (Vec<v1::ShardReport>, BTreeMap<String, i64>) {
        let mut held = self.lock();
        let Held { holds, tenures, .. } = &mut *held;
        if let Some(now) = now {
            tenures.update(holds.iter(), now);
        }
        (tenures.shards(), tenures.owned_since_millis())
    }
}

#[cfg(test)]
mod tests;
