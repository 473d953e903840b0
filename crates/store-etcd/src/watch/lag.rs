//! Whether the watch left out a commit that `head` proves. Values only.
//!
//! That is judged when the probe is answered, never by the clock alone: the answer comes over the connection that the watch
//! is on, so what was on its way before it is here by then. A process that stood still for a moment would otherwise take for
//! lost what only waits to be read.

use std::time::Duration;

use model::Revision;
use tokio::time::Instant;

/// A commit that `head` proves and that isn't delivered by then never will be.
const LAG_MAX: Duration = Duration::from_millis(500);

/// What must have come, and since when that is known.
#[derive(Debug, Default)]
pub struct Lag(Option<(Instant, Revision)>);

impl Lag {
    /// The probe was answered, and how far the watch is by now. Whether it left something out.
    pub fn probed(&mut self, now: Instant, shown: Revision, here: Revision) -> bool {
        match self.0 {
            Some((since, awaited)) if here < awaited => now.duration_since(since) >= LAG_MAX,
            _ => {
                self.0 = (shown > here).then_some((now, shown));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_secs(10);

    #[test]
    fn what_never_comes_is_missed_once_its_time_is_over() {
        let (mut lag, now) = (Lag::default(), Instant::now());
        assert!(!lag.probed(now, Revision(5), Revision(4)));
        assert!(!lag.probed(now + LAG_MAX / 2, Revision(5), Revision(4)));
        assert!(lag.probed(now + LAG_MAX, Revision(5), Revision(4)));
    }

    #[test]
    fn what_was_read_late_is_not_missed() {
        let (mut lag, now) = (Lag::default(), Instant::now());
        assert!(!lag.probed(now, Revision(5), Revision(4)));
        assert!(!lag.probed(now + LATE, Revision(5), Revision(5)), "the process stood still, and read on");
        assert!(!lag.probed(now + LATE, Revision(9), Revision(6)), "what is awaited next has its own time");
        assert!(!lag.probed(now + LATE + LAG_MAX / 2, Revision(9), Revision(6)));
    }

    #[test]
    fn a_busy_watch_is_always_behind_and_never_late() {
        let (mut lag, start) = (Lag::default(), Instant::now());
        let late = |n: u32| {
            let here = 10 * i64::from(n);
            lag.probed(start + LAG_MAX * n, Revision(here + 2), Revision(here))
        };
        assert!(!(0..100).any(late));
    }
}
