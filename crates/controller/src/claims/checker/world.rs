//! The model's state: the store, the replicas, what is on its way between them, and what may happen to them.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

use model::{Epoch, Revision};

use super::super::{Hold, Holds, Owned, Phase, Request, Seen};

/// What is explored: how many of everything there may be.
#[derive(Clone, Debug)]
pub struct Scope {
    pub replicas: usize,
    /// How many of them are up when it begins, at rest.
    pub started: usize,
    pub claims: Vec<String>,
    /// Sessions that a replica may open, one after another.
    pub sessions: u8,
    /// What replicas may see beside the store's present state.
    pub sight: Sight,
    pub leaves: u8,
    /// Pauses, kills, early expiries, and answers that nobody waits for any more.
    pub faults: u8,
    pub writes: u8,
    /// No claim may get beyond this epoch: it would move more often than members come and go.
    pub epoch_max: Epoch,
    pub planted: Planted,
}

/// Every replica's view lags as it likes. It may also be
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// of one moment, and never goes back;
    Whole,
    /// one that a second server has, which lags by itself: it goes back;
    Lagging,
    /// of two moments: one for the members, one for the claims.
    Torn,
}

/// A fault planted into the protocol or the store, for the checker to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    Nothing,
    /// The store lets a claim be taken from an owner whose session lives.
    TakeFromTheLiving,
    /// The store makes a session the owner that has ended.
    GiveToTheDead,
    /// The store commits writes without comparing their fence.
    WriteWithoutFence,
    /// A replica acts as soon as it owns.
    ActBeforeTheBarrier,
    /// A replica forgets which of its epochs are over, and believes old views.
    BelieveOldViews,
    /// A refused write ends whatever the replica holds by then, not the epoch that it was made under.
    RefusalEndsNewerHolds,
    /// Only an answer makes a replica the owner, not seeing itself as one.
    AdoptNothing,
}

/// A state of the claims and sessions, cheap to copy and to hash.
#[derive(Clone, Debug)]
pub struct View {
    pub seen: Rc<Seen>,
    hash: u64,
}

impl View {
    pub fn new(seen: Seen) -> Self {
        Self { hash: hash(&seen), seen: Rc::new(seen) }
    }

    pub fn is(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Hash for View {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

pub fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Debug, Hash)]
pub struct World {
    pub store: Store,
    /// What the second server knows. The first is in step with the store: whatever a replica sees late through it, it
    /// could have seen then and acted on late.
    pub stale: View,
    pub replicas: Vec<Replica>,
    /// Requests and answers on their way; any may be the next to arrive.
    pub messages: Vec<Message>,
    pub left: Left,
}

#[derive(Clone, Debug, Hash)]
pub struct Store {
    pub view: View,
    pub revision: Revision,
    /// Writes, in the order they committed.
    pub log: Vec<Commit>,
}

#[derive(Clone, Debug, Hash)]
pub struct Commit {
    pub revision: Revision,
    pub claim: String,
    pub epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    Off,
    Up,
    Paused,
}

#[derive(Clone, Debug, Hash)]
pub struct Replica {
    pub life: Life,
    /// How many it opened; the last is its present one.
    pub sessions: u8,
    pub session: String,
    pub seen: Option<View>,
    /// How far its cache is.
    pub cache: Revision,
    pub holds: Holds,
    pub leaving: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub from: usize,
    pub session: String,
    /// The sender still waits for the answer.
    pub awaited: bool,
    pub body: Body,
    /// None: not at the store yet.
    pub answer: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    Change(Request),
    Write { claim: String, epoch: Epoch },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Granted(Owned),
    Committed,
    Refused,
}

/// What may still happen.
#[derive(Clone, Debug, Hash)]
pub struct Left {
    pub leaves: u8,
    pub faults: u8,
    pub writes: u8,
}

/// Replicas and messages by their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Start(usize),
    /// The replica learns that its session has ended, and opens another.
    Reopen(usize),
    /// Its view becomes the store's present state.
    See(usize),
    /// One half of it does.
    SeeMembers(usize),
    SeeClaims(usize),
    /// Its view becomes what the second server knows.
    SeeStale(usize),
    /// That server catches up.
    Sync,
    /// The cache gets so far. It may get further, but less is harder: nothing waits for a cache to be behind.
    CatchUp(usize, Revision),
    /// Nothing happened; it decides anew.
    Tick(usize),
    /// As `Tick`, and it finds that claims have been free for longer than the orphan guard.
    Guard(usize),
    Write(usize, String),
    Arrive(usize),
    Hear(usize),
    GiveUp(usize),
    Leave(usize),
    End(usize),
    Pause(usize),
    Resume(usize),
    Kill(usize),
    Expire(String),
}

/// What must never be, and was.
pub type Violation = String;

impl World {
    pub fn new(scope: &Scope) -> Self {
        let nothing = View::new(Seen::default());
        let replica = Replica {
            life: Life::Off,
            sessions: 0,
            session: String::new(),
            seen: None,
            cache: Revision::ZERO,
            holds: Holds::default(),
            leaving: false,
        };
        Self {
            store: Store { view: nothing.clone(), revision: Revision::ZERO, log: Vec::new() },
            stale: nothing,
            replicas: vec![replica; scope.replicas],
            messages: Vec::new(),
            left: Left { leaves: scope.leaves, faults: scope.faults, writes: scope.writes },
        }
    }

    pub fn seen(&self) -> &Seen {
        &self.store.view.seen
    }

    pub fn is_alive(&self, session: &str) -> bool {
        self.seen().controllers.contains_key(session)
    }

    /// Whether a process that runs has this session.
    pub fn is_up(&self, session: &str) -> bool {
        self.replicas.iter().any(|replica| replica.life == Life::Up && replica.session == session)
    }

    fn waits(&self, from: usize) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |m| m.from == from && m.awaited)
    }

    pub fn pending(&self, from: usize) -> BTreeSet<String> {
        let claims = self.waits(from).filter_map(|m| match &m.body {
            Body::Change(request) => Some(request.claim.clone()),
            Body::Write { .. } => None,
        });
        claims.collect()
    }

    pub fn busy(&self, from: usize) -> BTreeSet<String> {
        let claims = self.waits(from).filter_map(|m| match &m.body {
            Body::Change(_) => None,
            Body::Write { claim, .. } => Some(claim.clone()),
        });
        claims.collect()
    }

    /// Leaving, and nothing is held, or nobody takes it.
    pub fn may_end(&self, r: usize) -> bool {
        let replica = &self.replicas[r];
        let others = |view: &View| view.seen.controllers.iter().any(|(s, peer)| *s != replica.session && peer.ready);
        let alone = !replica.seen.as_ref().is_some_and(others);
        replica.leaving && self.busy(r).is_empty() && (alone || replica.holds.is_empty())
    }

    /// Whether the replica acts under the claim's present epoch.
    pub fn is_effective(&self, r: usize, claim: &str) -> bool {
        let (replica, now) = (&self.replicas[r], self.seen().claim(claim));
        let active = |hold: &Hold| hold.epoch == now.epoch && hold.phase == Phase::Active;
        now.owner == replica.session && replica.holds.get(claim).is_some_and(active)
    }
}

pub fn name(replica: usize) -> char {
    char::from(b'a' + u8::try_from(replica).expect("few replicas"))
}
