//! Whether an instance comes up against its limits: looks now and then, and tells when that changed. Nothing is done about
//! it; who reads the status may.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::sleep};

use crate::driver::{Driver, Reached, Target};

/// Before the first look. What misbehaves mostly does so at once.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Pauses double up to that.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Goes on until it is dropped. `told`: what is known already.
pub async fn watch(driver: Arc<dyn Driver>, target: Target, mut told: Reached, tell: mpsc::Sender<Reached>) {
    let limits = &target.template.limits;
    if limits.pids.is_none() && limits.memory_bytes.is_none() {
        return;
    }
    let mut pause = PAUSE_FIRST;
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        let reached = driver.reached(&target).await.rounded();
        if reached != told {
            told = reached;
            // Whoever listened is gone; so will this be.
            let _ = tell.send(reached).await;
        }
    }
}
