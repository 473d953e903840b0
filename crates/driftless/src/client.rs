//! The client side: which servers, who calls.

use std::sync::Arc;

use anyhow::Context;
use api::v1;
use model::Actor;
use store::{Api, Caller, LogStream};
use wire::{Options, Remote};

#[derive(Clone, Debug, clap::Args)]
pub struct Servers {
    /// Addresses of the servers, separated by commas; they are tried in turn.
    #[arg(
        long = "server",
        env = "DRIFTLESS_SERVER",
        value_delimiter = ',',
        default_value = "127.0.0.1:7400",
        global = true,
        value_name = "HOST:PORT"
    )]
    pub addresses: Vec<String>,
}

/// What verbs talk to.
pub struct Client {
    pub api: Arc<dyn Api>,
    pub caller: Caller,
    remote: Arc<Remote>,
}

impl Client {
    /// Dials nothing yet. Within a runtime.
    pub fn new(servers: &Servers) -> anyhow::Result<Self> {
        let actor = user();
        let remote = Arc::new(remote(servers, actor.clone())?);
        Ok(Self { api: remote.clone(), caller: Caller::new(actor), remote })
    }

    pub async fn logs(&self, request: v1::LogsRequest) -> store::Result<LogStream> {
        self.remote.logs(&self.caller, request).await
    }
}

/// A connection to the servers for whoever acts.
pub fn remote(servers: &Servers, actor: Actor) -> anyhow::Result<Remote> {
    let addresses = servers.addresses.iter().map(|a| a.trim()).filter(|a| !a.is_empty());
    Remote::new(Options::new(addresses, actor)).with_context(|| format!("--server {}", servers.addresses.join(",")))
}

/// `user/<login>@<host>`: until there are credentials, callers say who they are.
fn user() -> Actor {
    let login = std::env::var("USER").unwrap_or_else(|_| "unknown".into());
    Actor::parse(&format!("user/{login}@{}", host())).unwrap_or_else(Actor::anonymous)
}

pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
