//! The reference backend: everything in this process's memory, and gone with it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use model::Revision;

use crate::{
    Cluster, HistoryQuery, LogEntry, LogRecord, Result,
    local::{Engine, Local, Published},
    state::{Draft, Staged, State},
};

pub type Memory = Local<Direct>;

/// Publishes each operation as soon as it is applied.
pub struct Direct {
    published: Arc<Published>,
    /// By revision, then in the order they were given. Also what makes writers take turns.
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    entries: BTreeMap<(Revision, usize), LogEntry>,
    /// By root and slot.
    slots: HashMap<(String, String), (Revision, usize)>,
}

impl History {
    fn add(&mut self, at: (Revision, usize), mut entry: LogEntry) {
        let slot = std::mem::take(&mut entry.slot);
        if !slot.is_empty()
            && let Some(before) = self.slots.insert((entry.root_uid.clone(), slot), at)
        {
            self.entries.remove(&before);
        }
        self.entries.insert(at, entry);
    }

    fn trim(&mut self, up_to: Revision) -> usize {
        let kept = self.entries.split_off(&(Revision(up_to.0.saturating_add(1)), 0));
        self.slots.retain(|_, (revision, _)| *revision > up_to);
        std::mem::replace(&mut self.entries, kept).len()
    }
}

impl Memory {
    pub fn new(cluster: Cluster) -> Self {
        let published = Arc::new(Published::new(State::new(cluster)));
        Self::over(published.clone(), Direct { published, history: Mutex::default() })
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(Cluster::random())
    }
}

impl Direct {
    fn apply<T>(&self, operation: impl FnOnce(&mut Draft<'_>) -> Result<T>) -> Result<T> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcome, mut staged) = {
            let state = self.published.read();
            let mut staged = Staged::on(&state);
            (operation(&mut Draft::new(&state, &mut staged)), staged)
        };
        let log = std::mem::take(&mut staged.log);
        for (index, (revision, entry)) in log.into_iter().enumerate() {
            history.add((revision, index), entry);
        }
        self.published.publish(staged);
        outcome
    }

    fn entries(&self, query: &HistoryQuery, up_to: Revision) -> Vec<LogRecord> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = |entry: &LogEntry| query.root_uid.as_ref().is_none_or(|root| *root == entry.root_uid);
        let newest = history.entries.iter().rev().skip_while(|((revision, _), _)| *revision > up_to);
        let mut records: Vec<LogRecord> = newest
            .take_while(|((revision, _), _)| *revision > query.after)
            .filter(|(_, entry)| asked(entry))
            .take(query.limit)
            .map(|((revision, _), entry)| LogRecord { revision: *revision, entry: entry.clone() })
            .collect();
        records.reverse();
        records
    }

    fn trim(&self, up_to: Revision) -> usize {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).trim(up_to)
    }
}

impl Engine for Direct {
    async fn execute<T, F>(&self, _bytes: usize, operation: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Draft<'_>) -> Result<T> + Send + 'static,
    {
        self.apply(operation)
    }

    async fn history(&self, query: HistoryQuery, up_to: Revision) -> Result<Vec<LogRecord>> {
        Ok(self.entries(&query, up_to))
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        Ok(self.trim(up_to))
    }
}

#[cfg(test)]
pub(crate) use tests::conformance_setup;

#[cfg(test)]
mod tests;
