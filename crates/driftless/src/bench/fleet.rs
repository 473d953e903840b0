//! A cluster of several processes, and when it has come to rest.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use api::v1;
use futures::StreamExt;
use model::LEADER;

use super::{load, process::Process};
use crate::client::Client;

/// Longest wait until every claim has the owner that it should.
const BALANCED_MAX: Duration = Duration::from_secs(60);
/// Nothing changes hands for so long: it's balanced.
const QUIET: Duration = Duration::from_millis(1500);
/// etcd's own default of 2 GiB is less than 100,000 resources with their history may take.
const QUOTA_BYTES: &str = "8589934592";

pub struct Fleet {
    dir: PathBuf,
    store: String,
    pub address: String,
    pub server: Process,
    /// Where the server's metrics are.
    pub pages: SocketAddr,
    pub client: Client,
    pub controllers: BTreeMap<String, Process>,
    pub agent: Option<Process>,
    etcd: Option<Process>,
}

impl Fleet {
    /// An etcd and one server.
    pub async fn on_etcd(dir: &Path, etcd: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        let (etcd, endpoint) = start_etcd(dir, etcd)?;
        Self::start(dir, endpoint, Some(etcd)).await
    }

    /// A server with a store of its own.
    pub async fn embedded(dir: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        Self::start(dir, format!("embedded:{}", dir.join("store").display()), None).await
    }

    async fn start(dir: &Path, store: String, etcd: Option<Process>) -> anyhow::Result<Self> {
        let (server, address, pages) = serve(dir, &store, "s1").await?;
        let client = load::client(&address)?;
        let (controllers, dir) = (BTreeMap::new(), dir.to_owned());
        Ok(Self { dir, store, server, pages, client, address, controllers, agent: None, etcd })
    }

    /// Another server on the same store, and where its metrics are.
    pub async fn another_server(&self, name: &str) -> anyhow::Result<(Process, Client, SocketAddr)> {
        let (server, address, pages) = serve(&self.dir, &self.store, name).await?;
        Ok((server, load::client(&address)?, pages))
    }

    pub fn start_controller(&mut self, name: &str) -> anyhow::Result<()> {
        let args = ["controller", "--name", name, "--server", &self.address];
        let controller = Process::role(&args, &self.dir.join(format!("{name}.log")))?;
        self.controllers.insert(name.to_owned(), controller);
        Ok(())
    }

    /// The one node.
    pub fn start_agent(&mut self, driver: &str) -> anyhow::Result<()> {
        let data = self.dir.join("node");
        let data = data.to_str().context("the directory's name is no UTF-8")?;
        let args = ["agent", "--node", "n1", "--driver", driver, "--data-dir", data, "--server", &self.address];
        self.agent = Some(Process::role(&args, &self.dir.join("agent.log"))?);
        Ok(())
    }

    /// All of it at once; nothing writes any more when this returns.
    pub async fn end(self) -> anyhow::Result<()> {
        let Self { server, controllers, agent, etcd, .. } = self;
        for process in agent.into_iter().chain(controllers.into_values()).chain([server]).chain(etcd) {
            process.kill().await?;
        }
        Ok(())
    }

    /// Waits until exactly these controllers own all claims, evenly, and nothing changes hands any more.
    pub async fn balanced(&self) -> anyhow::Result<Owners> {
        let mut states = self.client.api.coordination().await?;
        let mut last: Option<Owners> = None;
        let settled = async {
            loop {
                match tokio::time::timeout(QUIET, states.next()).await {
                    Ok(Some(state)) => {
                        let now = Owners::of(&*state?);
                        if last.as_ref() != Some(&now) {
                            last = Some(now);
                            continue;
                        }
                    }
                    Ok(None) => anyhow::bail!("the server ended the coordination stream"),
                    Err(_) => {}
                }
                if let Some(owners) = last.as_ref().filter(|owners| owners.is_even(&self.controllers)) {
                    return Ok(owners.clone());
                }
            }
        };
        let settled = tokio::time::timeout(BALANCED_MAX, settled).await;
        settled.map_err(|_| anyhow::anyhow!("the claims were not spread evenly within {BALANCED_MAX:?}"))?
    }
}

fn start_etcd(dir: &Path, program: &Path) -> anyhow::Result<(Process, String)> {
    let (clients, peers) = (free_address()?, free_address()?);
    let (client_url, peer_url) = (format!("http://{clients}"), format!("http://{peers}"));
    let (data, cluster) = (dir.join("etcd"), format!("bench={peer_url}"));
    let data = data.to_str().context("the directory's name is no UTF-8")?;
    #[rustfmt::skip]
    let args = [
        "--name", "bench", "--data-dir", data, "--quota-backend-bytes", QUOTA_BYTES,
        "--listen-client-urls", &client_url, "--advertise-client-urls", &client_url,
        "--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url, "--initial-cluster", &cluster,
    ];
    Ok((Process::spawn(program, &args, &dir.join("etcd.log"))?, format!("etcd://{clients}")))
}

/// Free when it was asked for; if it isn't any more, who wanted it says so in its log.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

async fn serve(dir: &Path, store: &str, name: &str) -> anyhow::Result<(Process, String, SocketAddr)> {
    let pages = free_address()?;
    let metrics = pages.to_string();
    let args = ["server", "--store", store, "--listen", "127.0.0.1:0", "--name", name, "--metrics", &metrics];
    let mut server = Process::role(&args, &dir.join(format!("{name}.log")))?;
    let announced = server.ready().await?;
    let address = announced.rsplit(' ').next().context("it didn't say where it listens")?.to_owned();
    Ok((server, address, pages))
}

/// Names of controllers, by the claims that they own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    claims: BTreeMap<String, String>,
    /// Names of all that have a session.
    alive: Vec<String>,
    shards: u32,
}

impl Owners {
    fn of(state: &v1::Coordination) -> Self {
        let controllers = state.members.iter().filter(|member| member.role == "controller");
        let names: BTreeMap<&str, &str> = controllers.map(|m| (m.session.as_str(), m.name.as_str())).collect();
        let owned = |claim: &v1::Claim| Some((claim.name.clone(), (*names.get(claim.owner.as_str())?).to_owned()));
        let mut alive: Vec<String> = names.values().map(|name| (*name).to_owned()).collect();
        alive.sort();
        Self { claims: state.claims.iter().filter_map(owned).collect(), alive, shards: state.shards }
    }

    /// All claims are owned, by these, and nobody owns more shards than the ring's cap.
    fn is_even(&self, controllers: &BTreeMap<String, Process>) -> bool {
        let cap = (1.1 * f64::from(self.shards) / controllers.len() as f64).ceil() as usize;
        let owned = |name: &String| self.claims.iter().filter(|(claim, o)| *o == name && *claim != LEADER).count();
        self.claims.len() == self.shards as usize + 1
            && controllers.keys().eq(self.alive.iter())
            && controllers.keys().all(|name| (1..=cap).contains(&owned(name)))
    }

    pub fn owner(&self, claim: &str) -> anyhow::Result<&str> {
        self.claims.get(claim).map(String::as_str).with_context(|| format!("claim {claim} has no owner"))
    }
}
