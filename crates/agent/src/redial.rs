//! Pauses between tries.

use std::time::Duration;

use rand::Rng;

const FIRST: Duration = Duration::from_millis(10);

/// Doubles up to a bound, with full jitter; starts over after a success.
#[derive(Debug)]
pub struct Redial {
    next: Duration,
    max: Duration,
}

impl Redial {
    pub fn new(max: Duration) -> Self {
        Self { next: FIRST, max }
    }

    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    pub async fn pause(&mut self) {
        let most = self.next;
        self.next = (most * 2).min(self.max);
        let pause = rand::rng().random_range(Duration::ZERO..=most);
        tokio::time::sleep(pause).await;
    }
}
