//! Which shards the open watch is asked for: those that are wanted, and for a moment those that were. Values only.
//!
//! A shard that is let go and wanted again in one moment is one that the server may never have heard of, since only the
//! newest set counts on the way there: no snapshot of it would come. While claims move, that happens all the time. So what
//! isn't wanted any more stays on the watch, and in the cache, until the moves are over; and where it's wanted again just
//! after it was let go at last, only another watch can say what it has.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::{Duration, Instant};

/// How long a shard that isn't wanted any more is watched on; and how long after that its return is in doubt. Longer than
/// claims take to settle.
pub const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Watched {
    wanted: BTreeSet<u32>,
    /// Not wanted any more, and since when.
    lingering: BTreeMap<u32, Instant>,
    /// No longer asked for, and since when.
    gone: BTreeMap<u32, Instant>,
}

/// The watch that is open can't tell what these shards have.
#[derive(Debug, PartialEq, Eq)]
pub struct InDoubt;

impl Watched {
    /// A watch that is opened for these.
    pub fn open(shards: &[u32]) -> Self {
        Self { wanted: shards.iter().copied().collect(), ..Self::default() }
    }

    /// From now on these are wanted.
    pub fn want(&mut self, shards: &[u32], now: Instant) -> Result<(), InDoubt> {
        let next: BTreeSet<u32> = shards.iter().copied().collect();
        for shard in self.wanted.difference(&next) {
            self.lingering.insert(*shard, now);
        }
        self.lingering.retain(|shard, _| !next.contains(shard));
        self.wanted = next;
        self.pass(now);
        let in_doubt = self.gone.keys().any(|shard| self.wanted.contains(shard));
        if in_doubt { Err(InDoubt) } else { Ok(()) }
    }

    /// Lets go of what has lingered long enough.
    pub fn pass(&mut self, now: Instant) {
        self.gone.retain(|_, since| now < *since + LINGER);
        let over: Vec<u32> =
            self.lingering.iter().filter(|(_, since)| now >= **since + LINGER).map(|(shard, _)| *shard).collect();
        for shard in over {
            self.lingering.remove(&shard);
            self.gone.insert(shard, now);
        }
    }

    /// When `pass` has something to do next.
    pub fn due(&self) -> Option<Instant> {
        self.lingering.values().min().map(|since| *since + LINGER)
    }

    /// What the watch is to cover.
    pub fn shards(&self) -> Vec<u32> {
        self.wanted.iter().chain(self.lingering.keys()).copied().collect::<BTreeSet<u32>>().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(10);

    #[test]
    fn what_comes_back_in_a_moment_was_watched_all_the_time() {
        let now = Instant::now();
        let mut watched = Watched::open(&[1, 2]);
        assert_eq!(watched.want(&[1], now), Ok(()));
        assert_eq!(watched.shards(), [1, 2]);
        assert_eq!(watched.want(&[1, 2, 3], now + MOMENT), Ok(()));
        assert_eq!(watched.shards(), [1, 2, 3]);
        assert_eq!(watched.due(), None);
        watched.pass(now + 2 * LINGER);
        assert_eq!(watched.shards(), [1, 2, 3]);
    }

    #[test]
    fn what_lingered_is_let_go() {
        let now = Instant::now();
        let mut watched = Watched::open(&[1, 2]);
        assert_eq!(watched.want(&[1], now), Ok(()));
        assert_eq!(watched.due(), Some(now + LINGER));
        watched.pass(now + LINGER - MOMENT);
        assert_eq!(watched.shards(), [1, 2]);
        watched.pass(now + LINGER);
        assert_eq!((watched.shards(), watched.due()), (vec![1], None));
    }

    #[test]
    fn what_comes_back_just_after_it_was_let_go_is_in_doubt() {
        let now = Instant::now();
        let returns_after = |pause: Duration| {
            let mut watched = Watched::open(&[1, 2]);
            watched.want(&[1], now).expect("nothing came back");
            watched.pass(now + LINGER);
            watched.want(&[1, 2], now + LINGER + pause)
        };
        assert_eq!(returns_after(MOMENT), Err(InDoubt));
        assert_eq!(returns_after(LINGER), Ok(()));
    }
}
