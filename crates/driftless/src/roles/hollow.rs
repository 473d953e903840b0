//! Many nodes in one process that run nothing: each is a node like any other to the cluster, with an agent, a session, a
//! watch and reports of its own. They share connections, since a process has only so many.

use std::{sync::Arc, time::Duration};

use ::telemetry::trace::Tracer;
use agent::{
    Agent, Clock, Config, Crowd, Together,
    driver::{Driver, sim},
};
use futures::future::try_join_all;
use model::Actor;

use super::{Shutdown, asked};
use crate::client::{self, Servers};

/// Nodes on one connection. Each keeps three streams open there, of which a server takes 16,384.
const NODES_PER_CONNECTION: usize = 250;
/// Between the starts of two agents, so that a server isn't asked for all their sessions at once.
const START_PAUSE: Duration = Duration::from_millis(2);

/// Of all of them, attaching and registering at the same time: a server does that about as fast as it can commit, and one
/// that has more to do than it can answers nobody in time.
const ATTACHING_MAX: usize = 16;

/// A machine that runs nothing; the same one when it's started again.
pub fn machine(name: &str) -> Arc<dyn Driver> {
    let config = sim::Config { machine_id: format!("hollow-{name}"), ..sim::Config::default() };
    Arc::new(sim::Sim::new(config, Clock::start()))
}

pub async fn look_after(
    servers: &Servers,
    name: &str,
    count: u32,
    tracer: &Tracer,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let tracer = tracer.part("driftless.agent");
    let together = Arc::new(Together::new(ATTACHING_MAX));
    let names: Vec<String> = (0..count).map(|n| format!("{name}-{n}")).collect();
    let groups = names.chunks(NODES_PER_CONNECTION).enumerate();
    let groups = groups.map(|(n, names)| {
        let first = u32::try_from(n * NODES_PER_CONNECTION).unwrap_or(u32::MAX);
        let common = Config { tracer: tracer.clone(), together: Arc::clone(&together), ..Config::new("") };
        look_after_some(servers, names, START_PAUSE * first, common, shutdown.clone())
    });
    try_join_all(groups).await.map(drop)
}

/// Over one connection, from then on.
async fn look_after_some(
    servers: &Servers,
    names: &[String],
    after: Duration,
    common: Config,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let first = names.first().map_or("", String::as_str);
    let remote = Arc::new(client::remote(servers, Actor::new("agent", first), common.tracer.clone())?);
    let config = |name: &String| Config { node: name.clone(), ..common.clone() };
    let agents = names.iter().map(|name| Agent::new(config(name), machine(name), remote.clone()));
    let agents: Vec<Agent> = agents.collect();
    remote.serve_logs(Arc::new(agents.iter().map(Agent::logs).collect::<Crowd>()));
    let running = agents.into_iter().zip(0_u32..).map(|(agent, n)| {
        let shutdown = shutdown.clone();
        async move {
            tokio::time::sleep(after + START_PAUSE * n).await;
            agent.run(asked(shutdown)).await
        }
    });
    let ended = try_join_all(running.map(tokio::spawn)).await?;
    let ended: Result<Vec<()>, _> = ended.into_iter().collect();
    ended.map(drop).map_err(|trouble| anyhow::anyhow!("an agent can't go on: {trouble}"))
}
