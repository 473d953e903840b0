//! `driftless controller`: one replica of those that share the work.

use std::{sync::Arc, time::Duration};

use ::telemetry::metrics::Exporter;
use controller::{Config, Controller};
use model::Actor;

use super::Shutdown;
use crate::{
    client::{self, Servers},
    pages::PagesArgs,
    receiver::Tracing,
    telemetry::{self, LogArgs},
    words,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless controller
  driftless controller --name a --server 10.0.0.1:7400,10.0.0.2:7400

Start as many as you like, with different names: they share the shards.")]
pub struct Args {
    /// What people know this replica by [default: the host's name].
    #[arg(long, value_parser = words::member)]
    name: Option<String>,
    /// About how often every resource is looked at again, whatever events say.
    #[arg(long, value_parser = words::period, value_name = "DURATION", default_value = "30s")]
    sweep: Duration,
    /// How long its session outlives its silence; what it owns is taken over then. A crash is noticed much sooner.
    #[arg(long, value_parser = words::period, value_name = "DURATION", default_value = "5s")]
    ttl: Duration,
    #[command(flatten)]
    pages: PagesArgs,
    #[command(flatten)]
    pub logs: LogArgs,
}

pub async fn run(servers: &Servers, args: Args, tracing: &Tracing, shutdown: Shutdown) -> anyhow::Result<()> {
    let name = args.name.unwrap_or_else(client::host);
    let tracer = tracing.start("controller", &name)?;
    let config = Config { name, sweep: args.sweep, ttl: args.ttl, tracer: tracer.clone(), ..Config::default() };
    let pages = args.pages.open("controller", &["controller"]).await?;
    pages.add(Arc::new(tracer.clone()));
    let done = control(servers, config, &pages, shutdown).await;
    telemetry::flush(&tracer).await;
    done
}

pub async fn control(
    servers: &Servers,
    mut config: Config,
    pages: &Exporter,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    config.tracer = config.tracer.part("driftless.controller");
    let actor = Actor::new("controller", &config.name);
    let remote = Arc::new(client::remote(servers, actor, config.tracer.clone())?);
    let controller = Controller::new(config, remote);
    pages.add(controller.metrics());
    pages.check("controller", controller.readiness());
    Ok(controller.run(shutdown).await?)
}
