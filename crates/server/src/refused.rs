//! Machines that asked for the name of a node that is another's. Each asks again and again, so it's told once, in a warning of
//! the server that refused it. It decides nothing: `nodes` does.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use store::Error;
use tracing::warn;

/// Machines remembered; of more the oldest are forgotten, and told once more if they ask again.
const TOLD_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub struct Refused {
    /// Nodes' names, each with a machine that didn't get it; oldest first.
    told: Mutex<VecDeque<(String, String)>>,
}

impl Refused {
    pub fn note(&self, node: &str, machine: &str, error: &Error) {
        if self.is_new(node, machine) {
            warn!(node, machine, %error, "a machine was refused a node's name");
        }
    }

    /// It got the name after all: should it be refused another time, that is news.
    pub fn forget(&self, node: &str, machine: &str) {
        self.told().retain(|(n, m)| (n.as_str(), m.as_str()) != (node, machine));
    }

    fn is_new(&self, node: &str, machine: &str) -> bool {
        let mut told = self.told();
        if told.iter().any(|(n, m)| (n.as_str(), m.as_str()) == (node, machine)) {
            return false;
        }
        if told.len() == TOLD_MAX {
            told.pop_front();
        }
        told.push_back((node.into(), machine.into()));
        true
    }

    fn told(&self) -> MutexGuard<'_, VecDeque<(String, String)>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_once_until_it_got_the_name() {
        let refused = Refused::default();
        assert_eq!(["m1", "m1", "m2", "m1"].map(|m| refused.is_new("n1", m)), [true, false, true, false]);
        assert!(refused.is_new("n2", "m1"), "it asks for another name");
        refused.forget("n1", "m1");
        assert_eq!(["m1", "m2"].map(|m| refused.is_new("n1", m)), [true, false]);
    }

    #[test]
    fn no_more_machines_are_remembered_than_that() {
        let refused = Refused::default();
        assert!((0..=TOLD_MAX).all(|i| refused.is_new("n1", &i.to_string())));
        assert_eq!(refused.told().len(), TOLD_MAX);
        assert!(!refused.is_new("n1", "1") && refused.is_new("n1", "0"), "the oldest is forgotten");
    }
}
