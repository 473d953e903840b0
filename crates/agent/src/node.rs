//! What the node says of itself, and whose word counts here.

use std::sync::Arc;

use api::v1;
use model::condition;

use crate::driver::{Driver, NodeMemory};

pub struct Node {
    driver: Arc<dyn Driver>,
    pub memory: NodeMemory,
    /// Instances that a store of another incarnation doesn't know; they run on.
    pub unconfirmed: Option<Unconfirmed>,
    /// What the driver can't do at present.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
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
    /// It's new, and doesn't know what is here.
    Unconfirmed,
}

pub fn trust(recorded: Option<&str>, confirmed: &str, incarnation: &str, strays: usize) -> Trust {
    match recorded {
        Some(known) if known == incarnation => Trust::Known,
        _ if strays == 0 || confirmed == incarnation => Trust::Adopt,
        _ => Trust::Unconfirmed,
    }
}

impl Node {
    pub fn new(driver: Arc<dyn Driver>, memory: NodeMemory) -> Self {
        Self { driver, memory, unconfirmed: None, trouble: None }
    }

    /// The agent's part of the Node's status. Conditions are there only where something is wrong.
    pub fn status(&self) -> v1::NodeStatus {
        let mut conditions = Vec::new();
        if let Some(Unconfirmed { incarnation, instances }) = &self.unconfirmed {
            let message = format!(
                "the store is of another incarnation ({incarnation}) and doesn't know {instances} instances that run \
                 here; they run on until somebody confirms the store for this node"
            );
            conditions.push(condition("Confirmed", Some(false), "OtherIncarnation", message));
        }
        if let Some(trouble) = &self.trouble {
            conditions.push(condition("DriverWorks", Some(false), "Trouble", trouble));
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
