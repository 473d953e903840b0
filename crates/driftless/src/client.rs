//! The client side: which servers, who calls.

use std::sync::Arc;

use anyhow::Context;
use api::v1;
use model::Actor;
use store::{Api, Caller, LogStream};
use telemetry::trace::Tracer;
use wire::{Options, Remote};

/// The addresses' argument, by its id, and where else they may stand.
pub const ADDRESSES: &str = "addresses";
pub const ENVIRONMENT: &str = "DRIFTLESS_SERVER";

#[derive(Clone, Debug, clap::Args)]
pub struct Servers {
    /// Addresses of the servers, separated by commas; they are tried in turn.
    #[arg(
        long = "server",
        value_delimiter = ',',
        default_value = "127.0.0.1:7400",
        global = true,
        value_name = "HOST:PORT",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
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
        Self::traced(servers, Tracer::off(), String::new())
    }

    /// What it declares is in that trace.
    pub fn traced(servers: &Servers, tracer: Tracer, traceparent: String) -> anyhow::Result<Self> {
        let actor = user();
        let remote = Arc::new(remote(servers, actor.clone(), tracer)?);
        Ok(Self { api: remote.clone(), caller: Caller { actor, traceparent }, remote })
    }

    pub async fn logs(&self, request: v1::LogsRequest) -> store::Result<LogStream> {
        self.remote.logs(&self.caller, request).await
    }
}

/// A connection to the servers for whoever acts.
pub fn remote(servers: &Servers, actor: Actor, tracer: Tracer) -> anyhow::Result<Remote> {
    let addresses = servers.addresses.iter().map(|a| a.trim()).filter(|a| !a.is_empty());
    Remote::new(Options { tracer, ..Options::new(addresses, actor) })
        .with_context(|| format!("--server {}", servers.addresses.join(",")))
}

/// `user/<login>@<host>`: until there are credentials, callers say who they are.
pub fn user() -> Actor {
    Actor::parse(&format!("user/{}@{}", login(), host())).unwrap_or_else(Actor::anonymous)
}

/// By the environment, else by the system's list of users, else by the user's number.
fn login() -> String {
    let named = ["USER", "LOGNAME"].iter().filter_map(|name| std::env::var(name).ok()).find(|name| !name.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let listed = || login_of(uid, &std::fs::read_to_string("/etc/passwd").unwrap_or_default());
    named.or_else(listed).unwrap_or_else(|| format!("uid-{uid}"))
}

fn login_of(uid: u32, passwd: &str) -> Option<String> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let own = fields.into_iter().find(|fields| fields.get(2).is_some_and(|id| id.parse() == Ok(uid)));
    own.map(|fields| fields[0].to_owned())
}

pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_in_the_environment_is_looked_up() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:33::/:/bin/false\n";
        assert_eq!(login_of(33, passwd).as_deref(), Some("web"));
        assert_eq!(login_of(0, passwd).as_deref(), Some("root"));
        assert_eq!(login_of(7, passwd), None);
    }
}
