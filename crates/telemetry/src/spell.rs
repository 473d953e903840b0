//! Failures that repeat while something is away: told when they begin, then once a minute with how many they were.
//!
//! Only the log is spared. What is done about a failure never depends on whether it was told.

use std::time::Duration;

use tokio::time::Instant;

/// As often as that a failure that goes on is told.
const EVERY: Duration = Duration::from_secs(60);
/// Twice the longest pause between two tries (a watch is given up after 15 s of silence): where nothing failed for so
/// long it worked in between, and what fails next is news.
const OVER: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Spell {
    last: Option<Instant>,
    told: Option<Instant>,
    untold: u64,
    /// The longest pause between two tries, where that is longer.
    pause: Duration,
}

impl Spell {
    /// Of what is tried no more often than that.
    pub fn of_every(pause: Duration) -> Self {
        Self { pause, ..Self::default() }
    }

    /// So many failed by now. Returns how many there were since it was last told, where it's time to tell.
    pub fn failed(&mut self, count: u64, now: Instant) -> Option<u64> {
        let longer = |since: Option<Instant>, limit| since.is_none_or(|since| now.duration_since(since) >= limit);
        let due = longer(self.last, OVER.max(self.pause * 2)) || longer(self.told, EVERY);
        self.last = Some(now);
        self.untold += count;
        due.then(|| {
            self.told = Some(now);
            std::mem::take(&mut self.untold)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When something was told, in seconds, and of how many, where something failed at these times.
    fn told(failures: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
        let (mut spell, start) = (Spell::default(), Instant::now());
        let at = |second: u64| Some((second, spell.failed(1, start + Duration::from_secs(second))?));
        failures.into_iter().filter_map(at).collect()
    }

    #[test]
    fn what_goes_on_is_told_at_once_and_then_once_a_minute() {
        assert_eq!(told(0..=150), [(0, 1), (60, 60), (120, 60)]);
    }

    #[test]
    fn what_is_seldom_tried_goes_on_from_one_try_to_the_next() {
        let (mut spell, start) = (Spell::of_every(Duration::from_secs(40)), Instant::now());
        let mut failed = |second| spell.failed(1, start + Duration::from_secs(second));
        assert_eq!([0, 40, 80, 120, 160].map(&mut failed), [Some(1), None, Some(2), None, Some(2)]);
        assert_eq!(failed(240), Some(1), "it worked in between");
    }

    #[test]
    fn what_fails_again_after_it_worked_is_told_at_once() {
        assert_eq!(told([0, 1, 2, 32, 33]), [(0, 1), (32, 3)]);
    }
}
