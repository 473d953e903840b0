//! A node with a simulated machine, and an agent on it that can be killed and started again.

use std::{sync::Arc, time::Duration};

use api::v1;
use model::Key;
use prost::Message;
use tokio::{sync::oneshot, task::JoinHandle};

use super::double::Server;
use crate::{
    Agent, Clock, Config,
    driver::sim::{self, Sim},
};

pub struct World {
    pub server: Arc<Server>,
    pub sim: Arc<Sim>,
    agent: Option<(JoinHandle<()>, oneshot::Sender<()>)>,
}

impl World {
    pub fn new() -> Self {
        Self::of(sim::Config::default())
    }

    /// A machine on which a stop takes a second.
    pub fn of_slow_ends() -> Self {
        Self::of(sim::Config { stop_delay: Duration::from_secs(1), ..sim::Config::default() })
    }

    fn of(sim: sim::Config) -> Self {
        let sim = Arc::new(Sim::new(sim, Clock::start()));
        let mut world = Self { server: Server::new(), sim, agent: None };
        world.start_agent();
        world
    }

    pub fn start_agent(&mut self) {
        let agent = Agent::new(Config::new("n1"), Arc::clone(&self.sim) as _, Arc::clone(&self.server) as _);
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move { agent.run(async { drop(stopped.await) }).await.unwrap() });
        self.agent = Some((running, stop));
    }

    /// As SIGKILL does: nothing is said or saved.
    pub async fn kill_agent(&mut self) {
        let (running, _stop) = self.agent.take().unwrap();
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
    }

    /// What is true then, unless something makes it untrue.
    pub async fn after(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub async fn until_ready(&self, keys: &[Key]) {
        self.server.until(|server| keys.iter().all(|key| server.status(key).is_some_and(|s| s.ready))).await;
    }

    /// Assigned, and ready.
    pub async fn run(&self, names: &[&str]) -> Vec<Key> {
        names.iter().for_each(|name| self.server.assign(instance(name, v1::InstanceTemplate::default())));
        let keys: Vec<Key> = names.iter().map(|name| key(name)).collect();
        self.until_ready(&keys).await;
        keys
    }
}

pub fn key(name: &str) -> Key {
    Key::new("Instance", "default", name)
}

pub fn instance(name: &str, template: v1::InstanceTemplate) -> v1::Resource {
    let metadata = v1::Metadata {
        kind: "Instance".into(),
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        generation: 1,
        ..Default::default()
    };
    let spec = v1::InstanceSpec { node: "n1".into(), template: Some(template), ..Default::default() };
    let spec = prost_types::Any { type_url: String::new(), value: spec.encode_to_vec() };
    v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None }
}

pub fn readiness(check: v1::Check) -> v1::InstanceTemplate {
    v1::InstanceTemplate {
        health: Some(v1::Health { readiness: Some(check), ..Default::default() }),
        ..Default::default()
    }
}

pub fn tcp() -> v1::Check {
    v1::Check { tcp: Some(v1::TcpCheck::default()), ..Default::default() }
}

pub fn resource(key: &Key, spec: &impl Message) -> v1::Resource {
    let metadata = v1::Metadata {
        kind: key.kind().into(),
        namespace: key.namespace().into(),
        name: key.name().into(),
        uid: format!("uid-of-{key}"),
        ..Default::default()
    };
    let spec = prost_types::Any { type_url: String::new(), value: spec.encode_to_vec() };
    v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None }
}

/// The Node, as a user leaves it who vouches for that store.
pub fn confirmation(incarnation: &str, second: i64) -> v1::Resource {
    let spec = v1::NodeSpec {
        confirmed_incarnation: incarnation.into(),
        confirmed_time: Some(prost_types::Timestamp { seconds: second, nanos: 0 }),
        ..Default::default()
    };
    resource(&Key::new("Node", "", "n1"), &spec)
}

pub fn release_key(name: &str) -> Key {
    Key::new("Release", "default", &format!("uid-of-{name}"))
}

pub fn release(name: &str) -> v1::Resource {
    release_of(name, "")
}

/// Of what ran on that machine.
pub fn release_of(name: &str, machine: &str) -> v1::Resource {
    let spec = v1::ReleaseSpec {
        machine_id: machine.into(),
        node: "n1".into(),
        instance: Some((&key(name)).into()),
        instance_uid: format!("uid-of-{name}"),
        ..Default::default()
    };
    resource(&release_key(name), &spec)
}

/// The types and reasons of what the node says of itself.
pub fn node_says(world: &World) -> Vec<(String, String)> {
    let node = world.server.node().unwrap();
    node.conditions.into_iter().map(|c| (c.r#type, c.reason)).collect()
}
