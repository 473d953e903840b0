//! The processes of a cluster on a real etcd: started, killed, paused and started again by name.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use driftless_tests::{
    command::{binary, driftless},
    history::{Checked, History, Stream},
    network::Far,
    part::Part,
    scratch::Scratch,
};
use model::Actor;
use rustix::process::Signal;
use store_etcd::testing::{Etcd, Setup};
use tokio::task::block_in_place;
use wire::{Options, Remote};

use crate::{etcd_log, recorder::Recorder, state::Coordination, tail::Tail};

/// How a cluster is put together.
#[derive(Clone, Debug)]
pub struct Shape {
    pub etcd: usize,
    pub servers: usize,
    pub controllers: usize,
    pub agents: usize,
    pub sweep: &'static str,
    pub ttl: &'static str,
}

impl Default for Shape {
    fn default() -> Self {
        Self { etcd: 1, servers: 2, controllers: 3, agents: 1, sweep: "5s", ttl: "5s" }
    }
}

pub struct World {
    pub etcd: Etcd,
    pub servers: Vec<Server>,
    pub controllers: BTreeMap<String, Part>,
    pub agents: Vec<Part>,
    pub recorder: Arc<Recorder>,
    shape: Shape,
    dir: Scratch,
    starts: usize,
}

pub struct Server {
    pub address: String,
    pub part: Part,
}

impl World {
    pub async fn start(shape: Shape) -> Self {
        Self::start_with(shape, Setup::default()).await
    }

    /// On an etcd of that kind.
    pub async fn start_with(shape: Shape, setup: Setup) -> Self {
        let etcd = Etcd::start_with(shape.etcd, setup).await;
        let dir = Scratch::new();
        let recorder = Arc::new(Recorder::new());
        let (servers, controllers, agents) = Default::default();
        let mut world = Self { etcd, servers, controllers, agents, recorder, shape: shape.clone(), dir, starts: 0 };
        for _ in 0..shape.servers {
            world.add_server();
        }
        for name in ["a", "b", "c", "d", "e"].iter().take(shape.controllers) {
            world.add_controller(name);
        }
        for n in 0..shape.agents {
            world.add_agent(&format!("n{n}"));
        }
        world
    }

    pub fn start_part(&mut self, name: &str, servers: &str, arguments: &[&str]) -> Part {
        self.starts += 1;
        let name = format!("{name}.{}", self.starts);
        block_in_place(|| Part::start(self.dir.path(), &name, servers, arguments))
    }

    pub fn add_server(&mut self) {
        let (store, name) = (self.etcd.url(), format!("s{}", self.servers.len()));
        let arguments = ["server", "--store", &store, "--listen", "127.0.0.1:0", "--name", &name];
        let part = self.start_part(&name, "", &arguments);
        let address = block_in_place(|| part.address());
        self.servers.push(Server { address, part });
    }

    /// A server in another network.
    pub fn add_server_in(&mut self, network: &Far) {
        let (store, name) = (self.etcd.url(), format!("s{}", self.servers.len()));
        let listen = format!("{}:0", network.address);
        let mut command = network.entering();
        command.arg(binary()).args(["server", "--store", &store, "--listen", &listen, "--name", &name]);
        let part = block_in_place(|| Part::of(self.dir.path(), &name, command));
        let address = block_in_place(|| part.address());
        self.servers.push(Server { address, part });
    }

    /// Each begins with another server, so that all are used.
    pub fn add_controller(&mut self, name: &str) {
        let servers = self.addresses_from(self.controllers.len());
        self.add_controller_at(name, &servers);
    }

    pub fn add_controller_at(&mut self, name: &str, servers: &str) {
        self.add_controller_logging(name, servers, "info");
    }

    /// One that logs that (as RUST_LOG says).
    pub fn add_controller_logging(&mut self, name: &str, servers: &str, what: &str) {
        let shape = self.shape.clone();
        let arguments = ["controller", "--name", name, "--sweep", shape.sweep, "--ttl", shape.ttl];
        self.starts += 1;
        let (dir, file) = (self.dir.path(), format!("controller-{name}.{}", self.starts));
        let mut command = driftless(servers);
        command.args(arguments).env("RUST_LOG", what);
        let part = block_in_place(|| Part::of(dir, &file, command));
        self.controllers.insert(name.to_owned(), part);
    }

    pub fn add_agent(&mut self, node: &str) {
        let servers = self.addresses_from(self.agents.len());
        self.add_agent_at(node, &servers);
    }

    pub fn add_agent_at(&mut self, node: &str, servers: &str) {
        let data = self.dir.path().join(node);
        let data = data.to_str().expect("a temporary path is text").to_owned();
        let arguments = ["agent", "--node", node, "--driver", "sim", "--data-dir", &data];
        let part = self.start_part(node, servers, &arguments);
        self.agents.push(part);
    }

    fn addresses_from(&self, first: usize) -> String {
        let addresses: Vec<String> = self.servers.iter().map(|server| server.address.clone()).collect();
        let count = addresses.len();
        (0..count).map(|n| addresses[(first + n) % count].as_str()).collect::<Vec<_>>().join(",")
    }

    /// SIGKILL to every server, controller and agent.
    pub fn kill_all(&mut self) {
        let parts = self.servers.iter_mut().map(|server| &mut server.part);
        let parts = parts.chain(self.controllers.values_mut()).chain(&mut self.agents);
        block_in_place(|| parts.for_each(Part::kill));
        (self.controllers, self.agents) = Default::default();
        self.servers.clear();
    }

    /// SIGKILL to controllers, all at the same moment.
    pub fn kill_controllers(&mut self, names: &[&str]) -> Instant {
        let killed = Instant::now();
        for name in names {
            self.controllers[*name].process().signal(Signal::KILL);
        }
        for name in names {
            let mut part = self.controllers.remove(*name).expect("it runs");
            block_in_place(|| part.kill());
        }
        killed
    }

    /// A client that tries that server first.
    pub fn client_from(&self, first: usize) -> Arc<Remote> {
        client(self.addresses_from(first).split(','))
    }

    pub fn client(&self) -> Arc<Remote> {
        self.client_from(0)
    }

    /// A client of that server alone.
    pub fn client_of(&self, index: usize) -> Arc<Remote> {
        client([self.servers[index].address.as_str()])
    }

    /// Everything, followed and recorded through that server first.
    pub fn tail(&self, first: usize) -> Tail {
        Tail::follow(&format!("tail from s{first}"), self.client_from(first), "", self.recorder.clone())
    }

    pub fn coordination(&self) -> Coordination {
        Coordination::follow(self.client())
    }

    /// Holds all that was recorded against etcd's log.
    pub async fn check(&self, tails: Vec<Tail>) -> Checked {
        // The log is read last: whatever was told is in it, though others write on.
        let streams = tails.into_iter().map(Tail::into_stream).collect();
        self.check_with(streams).await
    }

    pub async fn check_with(&self, streams: Vec<Stream>) -> Checked {
        let operations = self.recorder.take();
        let commits = etcd_log::read(&self.etcd).await;
        let history = History { commits, operations, streams };
        let checked = history.check().unwrap_or_else(|violations| {
            let shown: Vec<String> = violations.iter().take(20).map(ToString::to_string).collect();
            panic!("{} violations of the history:\n{}", violations.len(), shown.join("\n"))
        });
        println!("{checked:?}");
        checked
    }
}

pub fn client<'a>(servers: impl IntoIterator<Item = &'a str>) -> Arc<Remote> {
    let actor = Actor::parse("user/test").expect("an actor");
    Arc::new(Remote::new(Options::new(servers, actor)).expect("addresses"))
}

/// What was measured, for whoever reads the test's output.
pub fn report(what: &str, took: Duration) {
    println!("measured: {what}: {:.0} ms", took.as_secs_f64() * 1_000.0);
}

/// The value below which that share of them lies.
pub fn percentile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let index = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(index).copied().unwrap_or_default()
}
