//! What the node says of itself, and whose word counts here.

use std::sync::Arc;

use api::v1;
use kinds::node::{CONFIRMED, DRIVER_WORKS, LIMITS_ENFORCED, STOPPING_STRAYS};
use model::{Time, condition};
use serde::{Deserialize, Serialize};

use crate::{
    driver::{Driver, NodeMemory, micros},
    template::Limits,
};

pub struct Node {
    name: String,
    driver: Arc<dyn Driver>,
    pub memory: NodeMemory,
    /// Instances that the store doesn't know; they run on, or are being stopped by a user's word.
    pub unconfirmed: Option<Unconfirmed>,
    /// What the driver can't keep at present, so that the next agent wouldn't know of it.
    pub forgetful: Option<String>,
    /// What else the driver can't do at present.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconfirmed {
    pub doubt: Doubt,
    pub incarnation: String,
    pub instances: usize,
    /// Of them, those that may run without a server's word only for a time.
    #[serde(default)]
    pub bound: usize,
}

/// A user's word for a store, on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmation {
    pub incarnation: String,
    /// Only tells it from an earlier one of the same store.
    #[serde(with = "micros")]
    pub time: Time,
}

/// What a complete snapshot of that incarnation, with so many instances missing from it, is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It is the store whose word counts: absence means what it says.
    Known,
    /// The same by a user's word, however much it misses, until nothing of that is left here.
    Vouched,
    /// It's new, but nothing is at stake since it knows everything that is here, or a user vouched for it: it counts from
    /// now on.
    Adopt,
    /// Absence means nothing until a user vouches for it.
    Unconfirmed(Doubt),
}

/// Why a snapshot isn't believed, or wasn't.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doubt {
    /// It's another store's, and doesn't know what is here.
    OtherIncarnation,
    /// It doesn't know most of what is here: more likely it was restored from an older copy, or lies, than that somebody
    /// took so many records away without asking for their end.
    MostMissing,
    /// None any more, since a user vouched for it; what it doesn't know is going.
    Resolved,
}

/// How many are here, and of how many of them the store says nothing. What is being stopped for that is neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub of: usize,
    pub strays: usize,
}

impl Missing {
    /// Never more than half at once without a word of a user's.
    fn most(self) -> bool {
        self.strays * 2 > self.of
    }
}

/// `running` counts what runs, `all` also what has ended, which must not be forgotten by mistake either.
pub fn trust(
    memory: &NodeMemory,
    confirmed: &Confirmation,
    incarnation: &str,
    running: Missing,
    all: Missing,
) -> Trust {
    let vouched = confirmed.is_for(incarnation) && memory.used.as_ref() != Some(confirmed);
    match &memory.incarnation {
        Some(known) if known == incarnation && vouched => Trust::Vouched,
        Some(known) if known == incarnation && (running.most() || all.most()) => Trust::Unconfirmed(Doubt::MostMissing),
        Some(known) if known == incarnation => Trust::Known,
        _ if all.strays == 0 || vouched => Trust::Adopt,
        _ => Trust::Unconfirmed(Doubt::OtherIncarnation),
    }
}

impl Confirmation {
    pub fn of(spec: &v1::NodeSpec) -> Self {
        let time = spec.confirmed_time.as_ref().map(Time::from).unwrap_or_default();
        Self { incarnation: spec.confirmed_incarnation.clone(), time }
    }

    pub fn is_for(&self, incarnation: &str) -> bool {
        !incarnation.is_empty() && self.incarnation == incarnation
    }
}

impl Unconfirmed {
    fn condition(&self, node: &str) -> v1::Condition {
        let Self { doubt, incarnation, instances, bound } = self;
        let (are, they_run, they_are) = match instances {
            1 => ("is", "it runs", "it is"),
            _ => ("are", "they run", "they are"),
        };
        let instances = kinds::count(*instances, "instance");
        let unknown = format!("doesn't know {instances} that {are} here");
        let until = match bound {
            0 => format!("{they_run} on until somebody vouches for it (driftless node confirm {node})"),
            bound => format!(
                "{they_run} on until somebody vouches for it (driftless node confirm {node}), but for {bound} with \
                 on_disconnect.stop_after: a store that doesn't know of it is no server that is heard, so its supervisor \
                 ends it at its time"
            ),
        };
        let (reason, message) = match doubt {
            Doubt::OtherIncarnation => (
                "OtherIncarnation",
                format!("the store is another one than before (incarnation {incarnation}) and {unknown}; {until}"),
            ),
            Doubt::MostMissing => (
                "MostMissing",
                format!(
                    "the store (incarnation {incarnation}) misses most of what it assigned here: it {unknown}; {until}"
                ),
            ),
            Doubt::Resolved => (
                STOPPING_STRAYS,
                format!(
                    "somebody vouched for the store (incarnation {incarnation}), which {unknown}; {they_are} being \
                     stopped, at most half at a time"
                ),
            ),
        };
        condition(CONFIRMED, Some(false), reason, message)
    }
}

impl Node {
    pub fn new(name: &str, driver: Arc<dyn Driver>, memory: NodeMemory) -> Self {
        let unconfirmed = memory.unconfirmed.clone();
        Self { name: name.into(), driver, memory, unconfirmed, forgetful: None, trouble: None }
    }

    /// The agent's part of the Node's status. Conditions are there only where something is wrong.
    pub fn status(&self) -> v1::NodeStatus {
        let mut conditions = Vec::new();
        conditions.extend(self.unconfirmed.as_ref().map(|unconfirmed| unconfirmed.condition(&self.name)));
        let forgetful = self.forgetful.as_ref().map(|why| ("CannotWrite", why));
        if let Some((reason, why)) = forgetful.or_else(|| self.trouble.as_ref().map(|why| ("Trouble", why))) {
            conditions.push(condition(DRIVER_WORKS, Some(false), reason, why));
        }
        // As if everything were limited that can be.
        if let Some(why) = self.driver.unenforced(&Limits::EVERY) {
            conditions.push(condition(LIMITS_ENFORCED, Some(false), "NotEnforced", why));
        }
        v1::NodeStatus {
            observed_generation: 0,
            conditions,
            capacity: Some(self.driver.capacity()),
            agent_version: env!("CARGO_PKG_VERSION").into(),
            machine_id: self.memory.machine_id.clone(),
            silent_since: None,
            driver: self.driver.name().into(),
        }
    }
}
