//! `driftless agent`: one a node; runs what is placed there.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent::{
    Agent, Config,
    driver::{Driver, process},
};
use anyhow::Context;
use model::Actor;

use super::{Seen, Shutdown, asked, hollow};
use crate::{
    client::{self, Servers},
    exit::Trouble,
    pages::PagesArgs,
    receiver::Tracing,
    telemetry::{self, LogArgs},
    words,
};

/// Hollow nodes in one process.
const NODES_MAX: i64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DriverKind {
    /// Real processes, each under a small supervisor that outlives the agent.
    Process,
    /// Nothing runs; for measuring and trying out the rest.
    Sim,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless agent --node n1
  driftless agent --node n1 --data-dir /var/lib/driftless --server 10.0.0.1:7400,10.0.0.2:7400
  driftless agent --node n1 --label disk=ssd --cpu 1500m --memory 2Gi
  driftless agent --node big --driver sim
  driftless agent --node hollow --driver sim --count 1000      hollow-0 to hollow-999, each a node of its own

What it started goes on when it ends or dies; started again on the same data, it finds it.")]
pub struct Args {
    /// The node's name: unique in the cluster.
    #[arg(long, value_parser = words::name)]
    node: String,
    #[arg(long, value_enum, default_value = "process")]
    driver: DriverKind,
    /// So many hollow nodes in this one process, named NODE-0, NODE-1 and so on, each with a session and a watch of its
    /// own; for finding out how a cluster bears that many.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=NODES_MAX))]
    count: u32,
    /// Where it keeps what runs here, and its logs [default: .driftless/NODE].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    offer: Offer,
    #[command(flatten)]
    pages: PagesArgs,
    #[command(flatten)]
    pub logs: LogArgs,
}

/// What a node says of itself beside its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Offer {
    /// A label of the node; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// CPU for instances, as "4" or "1500m" [default: what the machine has].
    #[arg(long, value_name = "CORES", value_parser = cpu_millis)]
    cpu: Option<i64>,
    /// Memory for instances, as "8Gi" or "500M" [default: what the machine has].
    #[arg(long, value_name = "BYTES", value_parser = memory_bytes)]
    memory: Option<i64>,
    /// How many instances it takes [default: 1000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    instances: Option<i32>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("say KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn cpu_millis(text: &str) -> Result<i64, String> {
    amount(kinds::cpu_millis(text), "say it as in \"4\" or \"1500m\"")
}

fn memory_bytes(text: &str) -> Result<i64, String> {
    amount(kinds::memory_bytes(text), "say it as in \"8Gi\" or \"500M\"")
}

fn amount(read: Option<u64>, how: &str) -> Result<i64, String> {
    let amount = read.and_then(|n| i64::try_from(n).ok()).filter(|n| *n > 0);
    amount.ok_or_else(|| how.to_owned())
}

pub async fn run(servers: &Servers, args: Args, tracing: &Tracing, shutdown: Shutdown) -> anyhow::Result<()> {
    let plain = args.driver == DriverKind::Process || args.offer == Offer::default();
    let usage = || Trouble::Usage("--label, --cpu, --memory and --instances are for nodes that run something".into());
    anyhow::ensure!(plain, usage());
    if args.count > 1 {
        let sim = args.driver == DriverKind::Sim;
        anyhow::ensure!(sim, Trouble::Usage("--count is for hollow nodes: add --driver sim".into()));
        // What the process shows of itself is what counts of them.
        let pages = args.pages.open("agent", &[]).await?;
        let tracer = tracing.start("agent", &args.node)?;
        pages.add(Arc::new(tracer.clone()));
        let done = hollow::look_after(servers, &args.node, args.count, &tracer, shutdown).await;
        telemetry::flush(&tracer).await;
        return done;
    }
    let data_dir = args.data_dir.unwrap_or_else(|| Path::new(".driftless").join(&args.node));
    let pages = args.pages.open("agent", &["agent"]).await?;
    let tracer = tracing.start("agent", &args.node)?;
    pages.add(Arc::new(tracer.clone()));
    let seen = Seen { pages: &pages, tracer: &tracer };
    let done = look_after(servers, &args.node, args.driver, &data_dir, args.offer, seen, shutdown).await;
    telemetry::flush(&tracer).await;
    done
}

pub async fn look_after(
    servers: &Servers,
    node: &str,
    driver: DriverKind,
    data_dir: &Path,
    offer: Offer,
    seen: Seen<'_>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let driver: Arc<dyn Driver> = match driver {
        DriverKind::Process => Arc::new(processes(node, data_dir, &offer)?),
        DriverKind::Sim => hollow::machine(node),
    };
    let Seen { pages, tracer } = seen;
    let tracer = tracer.part("driftless.agent");
    let remote = Arc::new(client::remote(servers, Actor::new("agent", node), tracer.clone())?);
    let config = Config { labels: offer.labels.into_iter().collect(), tracer, ..Config::new(node) };
    let agent = Agent::new(config, driver, remote.clone());
    remote.serve_logs(agent.logs());
    let metrics = agent.metrics();
    pages.add(metrics.clone());
    pages.check("agent", move || metrics.ready());
    agent.run(asked(shutdown)).await.map_err(|trouble| anyhow::anyhow!("the agent can't go on: {trouble}"))
}

fn processes(node: &str, data_dir: &Path, offer: &Offer) -> anyhow::Result<process::Process> {
    // Supervisors work elsewhere, so their paths can't be relative.
    let data_dir = std::path::absolute(data_dir).with_context(|| format!("--data-dir {}", data_dir.display()))?;
    let defaults = process::Config::new(data_dir.clone(), node, supervisor()?);
    let config = process::Config {
        cpu_millis: offer.cpu,
        memory_bytes: offer.memory,
        instances: offer.instances.unwrap_or(defaults.instances),
        ..defaults
    };
    process::Process::new(config).with_context(|| format!("cannot run instances in {}", data_dir.display()))
}

/// Beside this binary.
fn supervisor() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot find this program's own path")?;
    let path = own.with_file_name("driftless-supervisor");
    anyhow::ensure!(path.is_file(), "{} is missing: it belongs beside {}", path.display(), own.display());
    Ok(path)
}
