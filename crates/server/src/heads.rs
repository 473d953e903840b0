//! Reads the store's head for whoever needs a linearizable answer: one read at a time, shared by everybody who asked
//! before it began; and one now and then on its own, so that a store that went away is noticed.

use std::sync::Arc;

use store::{Error, Head, Result};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, MissedTickBehavior, interval, timeout},
};

use crate::shared::{Readiness, Reading, Shared};

/// Callers that wait for a head.
const WAITING_MAX: usize = 10_000;
/// A read that takes longer counts as failed.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// Between reads of our own: four in the time after which a server is stale.
const CONFIRM_EVERY: Duration = Duration::from_millis(500);

type Waiter = oneshot::Sender<Result<Head>>;

/// Asks the task for heads.
#[derive(Clone)]
pub struct Heads(mpsc::Sender<Waiter>);

impl Heads {
    pub fn new() -> (Self, mpsc::Receiver<Waiter>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// A head whose read began after this call.
    pub async fn read(&self) -> Result<Head> {
        let (sender, receiver) = oneshot::channel();
        let asked = self.0.try_send(sender);
        asked.map_err(|_| Error::Unavailable(format!("more than {WAITING_MAX} reads wait for the store")))?;
        // Nor for a read that is under way and then one's own: by then another server could have answered.
        let answer = timeout(HEAD_MAX, receiver).await.map_err(|_| unanswered())?;
        answer.unwrap_or_else(|_| Err(Error::Unavailable("the server is ending".into())))
    }
}

fn unanswered() -> Error {
    Error::Unavailable(format!("the store didn't answer in {HEAD_MAX:?}"))
}

/// Ends when nobody can ask any more.
pub async fn run(shared: Arc<Shared>, mut requests: mpsc::Receiver<Waiter>) {
    let mut timer = interval(CONFIRM_EVERY);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiters = Vec::new();
    loop {
        tokio::select! {
            count = requests.recv_many(&mut waiters, WAITING_MAX) => if count == 0 { return },
            _ = timer.tick() => {}
        }
        let reading = Reading::begin(&shared);
        shared.counters.heads.add(1);
        let read = timeout(HEAD_MAX, shared.backend.head()).await;
        let head = read.unwrap_or_else(|_| Err(unanswered()));
        if let Ok(head) = &head {
            shared.head_read(&reading, *head);
        }
        // Whoever waits would answer from what the store has lost.
        let head = match shared.current_readiness() {
            Readiness::RolledBack => shared.ready().and(head),
            _ => head,
        };
        for waiter in waiters.drain(..) {
            // Whoever asked may have given up.
            let _ = waiter.send(head.clone());
        }
    }
}

/// Looks at the time often enough to notice a stall or a stale store when it happens.
pub async fn watch_over(shared: Arc<Shared>) {
    const EVERY: Duration = Duration::from_millis(250);
    let mut timer = interval(EVERY);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        shared.tick();
        shared.expire_pins();
    }
}
