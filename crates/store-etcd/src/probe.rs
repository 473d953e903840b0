//! Asks for `head` all the time: so a member that doesn't answer is passed over before somebody needs it, and watches
//! know what they should have delivered.

use std::{sync::Weak, time::Duration};

use store::Head;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tracing::debug;

use crate::backend::Inner;

/// Twice a second: with `ATTEMPT_MAX` this finds a silent member within 1.5 s, at the cost of two small reads a second.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// What the last probe saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Read linearizably; none where etcd didn't answer.
    pub head: Option<Head>,
}

/// Runs until the store is dropped.
pub async fn run(store: Weak<Inner>, seen: watch::Sender<Seen>) {
    let mut ticks = interval(PROBE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(store) = store.upgrade() else { return };
        let head = store.head_at(None).await;
        if let Err(failure) = &head {
            debug!(?failure, "etcd doesn't answer the probe");
        }
        // Tells streams in any case: the pool may have moved on.
        seen.send_replace(Seen { head: head.ok() });
    }
}
