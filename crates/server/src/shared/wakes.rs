//! Wakes watchers when the cache has moved: all of them, but for those of one node, whom only changes of that node's
//! resources concern. So a thousand agents don't wake a thousand times a second for each other's work.
//!
//! A watcher has a bell, which stays rung until it looks. That costs less for each delivery than a channel, to which every
//! waiter has to add itself anew each time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use model::Revision;
use tokio::sync::watch;

use crate::ring::Kept;

#[derive(Clone)]
pub struct Wakes {
    progress: watch::Sender<Revision>,
    hung: Arc<Mutex<Hung>>,
}

/// The bells, by whom they're for.
#[derive(Default)]
struct Hung {
    next: u64,
    all: Bells,
    nodes: HashMap<String, Bells>,
}

type Bells = BTreeMap<u64, Arc<Bell>>;

/// Rung until somebody looks. The first look is due at once.
#[derive(Default)]
pub struct Bell {
    silent: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    /// Whom to wake from now on. Whoever calls this asks `heard` after it, lest a ring is missed.
    pub fn wakes(&self, waker: &Waker) {
        *self.waker() = Some(waker.clone());
    }

    /// Whether it was rung since this was asked last.
    pub fn heard(&self) -> bool {
        !self.silent.swap(true, Ordering::AcqRel)
    }

    fn ring(&self) {
        if self.silent.swap(false, Ordering::AcqRel)
            && let Some(waker) = &*self.waker()
        {
            waker.wake_by_ref();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bell in its place, until this is dropped.
pub struct Place {
    wakes: Wakes,
    id: u64,
    node: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut hung = self.wakes.hung();
        let Hung { all, nodes, .. } = &mut *hung;
        if self.node.is_empty() {
            all.remove(&self.id);
        } else if let Some(bells) = nodes.get_mut(&self.node) {
            bells.remove(&self.id);
            if bells.is_empty() {
                nodes.remove(&self.node);
            }
        }
    }
}

impl Wakes {
    pub fn new() -> Self {
        Self { progress: watch::Sender::new(Revision::ZERO), hung: Arc::default() }
    }

    pub fn progress(&self) -> watch::Receiver<Revision> {
        self.progress.subscribe()
    }

    /// Rings for whatever concerns that node, or everybody; for every change where it's empty.
    pub fn hang(&self, node: &str, bell: &Arc<Bell>) -> Place {
        let mut hung = self.hung();
        let id = hung.next;
        hung.next += 1;
        let bells = match node {
            "" => &mut hung.all,
            node => hung.nodes.entry(node.to_owned()).or_default(),
        };
        bells.insert(id, bell.clone());
        Place { wakes: self.clone(), id, node: node.to_owned() }
    }

    /// The cache has reached that revision by these groups.
    pub fn moved<'a>(&self, revision: Revision, groups: impl Iterator<Item = &'a Kept>) {
        self.progress.send_replace(revision);
        let hung = self.hung();
        ring(&hung.all);
        if hung.nodes.is_empty() {
            return;
        }
        let changes = groups.flat_map(|group| &group.changes);
        let records = changes.flat_map(|change| change.before.iter().chain(&change.after));
        records.filter_map(|record| hung.nodes.get(record.node()?)).for_each(ring);
    }

    /// Another state of the cache, which everybody must look at.
    pub fn all(&self, revision: Revision) {
        self.progress.send_replace(revision);
        self.everybody();
    }

    /// Something else than the cache that everybody must look at. It says nothing of how far the cache is: whoever isn't
    /// the one that moves it may know less, and would take back what somebody waits for.
    pub fn everybody(&self) {
        let hung = self.hung();
        ring(&hung.all);
        hung.nodes.values().for_each(ring);
    }

    fn hung(&self) -> MutexGuard<'_, Hung> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ring(bells: &Bells) {
    bells.values().for_each(|bell| bell.ring());
}

#[cfg(test)]
mod tests;
