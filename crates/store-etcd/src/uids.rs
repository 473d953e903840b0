//! Which uid a key has at a revision. A revision stands for one write, so what was learned stays right for as long as the
//! store is of the same incarnation; knowing it saves a commit a read.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use model::{Key, Revision};

/// Keys in each of the two generations: what is written over again soon is what matters.
const KEYS_MAX: usize = 8192;

type Generation = HashMap<Key, (Revision, Arc<str>)>;

#[derive(Debug, Default)]
pub struct Uids(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: Generation,
    old: Generation,
}

impl Uids {
    pub fn learn(&self, key: &Key, revision: Revision, uid: &str) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.young.get(key).is_some_and(|(known, _)| *known > revision) {
            return;
        }
        if generations.young.len() >= KEYS_MAX {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(key.clone(), (revision, uid.into()));
    }

    pub fn of(&self, key: &Key, revision: Revision) -> Option<Arc<str>> {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = [&generations.young, &generations.old].into_iter().filter_map(|generation| generation.get(key));
        known.filter(|(known, _)| *known == revision).map(|(_, uid)| uid.clone()).next()
    }

    /// The store is another one now.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Generations::default();
    }
}

#[cfg(test)]
#[path = "uids_tests.rs"]
mod tests;
