//! The agent's one clock: wall time at the start, then tokio's monotonic one, so that a simulation can turn it and a
//! step of the wall clock can't; and the time that the machine slept, since nobody else's clock stands still meanwhile.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Time;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Time,
    started: Instant,
    /// How long the machine had slept by then.
    slept: Duration,
}

impl Clock {
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::at(Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)))
    }

    pub fn at(base: Time) -> Self {
        Self { base, started: Instant::now(), slept: slept() }
    }

    pub fn now(&self) -> Time {
        self.after(slept())
    }

    /// When that time comes, if the machine doesn't sleep until then.
    pub fn instant(&self, time: Time) -> Instant {
        self.instant_after(time, slept())
    }

    /// When that time comes, by a clock that others have as well. A pause between the readings makes it earlier, never
    /// later.
    pub fn moment(&self, time: Time) -> Moment {
        let moment = Moment::now();
        let now = self.now();
        Moment((moment.0 + time.since(now)).saturating_sub(now.since(time)))
    }

    fn after(&self, slept: Duration) -> Time {
        self.base.plus(self.started.elapsed() + slept.saturating_sub(self.slept))
    }

    fn instant_after(&self, time: Time, slept: Duration) -> Instant {
        let awake = time.since(self.base).saturating_sub(slept.saturating_sub(self.slept));
        self.started + awake + Duration::from_micros(1)
    }
}

/// A moment of this machine's life, which goes on while it sleeps: CLOCK_BOOTTIME, the same to all its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    pub fn now() -> Self {
        Self(read(ClockId::Boottime))
    }

    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// As supervisors are told.
    pub fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What two readings of the clocks may be apart, so that it says something that one of them is ahead.
const APART_MAX: Duration = Duration::from_millis(10);
/// A thread that is held up between them each time is told a little too much.
const READINGS_MAX: u32 = 8;

/// How long the machine has slept since its start, in steps of `APART_MAX`.
fn slept() -> Duration {
    let mut slept = Duration::ZERO;
    for _ in 0..READINGS_MAX {
        let (awake, all) = (read(ClockId::Monotonic), read(ClockId::Boottime));
        slept = all.saturating_sub(awake);
        if read(ClockId::Monotonic).saturating_sub(awake) < APART_MAX / 4 {
            break;
        }
    }
    APART_MAX * u32::try_from((slept + APART_MAX / 2).as_millis() / APART_MAX.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_that_the_machine_slept_counts() {
        let clock = Clock { slept: Duration::from_secs(60), ..Clock::at(Time::from_millis(1_000)) };
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(clock.after(Duration::from_secs(60)), Time::from_millis(3_000));
        assert_eq!(clock.after(Duration::from_secs(67)), Time::from_millis(10_000));
        let wake = clock.instant_after(Time::from_millis(12_000), Duration::from_secs(67));
        assert_eq!(wake.saturating_duration_since(Instant::now()).as_secs(), 2);
    }

    #[tokio::test]
    async fn a_time_is_the_same_moment_to_others() {
        let clock = Clock::start();
        let earliest = Moment::now().plus(Duration::from_secs(5));
        let moment = clock.moment(clock.now().plus(Duration::from_secs(5)));
        // A little earlier by the time between the readings, which are in whole microseconds.
        assert!(moment.plus(Duration::from_secs(1)) > earliest, "{moment:?} {earliest:?}");
        assert!(moment <= Moment::now().plus(Duration::from_secs(5)), "{moment:?}");
        assert!(clock.moment(Time::default()) < Moment::now());
    }
}
