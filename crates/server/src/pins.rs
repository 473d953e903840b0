//! Lists whose pages all show one revision while writes go on. A pin keeps, from its revision on, what each change
//! replaced: so it costs nothing when it is made, and at most one record for each key that changed since.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use model::{Key, Revision};
use tokio::time::Instant;

use crate::record::Record;

/// Lists that may be under way at different revisions.
pub const PINS_MAX: usize = 16;
/// Records one pin may hold on to.
pub const PIN_RECORDS_MAX: usize = 100_000;
/// Between two pages.
pub const PIN_IDLE_MAX: Duration = Duration::from_secs(60);

pub type Records = BTreeMap<Key, Arc<Record>>;

#[derive(Debug)]
struct Pin {
    revision: Revision,
    /// What stood there at its revision, for each key that changed since; none: nothing did.
    undo: BTreeMap<Key, Option<Arc<Record>>>,
    used: Instant,
}

#[derive(Debug, Default)]
pub struct Pins(Vec<Pin>);

impl Pins {
    /// Keeps the present state, which is that revision's.
    pub fn pin(&mut self, revision: Revision, now: Instant) {
        if self.touch(revision, now) {
            return;
        }
        if self.0.len() >= PINS_MAX
            && let Some(oldest) = (0..self.0.len()).min_by_key(|i| self.0[*i].used)
        {
            self.0.swap_remove(oldest);
        }
        self.0.push(Pin { revision, undo: BTreeMap::new(), used: now });
    }

    /// Whether that revision is kept; then it's kept for longer.
    pub fn touch(&mut self, revision: Revision, now: Instant) -> bool {
        let found = self.0.iter_mut().find(|pin| pin.revision == revision);
        found.map(|pin| pin.used = now).is_some()
    }

    pub fn record(&mut self, key: &Key, before: Option<&Arc<Record>>) {
        for pin in &mut self.0 {
            if !pin.undo.contains_key(key) {
                pin.undo.insert(key.clone(), before.cloned());
            }
        }
        self.0.retain(|pin| pin.undo.len() <= PIN_RECORDS_MAX);
    }

    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|pin| now.saturating_duration_since(pin.used) <= PIN_IDLE_MAX);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The records at that revision from `start` on, in key order; `now` is the present state.
    pub fn range<'a>(
        &'a self,
        revision: Revision,
        now: &'a Records,
        start: Bound<&Key>,
    ) -> Option<impl Iterator<Item = (&'a Key, &'a Arc<Record>)> + use<'a>> {
        let pin = self.0.iter().find(|pin| pin.revision == revision)?;
        let mut present = now.range::<Key, _>((start, Bound::Unbounded)).peekable();
        let mut undo = pin.undo.range::<Key, _>((start, Bound::Unbounded)).peekable();
        Some(std::iter::from_fn(move || {
            loop {
                let undone_first = match (present.peek(), undo.peek()) {
                    (_, None) => return present.next(),
                    (None, Some(_)) => true,
                    (Some((key, _)), Some((undone, _))) => undone <= key,
                };
                if !undone_first {
                    return present.next();
                }
                let (key, before) = undo.next().expect("peeked");
                present.next_if(|(now, _)| *now == key);
                if let Some(before) = before {
                    return Some((key, before));
                }
            }
        }))
    }
}
