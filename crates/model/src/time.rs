//! Points in time, as servers stamp them.

use std::{fmt, time::Duration};

use prost_types::Timestamp;

/// Microseconds since the Unix epoch. Decisions are handed one; nothing here reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    pub fn from_millis(millis: i64) -> Self {
        Self(millis * 1_000)
    }

    pub fn millis(self) -> i64 {
        self.0 / 1_000
    }

    /// How long after `earlier`; zero if it is not after.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl From<&Timestamp> for Time {
    fn from(t: &Timestamp) -> Self {
        Self(t.seconds.saturating_mul(1_000_000).saturating_add(i64::from(t.nanos) / 1_000))
    }
}

impl From<Time> for Timestamp {
    fn from(t: Time) -> Self {
        let nanos = i32::try_from(t.0.rem_euclid(1_000_000) * 1_000).expect("below one second");
        Self { seconds: t.0.div_euclid(1_000_000), nanos }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Timestamp::from(*self).fmt(f)
    }
}
