//! Ends sessions that didn't beat in time. It sleeps until the earliest deadline, or for ever where there is none.

use std::sync::{Arc, Weak};

use tokio::{sync::Notify, time::sleep_until};

use super::{Engine, Published};
use crate::state::Instant;

/// `opened` is told of each new deadline; beats only move them away.
pub(crate) async fn run<E: Engine>(published: Arc<Published>, engine: Weak<E>, opened: Arc<Notify>) {
    loop {
        let next = published.read().sessions().next_deadline();
        match next {
            Some(deadline) => tokio::select! {
                () = sleep_until(deadline) => {}
                () = opened.notified() => {}
            },
            None => opened.notified().await,
        }
        let overdue = published.read().sessions().overdue(Instant::now());
        for (session, deadline) in overdue {
            let Some(engine) = engine.upgrade() else { return };
            // Where the store can't do it now the session lives on until it can: the next round tries again.
            if let Err(error) = engine.execute(0, move |draft| Ok(draft.expire(&session, deadline))).await {
                tracing::warn!(%error, "a session that timed out can't be ended yet");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Between attempts to end a session in a store that is unavailable.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
