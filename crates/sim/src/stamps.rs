//! A server's clock and uids in a simulation: they follow tokio's clock, and repeat from run to run.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use model::Time;
use server::Stamps;
use tokio::time::Instant;

pub struct TurnedStamps {
    base: Time,
    started: Instant,
    uids: AtomicU64,
}

impl Default for TurnedStamps {
    fn default() -> Self {
        // Some day in 2033: a time that no one takes for unset.
        let base = Time::default().plus(Duration::from_secs(2_000_000_000));
        Self { base, started: Instant::now(), uids: AtomicU64::default() }
    }
}

impl Stamps for TurnedStamps {
    fn now(&self) -> Time {
        self.base.plus(self.started.elapsed())
    }

    fn uid(&self) -> String {
        format!("uid-{}", self.uids.fetch_add(1, Relaxed))
    }
}
