//! A cluster of its own for one test: on a free port, with its data in a temporary directory.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    command::{self, Done, driftless, driftless_at, driftless_of_boot, driftless_without_cgroups},
    network::{Far, Hub},
    part::Part,
    port::Port,
    processes::Process,
    scratch::Scratch,
    stream::Lines,
};

/// Until every agent has registered, and the controller has said so. On a machine so busy that sessions end, each takes a while
/// to be followed by the next.
const NODES_MAX: Duration = Duration::from_secs(120);
/// Any will do in a network that nobody else is in.
const FAR_PORT: u16 = 7400;

pub struct Cluster {
    dir: Scratch,
    server: String,
    /// Where the server is started again if it was killed.
    port: Option<Port>,
    /// As `--store` has it; none: an embedded one below `dir`.
    store: Option<String>,
    /// The control plane's processes, the server first.
    parts: Vec<Part>,
    starts: usize,
    /// Of every process, in addition.
    environment: Vec<(&'static str, String)>,
}

/// What a test looks at of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub name: String,
    pub uid: String,
    pub node: String,
    pub pid: i32,
    pub port: u16,
    pub ready: bool,
    pub restarts: i64,
    pub version: String,
    pub deleting: bool,
}

impl Cluster {
    /// `driftless dev`.
    pub fn start() -> Self {
        let mut cluster = Self::empty();
        cluster.start_again();
        cluster
    }

    /// Server, controller and agent as processes of their own, on that store.
    pub fn of_parts(store: &str) -> Self {
        let mut cluster = Self::empty();
        let server = cluster.part("server", &["server", "--listen", "127.0.0.1:0", "--store", store]);
        cluster.server = server.address();
        cluster.parts.push(server);
        cluster.start_controller("c1");
        let data = cluster.data_dir();
        let data = data.to_str().expect("a temporary path is text");
        let agent = cluster.part("agent", &["agent", "--node", "n1", "--data-dir", data]);
        cluster.parts.push(agent);
        cluster
    }

    /// Server, controller, and an agent for each of these nodes, as processes of their own, on an embedded store.
    pub fn of_nodes(nodes: &[&str]) -> Self {
        Self::of_nodes_with(nodes, Vec::new())
    }

    /// The same, with more in every process's environment.
    pub fn of_nodes_with(nodes: &[&str], environment: Vec<(&'static str, String)>) -> Self {
        let mut cluster = Self::empty();
        cluster.environment = environment;
        cluster.start_control_plane();
        nodes.iter().for_each(|node| cluster.start_agent(node));
        cluster.wait_nodes(nodes);
        cluster
    }

    /// One of each part, on an embedded store: server, controller and the agent of n1, each with an environment of its own.
    pub fn of_different(environments: [Vec<(&'static str, String)>; 3]) -> Self {
        let mut cluster = Self::empty();
        let [server, controller, agent] = environments;
        cluster.environment = server;
        cluster.start_server();
        cluster.environment = controller;
        cluster.start_controller("c1");
        cluster.environment = agent;
        cluster.start_agent("n1");
        cluster.environment = Vec::new();
        cluster.wait_nodes(&["n1"]);
        cluster
    }

    /// The same on a store that the test keeps.
    pub fn of_nodes_on(store: &str, nodes: &[&str]) -> Self {
        let mut cluster = Self::empty();
        cluster.store = Some(store.to_owned());
        cluster.start_control_plane();
        nodes.iter().for_each(|node| cluster.start_agent(node));
        cluster.wait_nodes(nodes);
        cluster
    }

    /// The same, with one more node at the other end of a cable. In a network of the test's own: see `Hub::enter`.
    pub fn of_nodes_and_far(nodes: &[&str], far_node: &str, hub: &mut Hub) -> (Self, Far) {
        let far = hub.connect();
        let mut cluster = Self::empty();
        cluster.server = format!("{}:{FAR_PORT}", far.hub);
        cluster.start_control_plane();
        nodes.iter().for_each(|node| cluster.start_agent(node));
        cluster.start_agent_at(far_node, &far);
        cluster.wait_nodes(&[nodes, &[far_node]].concat());
        (cluster, far)
    }

    /// Until each of them is ready.
    #[track_caller]
    fn wait_nodes(&self, nodes: &[&str]) {
        let mut missing: Vec<&str> = nodes.to_vec();
        if missing.is_empty() {
            return;
        }
        let heard = self.stream(&["get", "nodes", "-w", "-o", "json"]);
        heard.until_json("every node is ready", NODES_MAX, |event| {
            let ready = condition(&event["resource"], "Ready").is_some_and(|c| c["status"] == "True");
            missing.retain(|node| !ready || event["resource"]["metadata"]["name"] != *node);
            missing.is_empty().then_some(())
        });
    }

    /// The server, where it was before if it was killed, and the controller.
    pub fn start_control_plane(&mut self) {
        self.start_server();
        self.start_controller("c1");
    }

    /// Where it was before if it was killed, and on the same store.
    pub fn start_server(&mut self) {
        if self.server.is_empty() {
            let port = self.port.insert(Port::reserve());
            self.server = port.address();
        }
        let server = self.serve(&self.server);
        server.address();
        self.parts.push(server);
    }

    /// Server and controller, without waiting until they can be used: the server may find out that it can't.
    pub fn begin_control_plane(&mut self) {
        let server = self.serve(&self.server);
        self.parts.push(server);
        self.start_controller("c1");
    }

    fn serve(&self, listen: &str) -> Part {
        let embedded = || format!("embedded:{}", self.dir.path().join("store").display());
        let store = self.store.clone().unwrap_or_else(embedded);
        self.part("server", &["server", "--listen", listen, "--store", &store])
    }

    /// The node's agent, on what an earlier one left.
    pub fn start_agent(&mut self, node: &str) {
        self.start_agent_with(node, &[]);
    }

    /// The same with more arguments.
    pub fn start_agent_with(&mut self, node: &str, more: &[&str]) {
        let data = self.node_dir(node);
        let data = data.to_str().expect("a temporary path is text");
        let agent = self.part(node, &[&["agent", "--node", node, "--data-dir", data], more].concat());
        self.parts.push(agent);
    }

    /// The same where no control group can be made, as in most containers.
    pub fn start_agent_without_cgroups(&mut self, node: &str) {
        let mut command = driftless_without_cgroups(&self.server);
        command.args(["agent", "--node", node, "--data-dir"]).arg(self.node_dir(node));
        self.parts.push(Part::of(self.dir.path(), node, command));
    }

    /// The same after a restart of the machine, as far as anything can tell: `boot_id` is a file with another boot id.
    pub fn start_agent_of_boot(&mut self, node: &str, boot_id: &Path) {
        let mut command = driftless_of_boot(&self.server, boot_id);
        command.args(["agent", "--node", node, "--data-dir"]).arg(self.node_dir(node));
        self.parts.push(Part::of(self.dir.path(), node, command));
    }

    /// One more process, by whatever arguments.
    pub fn start_part(&mut self, name: &str, arguments: &[&str]) {
        let part = self.part(name, arguments);
        self.parts.push(part);
    }

    /// An agent at the other end of a cable.
    pub fn start_agent_at(&mut self, node: &str, far: &Far) {
        let mut command = driftless_at(far, &self.server);
        command.args(["agent", "--node", node, "--data-dir"]).arg(self.node_dir(node));
        self.parts.push(Part::of(self.dir.path(), node, command));
    }

    /// SIGKILL to one process of the control plane: "server", "controller", or a node's agent by its name.
    pub fn kill_part(&mut self, name: &str) {
        let at = self.parts.iter().position(|part| part.name() == name).expect("it runs");
        self.parts.remove(at).kill();
    }

    /// SIGSTOP to one process of the control plane, which keeps its connections.
    pub fn pause_part(&self, name: &str) {
        let part = self.parts.iter().find(|part| part.name() == name).expect("it runs");
        part.process().signal(rustix::process::Signal::STOP);
    }

    /// One more controller, of that name.
    pub fn start_controller(&mut self, name: &str) {
        self.start_controller_with(name, &[]);
    }

    /// The same, with more to say to it.
    pub fn start_controller_with(&mut self, name: &str, arguments: &[&str]) {
        let controller = self.part(name, &[&["controller", "--name", name], arguments].concat());
        self.parts.push(controller);
    }

    /// A controller that reaches the server by that address, and is the caller's to end.
    pub fn controller_at(&self, name: &str, server: &str) -> Part {
        Part::start(self.dir.path(), name, server, &["controller", "--name", name])
    }

    fn empty() -> Self {
        let (dir, environment) = (Scratch::new(), Vec::new());
        Self { dir, server: String::new(), port: None, store: None, parts: Vec::new(), starts: 0, environment }
    }

    fn part(&self, name: &str, arguments: &[&str]) -> Part {
        Part::start_with(self.dir.path(), name, &self.server, arguments, &self.environment)
    }

    /// Starts `driftless dev` on the same data, after `kill` or `stop`.
    pub fn start_again(&mut self) {
        assert!(self.parts.is_empty(), "it runs already");
        self.starts += 1;
        let data = self.data_dir();
        let data = data.to_str().expect("a temporary path is text");
        let dev = self.part(&format!("dev-{}", self.starts), &["dev", "--listen", "127.0.0.1:0", "--data-dir", data]);
        self.server = dev.address();
        self.parts.push(dev);
    }

    /// Everything of it is below.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// What the agent of a node keeps.
    pub fn node_dir(&self, node: &str) -> PathBuf {
        self.dir.path().join(node)
    }

    /// What the control plane wrote since it was last started.
    pub fn log(&self) -> String {
        self.parts.iter().map(Part::log).collect()
    }

    pub fn address(&self) -> &str {
        &self.server
    }

    /// Where each process of the control plane serves its metrics, by its name.
    pub fn metrics(&self) -> Vec<(String, String)> {
        self.parts.iter().map(|part| (part.name().to_owned(), part.metrics())).collect()
    }

    /// The control plane's processes, the server first.
    pub fn processes(&self) -> Vec<Process> {
        self.parts.iter().map(Part::process).collect()
    }

    /// SIGKILL to the control plane; the instances are nobody's now.
    pub fn kill(&mut self) {
        self.parts.iter_mut().for_each(Part::kill);
        self.parts.clear();
    }

    /// SIGTERM to the control plane, the agent first. Returns the exit codes.
    pub fn stop(&mut self) -> Vec<i32> {
        let codes = self.parts.iter_mut().rev().map(Part::stop).collect();
        self.parts.clear();
        codes
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = driftless(&self.server);
        command.args(arguments).envs(self.environment.iter().cloned());
        command
    }

    /// `driftless` with these arguments, to its end.
    pub fn run(&self, arguments: &[&str]) -> Done {
        command::run(self.command(arguments), b"")
    }

    /// Runs it in the background and reads what it prints.
    pub fn stream(&self, arguments: &[&str]) -> Lines {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null());
        Lines::start(command)
    }

    pub fn apply(&self, manifest: &str) -> Done {
        self.apply_with(manifest.as_bytes(), &[])
    }

    /// With `--wait` it believes at once what is said to be ready, unless the arguments ask for more.
    pub fn apply_with(&self, manifest: &[u8], arguments: &[&str]) -> Done {
        let mut command = self.command(&["apply", "-f", "-"]);
        command.args(arguments);
        if arguments.contains(&"--wait") && !arguments.contains(&"--hold") {
            command.args(["--hold", "0s"]);
        }
        command::run(command, manifest)
    }

    pub fn plan(&self, manifest: &str, arguments: &[&str]) -> Done {
        let mut command = self.command(&["plan", "-f", "-"]);
        command.args(arguments);
        command::run(command, manifest.as_bytes())
    }

    #[track_caller]
    pub fn wait_ready(&self, service: &str, timeout: &str) -> Done {
        self.run(&["wait", "service", service, "--for", "ready", "--hold", "0s", "--timeout", timeout]).ok()
    }

    #[track_caller]
    pub fn service(&self, name: &str) -> Value {
        self.run(&["get", "service", name, "-o", "json"]).ok().json()
    }

    pub fn revision(&self, service: &str) -> String {
        self.service(service)["metadata"]["revision"].as_str().unwrap_or_default().to_owned()
    }

    /// Those of one service, by name.
    #[track_caller]
    pub fn instances(&self, service: &str) -> Vec<Instance> {
        let list = self.run(&["get", "instances", "-o", "json"]).ok().json();
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let ours = all.iter().filter(|i| i["metadata"]["owner"]["name"] == service);
        ours.map(Instance::of).collect()
    }

    /// One instance as a process.
    #[track_caller]
    pub fn process_of(&self, instance: &Instance) -> Process {
        Process::find(instance.pid).unwrap_or_else(|| panic!("{} has no process {}", instance.name, instance.pid))
    }
}

/// One condition of a resource.
pub fn condition<'a>(resource: &'a Value, name: &str) -> Option<&'a Value> {
    resource["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == name)
}

impl Instance {
    pub fn of(resource: &Value) -> Self {
        let (metadata, status) = (&resource["metadata"], &resource["status"]);
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let port = status["ports"].as_object().and_then(|ports| ports.values().next()?.as_u64());
        Self {
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            node: text(&resource["spec"]["node"]),
            pid: text(&status["pid"]).parse().unwrap_or(0),
            port: port.and_then(|p| u16::try_from(p).ok()).unwrap_or(0),
            ready: status["ready"] == true,
            restarts: status["restarts"].as_i64().unwrap_or(0),
            version: text(&resource["spec"]["version"]),
            deleting: metadata["deletionTime"].is_string(),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Before what they started, which goes with the directory, or it would be started again.
        self.parts.clear();
    }
}
