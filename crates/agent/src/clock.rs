//! The agent's one clock: wall time at the start, then tokio's monotonic one, so that a simulation can turn it and a
//! step of the wall clock can't.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Time;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Time,
    started: Instant,
}

impl Clock {
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::at(Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)))
    }

    pub fn at(base: Time) -> Self {
        Self { base, started: Instant::now() }
    }

    pub fn now(&self) -> Time {
        self.base.plus(self.started.elapsed())
    }

    /// Which time it is, or was, at that moment.
    pub fn time(&self, instant: Instant) -> Time {
        self.base.plus(instant.saturating_duration_since(self.started))
    }

    /// When that time comes.
    pub fn instant(&self, time: Time) -> Instant {
        self.started + time.since(self.base) + Duration::from_micros(1)
    }
}
