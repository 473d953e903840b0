//! What a decision says: the reason, the one step, and what to do after.

use api::v1;
use prost_types::Any;

use crate::{Key, Time};

/// Why something is so. One value feeds the condition, the history entry, the metric's label, the trace and `why`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// CamelCase, one of few: it's a metric label too.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// What it waits for or is blocked by.
    pub because_of: Vec<Key>,
}

impl Why {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), because_of: Vec::new() }
    }

    pub fn because_of(mut self, keys: impl IntoIterator<Item = Key>) -> Self {
        self.because_of.extend(keys);
        self
    }
}

impl From<&Why> for v1::Why {
    fn from(why: &Why) -> Self {
        Self { reason: why.reason.into(), message: why.message.clone() }
    }
}

/// A resource to be made: what its maker decides about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    pub key: Key,
    pub labels: Vec<(String, String)>,
    pub spec: Any,
    pub status: Option<Any>,
}

/// One change of one resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    /// A child of the reconciled resource; expects that the name is free.
    Create(Box<Draft>),
    /// Replaces the fields of the spec that the domain owns, and of the status where one is given.
    SetSpec { key: Key, uid: String, spec: Any, status: Option<Any> },
    /// Replaces the fields of the status that the domain owns.
    SetStatus { key: Key, uid: String, status: Any },
    /// Asks it to go: sets the deletion time.
    Delete { key: Key, uid: String },
    /// Deletes the record.
    Remove { key: Key, uid: String },
}

impl Move {
    pub fn key(&self) -> &Key {
        match self {
            Self::Create(draft) => &draft.key,
            Self::SetSpec { key, .. }
            | Self::SetStatus { key, .. }
            | Self::Delete { key, .. }
            | Self::Remove { key, .. } => key,
        }
    }
}

/// One step: a batch of the same move. Any prefix of it must be right too, since a step is cut to the store's bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// "create", "bind", "stop", "remove": few, lower-case.
    pub verb: &'static str,
    pub moves: Vec<Move>,
}

/// When to look again though nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Only a change of what was looked at can matter (and the sweep looks anyway).
    Change,
    Time(Time),
}

/// What to do next about one resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing: declared and observed agree.
    Settled(Why),
    /// This, then look again.
    Do(Step, Why),
    /// Nothing before that, unless something changes first.
    Wait(Until, Why),
    /// Nothing until somebody else acts.
    Blocked(Why),
}

impl Next {
    pub fn why(&self) -> &Why {
        match self {
            Self::Settled(why) | Self::Do(_, why) | Self::Wait(_, why) | Self::Blocked(why) => why,
        }
    }

    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Settled(_) => "settled",
            Self::Do(..) => "do",
            Self::Wait(..) => "wait",
            Self::Blocked(_) => "blocked",
        }
    }
}

/// What a reconciler says of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub next: Next,
    /// The status that should be seen (the fields of the reconciler's domain). Where it differs from what is stored it
    /// rides in the step, or is the step. It holds no moving values, such as ages.
    pub status: Option<Any>,
}

impl From<Next> for Decision {
    fn from(next: Next) -> Self {
        Self { next, status: None }
    }
}
