//! The parts of a cluster as processes: each role wires crates together and decides nothing.
//!
//! Roles meet only through the API: in `dev`, too, controller and agent dial the server over loopback.

pub mod agent;
pub mod controller;
pub mod dev;
mod hollow;
pub mod restore;
pub mod server;

use std::future::Future;

use ::telemetry::{metrics::Exporter, trace::Tracer};
use anyhow::Context;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::telemetry::{self, LogArgs};

/// How a role is seen from outside.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub pages: &'a Exporter,
    pub tracer: &'a Tracer,
}

/// Becomes true when the process is asked to end.
pub type Shutdown = watch::Receiver<bool>;

/// Runs a role until it ends, or fails; SIGTERM and SIGINT ask it to end, a second one doesn't wait.
pub fn run<F: Future<Output = anyhow::Result<()>>>(
    logs: &LogArgs,
    role: impl FnOnce(Shutdown) -> F,
) -> anyhow::Result<()> {
    telemetry::start(logs)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let (ask, asked) = watch::channel(false);
        let mut role = std::pin::pin!(role(asked));
        loop {
            tokio::select! {
                result = &mut role => return result,
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if ask.send_replace(true) {
                anyhow::bail!("told twice to end: ended in the middle of it");
            }
            tracing::info!("ending");
        }
    })
}

/// Returns once the process is asked to end.
pub async fn asked(mut shutdown: Shutdown) {
    // Where the sender is gone, so is the process.
    let _ = shutdown.wait_for(|asked| *asked).await;
}

/// What a role's process says on stdout when it can be used; scripts wait for it.
pub fn announce(what: &str) {
    // Nobody has to read it.
    let _ = crate::output::print(&format!("ready: {what}\n"));
}
