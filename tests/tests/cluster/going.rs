//! What goes on beside a test until it's told to stop.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::task::JoinHandle;

/// Stops between two turns, never within one. Whoever is dropped while it waits for an answer leaves a write behind that
/// may still be done, after the test believes that everything has come to rest.
pub struct Going {
    stopped: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Going {
    /// The turns are numbered from 0 on.
    pub fn start<F: Future<Output = ()> + Send>(mut turn: impl FnMut(usize) -> F + Send + 'static) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let until = stopped.clone();
        let task = tokio::spawn(async move {
            for n in (0..).take_while(|_| !until.load(Ordering::Relaxed)) {
                turn(n).await;
            }
        });
        Self { stopped, task }
    }

    /// Returns after its last turn.
    pub async fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.task.await.expect("it doesn't panic");
    }
}
