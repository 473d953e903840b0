//! The tasks that a store runs for as long as it exists. None of them may be missed: where one panics, the store says that
//! it's broken, so that whoever runs it ends rather than going on without.

use std::{future::Future, panic::AssertUnwindSafe};

use futures::FutureExt;
use tokio::sync::watch;
use tracing::error;

#[derive(Debug, Default)]
pub struct Parts {
    /// The first one that panicked.
    broken: watch::Sender<Option<&'static str>>,
}

impl Parts {
    /// Runs that one until it ends by itself, which it does with the store.
    pub fn spawn(&self, part: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let broken = self.broken.clone();
        tokio::spawn(async move {
            if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                error!(part, "a part of the store on etcd panicked, which is a defect");
                broken.send_if_modified(|broken| broken.is_none().then(|| *broken = Some(part)).is_some());
            }
        });
    }

    /// Waits until one of them panicked, and says which.
    pub async fn broken(&self) -> &'static str {
        let mut broken = self.broken.subscribe();
        loop {
            if let Some(part) = *broken.borrow_and_update() {
                return part;
            }
            // The sender is here, so it can't be gone.
            let _ = broken.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_is_told_and_one_that_ends_is_not() {
        let parts = Parts::default();
        parts.spawn("one that ends", async {});
        tokio::task::yield_now().await;
        assert_eq!(parts.broken().now_or_never(), None);
        parts.spawn("one that panics", async { panic!("it is to be noticed") });
        assert_eq!(parts.broken().await, "one that panics");
    }
}
