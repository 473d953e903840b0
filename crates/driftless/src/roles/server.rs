//! `driftless server`: the store that admits, on a port.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, sync::Arc};

use anyhow::Context;
use server::{Readiness, Server};
use store::{Cluster, Embedded, Memory, Store};
use store_etcd::{EtcdStore, Upkeep};
use tokio::{net::TcpListener, sync::watch};

use super::{Seen, Shutdown, announce, asked};
use crate::{
    client,
    exit::Trouble,
    pages::PagesArgs,
    receiver::Tracing,
    telemetry::{self, LogArgs},
    words,
};

pub const STORE_HELP: &str =
    "Where resources are kept: embedded:DIR, etcd://HOST:PORT[,HOST:PORT...][/PREFIX], or memory";

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless server --store embedded:/var/lib/driftless
  driftless server --store etcd://127.0.0.1:2379
  driftless server --store etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/driftless --listen 0.0.0.0:7400 \\
      --etcd-ca ca.pem --etcd-cert server.pem --etcd-key server.key
  driftless server --store memory                  forgets everything when it ends")]
pub struct Args {
    #[arg(long, value_name = "STORE", help = STORE_HELP)]
    store: Backend,
    /// The address to serve gRPC on.
    #[arg(long, default_value = "127.0.0.1:7400", value_name = "HOST:PORT")]
    listen: String,
    /// What people know this server by [default: the host's name and the port].
    #[arg(long, value_parser = words::member)]
    name: Option<String>,
    /// Where other servers reach this one, for logs of agents that are attached here [default: what it listens on, by the
    /// host's name where that is every address].
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    #[command(flatten)]
    pages: PagesArgs,
    #[command(flatten)]
    pub logs: LogArgs,
    // The last, since its heading holds for all that follows.
    #[command(flatten)]
    etcd: Etcd,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "For etcd")]
pub struct Etcd {
    /// The authority that signed etcd's certificates (PEM); turns TLS on.
    #[arg(id = "etcd-ca", long = "etcd-ca", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate to show (PEM), where etcd asks for one.
    #[arg(id = "etcd-cert", long = "etcd-cert", value_name = "FILE", requires_all = ["etcd-ca", "etcd-key"])]
    cert: Option<PathBuf>,
    /// The key of that certificate (PEM).
    #[arg(id = "etcd-key", long = "etcd-key", value_name = "FILE", requires = "etcd-cert")]
    key: Option<PathBuf>,
}

impl Etcd {
    /// These options with what was said here.
    pub fn of(self, options: store_etcd::Options) -> store_etcd::Options {
        let tls = self.ca.map(|ca| store_etcd::Tls { ca, identity: self.cert.zip(self.key), domain: None });
        store_etcd::Options { tls, ..options }
    }
}

#[derive(Clone, Debug)]
pub enum Backend {
    Embedded(PathBuf),
    Memory,
    Etcd(store_etcd::Options),
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("embedded", dir)) if !dir.is_empty() => Ok(Self::Embedded(dir.into())),
            Some(("etcd", _)) => store_etcd::Options::parse(text).map(Self::Etcd).map_err(|e| e.to_string()),
            None if text == "memory" => Ok(Self::Memory),
            _ => Err("write embedded:DIR, etcd://HOST:PORT[,...][/PREFIX], or memory".into()),
        }
    }
}

pub async fn run(args: Args, tracing: &Tracing, shutdown: Shutdown) -> anyhow::Result<()> {
    let listener = listen(&args.listen).await?;
    let address = listener.local_addr()?;
    // Several may run on one host.
    let name = args.name.unwrap_or_else(|| format!("{}:{}", client::host(), address.port()));
    let advertised = args.advertise.unwrap_or_else(|| advertised(address));
    let me = Me { name: &name, address: &advertised };
    let pages = args.pages.open("server", &["server"]).await?;
    let ready = || announce(&format!("server {name} on {address}"));
    let tracer = tracing.start("server", &name)?;
    pages.add(Arc::new(tracer.clone()));
    let seen = Seen { pages: &pages, tracer: &tracer };
    let served = match args.store {
        Backend::Embedded(dir) => {
            let store = open(dir).await?;
            let served = serve(store.clone(), me, listener, seen, shutdown, ready).await;
            store.close().await;
            served
        }
        Backend::Memory => {
            let store = Arc::new(Memory::new(Cluster::random()));
            serve(store, me, listener, seen, shutdown, ready).await
        }
        Backend::Etcd(options) => {
            let store = EtcdStore::new(args.etcd.of(options)).context("cannot use etcd")?;
            store.keep(Upkeep::default());
            pages.add(store.metrics());
            serve(Arc::new(store), me, listener, seen, shutdown, ready).await
        }
    };
    telemetry::flush(&tracer).await;
    served
}

pub async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Opening reads the whole store, which may take a moment.
pub async fn open(dir: PathBuf) -> anyhow::Result<Arc<Embedded>> {
    let opened = tokio::task::spawn_blocking(move || Embedded::open(dir, Cluster::random())).await?;
    Ok(Arc::new(opened.context("cannot open the store")?))
}

/// Where others reach what listens there, as far as that can be known here.
fn advertised(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("{}:{}", client::host(), address.port()),
        false => address.to_string(),
    }
}

/// What others know a server by, and where they reach it.
#[derive(Clone, Copy)]
pub struct Me<'a> {
    pub name: &'a str,
    pub address: &'a str,
}

/// Serves until it's asked to end; calls `ready` when it first can be used.
pub async fn serve(
    backend: Arc<dyn Store>,
    me: Me<'_>,
    listener: TcpListener,
    Seen { pages, tracer }: Seen<'_>,
    shutdown: Shutdown,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let tracer = tracer.part("driftless.server");
    let mut config = server::Config::new(me.name);
    config.tracer = tracer.clone();
    let server = tokio::select! {
        started = Server::start(config, backend) => Arc::new(started.map_err(Trouble::Store)?),
        () = asked(shutdown.clone()) => {
            tracing::info!("asked to end before the store could be used");
            return Ok(());
        }
    };
    pages.add(server.metrics());
    pages.check("server", server.check());
    let address = me.address.to_owned();
    let config = wire::Config { address, ready: Some(is_ready(&server)), tracer, ..wire::Config::new(me.name) };
    let end = {
        let server = server.clone();
        async move {
            asked(shutdown).await;
            server.drain();
        }
    };
    let serving = wire::serve(server.clone(), listener, config, end);
    let announced = async {
        server.ready().await;
        ready();
        std::future::pending::<()>().await
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = announced => unreachable!("it waits for ever"),
        () = server.broken() => anyhow::bail!("{}", Readiness::Broken.message()),
    }
}

/// The server's readiness as health reports it.
fn is_ready(server: &Server) -> watch::Receiver<bool> {
    let mut readiness = server.readiness();
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            sender.send_replace(*readiness.borrow_and_update() == Readiness::Ready);
            if readiness.changed().await.is_err() {
                return;
            }
        }
    });
    receiver
}
