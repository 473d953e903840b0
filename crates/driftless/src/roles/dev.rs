//! `driftless dev`: a whole cluster in one process, on an embedded store.

use std::{path::PathBuf, sync::Arc};

use controller::Config;
use model::Key;
use tokio::sync::watch;

use super::{
    Seen, Shutdown,
    agent::{self, DriverKind},
    announce, asked, controller as control, server,
};
use crate::{
    client::{Client, Servers},
    follow::{Follow, Update},
    pages::PagesArgs,
    receiver::Tracing,
    standing::Goal,
    telemetry::{self, LogArgs},
    words,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless dev
  driftless dev --data-dir /tmp/try --listen 127.0.0.1:7500

Prints 'ready: ...' with its address when it can be used. Resources and what runs survive its end, also a hard one: \
started again on the same data it goes on. To end what runs, delete the services first.")]
pub struct Args {
    /// Where it keeps everything. Relative to where it's started.
    #[arg(long, default_value = ".driftless", value_name = "DIR")]
    data_dir: PathBuf,
    /// The address to serve gRPC on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:7400", value_name = "HOST:PORT")]
    listen: String,
    /// The name of its one node.
    #[arg(long, default_value = "local", value_parser = words::name)]
    node: String,
    #[arg(long, value_enum, default_value = "process")]
    driver: DriverKind,
    #[command(flatten)]
    pages: PagesArgs,
    #[command(flatten)]
    pub logs: LogArgs,
}

/// The server ends last: the others take their leave of it.
pub async fn run(args: Args, tracing: &Tracing, shutdown: Shutdown) -> anyhow::Result<()> {
    let pages = args.pages.open("dev", &["server", "controller", "agent"]).await?;
    let store = server::open(args.data_dir.join("store")).await?;
    let listener = server::listen(&args.listen).await?;
    let address = listener.local_addr()?.to_string();
    let servers = Servers { addresses: vec![address.clone()] };
    let tracer = tracing.start("dev", "dev")?;
    pages.add(Arc::new(tracer.clone()));
    let (end_server, server_ends) = watch::channel(false);

    let seen = Seen { pages: &pages, tracer: &tracer };
    let serving =
        server::serve(store.clone(), server::Me { name: "dev", address: "" }, listener, seen, server_ends, || ());
    let data = args.data_dir.join("node");
    let clients = async {
        let config = Config { name: "dev".into(), tracer: tracer.clone(), ..Config::default() };
        let controlling = control::control(&servers, config, &pages, shutdown.clone());
        let offer = agent::Offer::default();
        let looking = agent::look_after(&servers, &args.node, args.driver, &data, offer, seen, shutdown.clone());
        let announcing = announcing(&servers, &args, shutdown.clone());
        let ended = tokio::try_join!(controlling, looking, announcing);
        end_server.send_replace(true);
        ended.map(drop)
    };
    let ended = tokio::try_join!(serving, clients);
    telemetry::flush(&tracer).await;
    store.close().await;
    ended.map(drop)
}

/// Says so when the node is ready, so that whatever is declared then runs.
async fn announcing(servers: &Servers, args: &Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = Client::new(servers)?;
    tokio::select! {
        () = asked(shutdown) => {}
        result = node_ready(&client, &args.node) => {
            result?;
            let address = servers.addresses.join(",");
            announce(&format!("dev cluster on {address}, data in {}", args.data_dir.display()));
        }
    }
    Ok(())
}

async fn node_ready(client: &Client, node: &str) -> anyhow::Result<()> {
    let key = Key::new(kinds::node::KIND, "", node);
    let filter = model::Filter { name: key.name().into(), ..model::Filter::kind(key.kind()) };
    let mut follow = Follow::new(client, filter);
    loop {
        for update in follow.next().await? {
            if let Update::Put(resource) = update
                && Goal::ready().is_met(Some(&resource))
            {
                return Ok(());
            }
        }
    }
}
