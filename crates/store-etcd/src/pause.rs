//! Pauses between attempts. None is the same twice: many that were refused together must not come back together.

use std::time::Duration;

/// Half to one and a half of it.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..1.5))
}

/// Pauses that double up to a bound.
#[derive(Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// How long to wait now.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        jittered(pause)
    }

    /// It went well.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(25);
    const MAX: Duration = Duration::from_millis(200);

    #[test]
    fn pauses_grow_to_their_bound_and_begin_anew_after_success() {
        let mut backoff = Backoff::new(MIN, MAX);
        for of in [MIN, 2 * MIN, 4 * MIN, MAX, MAX] {
            let pause = backoff.pause();
            assert!(of / 2 <= pause && pause < of * 3 / 2, "{pause:?} of {of:?}");
        }
        backoff.reset();
        assert!(backoff.pause() < MIN * 3 / 2);
    }

    #[test]
    fn who_was_refused_together_comes_back_apart() {
        let pauses: std::collections::BTreeSet<Duration> = (0..100).map(|_| Backoff::new(MIN, MAX).pause()).collect();
        assert!(pauses.len() > 90, "{pauses:?}");
    }
}
