//! What the node says of itself, and whose word counts here.

use std::sync::Arc;

use api::v1;
use model::condition;

use crate::driver::{Driver, NodeMemory};

pub struct Node {
    name: String,
    driver: Arc<dyn Driver>,
    pub memory: NodeMemory,
    /// Instances that the store doesn't know, and whose end nobody vouched for; they run on.
    pub unconfirmed: Option<Unconfirmed>,
    /// What the driver can't keep at present, so that the next agent wouldn't know of it.
    pub forgetful: Option<String>,
    /// What else the driver can't do at present.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    pub doubt: Doubt,
    pub incarnation: String,
    pub instances: usize,
}

/// What a complete snapshot of that incarnation, with so many instances missing from it, is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It is the store whose word counts: absence means what it says.
    Known,
    /// It's new, but nothing is at stake since it knows everything that is here, or a user vouched for it: it counts from
    /// now on.
    Adopt,
    /// Absence means nothing until a user vouches for it.
    Unconfirmed(Doubt),
}

/// Why a snapshot isn't believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It's another store's, and doesn't know what is here.
    OtherIncarnation,
    /// It doesn't know most of what is here: more likely it was restored from an older copy, or lies, than that somebody
    /// took so many records away without asking for their end.
    MostMissing,
}

/// How many are here, and of how many of them the store says nothing.
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
pub fn trust(recorded: Option<&str>, confirmed: &str, incarnation: &str, running: Missing, all: Missing) -> Trust {
    let vouched = !confirmed.is_empty() && confirmed == incarnation;
    match recorded {
        Some(known) if known == incarnation && !vouched && (running.most() || all.most()) => {
            Trust::Unconfirmed(Doubt::MostMissing)
        }
        Some(known) if known == incarnation => Trust::Known,
        _ if all.strays == 0 || vouched => Trust::Adopt,
        _ => Trust::Unconfirmed(Doubt::OtherIncarnation),
    }
}

impl Unconfirmed {
    fn condition(&self, node: &str) -> v1::Condition {
        let Self { doubt, incarnation, instances } = self;
        let (reason, what) = match doubt {
            Doubt::OtherIncarnation => ("OtherIncarnation", "the store is another one than before"),
            Doubt::MostMissing => ("MostMissing", "the store misses most of what it assigned here"),
        };
        let message = format!(
            "{what} (incarnation {incarnation}) and doesn't know {instances} instances that are here; they run on until \
             somebody vouches for it (driftless node confirm {node})"
        );
        condition("Confirmed", Some(false), reason, message)
    }
}

impl Node {
    pub fn new(name: &str, driver: Arc<dyn Driver>, memory: NodeMemory) -> Self {
        Self { name: name.into(), driver, memory, unconfirmed: None, forgetful: None, trouble: None }
    }

    /// The agent's part of the Node's status. Conditions are there only where something is wrong.
    pub fn status(&self) -> v1::NodeStatus {
        let mut conditions = Vec::new();
        conditions.extend(self.unconfirmed.as_ref().map(|unconfirmed| unconfirmed.condition(&self.name)));
        let forgetful = self.forgetful.as_ref().map(|why| ("CannotWrite", why));
        if let Some((reason, why)) = forgetful.or_else(|| self.trouble.as_ref().map(|why| ("Trouble", why))) {
            conditions.push(condition("DriverWorks", Some(false), reason, why));
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
