//! The pages that a role serves for operators beside its work: `/metrics`, `/healthz`, `/readyz`. Off where nobody asked.

use std::sync::Arc;

use anyhow::Context;
use telemetry::metrics::{self, Exporter};
use tokio::net::TcpListener;
use tracing::{error, info};

#[derive(Clone, Debug, clap::Args)]
pub struct PagesArgs {
    /// Serve /metrics, /healthz and /readyz on this address, for anyone who can reach it.
    #[arg(long, env = "DRIFTLESS_METRICS", value_name = "HOST:PORT")]
    metrics: Option<String>,
}

impl PagesArgs {
    /// What the roles of this process are to add themselves to; served at once, where that is asked for. Port 0 takes a
    /// free one, which is logged.
    pub async fn open(&self, name: &'static str, roles: &[&'static str]) -> anyhow::Result<Arc<Exporter>> {
        let exporter = Arc::new(Exporter::new(name, env!("CARGO_PKG_VERSION"), roles));
        if let Some(address) = &self.metrics {
            let listener = TcpListener::bind(address).await.with_context(|| format!("--metrics {address}"))?;
            info!(address = %listener.local_addr()?, "metrics are served");
            let exporter = exporter.clone();
            tokio::spawn(async move {
                if let Err(error) = metrics::serve(listener, exporter).await {
                    error!(%error, "metrics are served no more");
                }
            });
        }
        Ok(exporter)
    }
}
