//! docker-compose.yml, up under a name and on ports of its own; and hands to break it with.

use std::{
    collections::BTreeSet,
    env,
    net::TcpListener,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use driftless_tests::{
    cluster::Instance,
    command::{self, Done, driftless, repository},
};
use serde_json::Value;

/// Pause between two looks at what only commands tell.
const LOOK: Duration = Duration::from_millis(200);
/// Until anything is as it should be; most of it takes seconds.
pub const WITHIN: Duration = Duration::from_secs(90);

pub struct Project {
    name: String,
    /// `docker compose` or `docker-compose`.
    compose: Vec<String>,
    /// Where the two servers are reached from outside.
    servers: [String; 2],
}

impl Project {
    pub fn up() -> Self {
        let compose =
            env::var("DRIFTLESS_COMPOSE").expect("'make test-compose' makes the images and says which compose");
        let project = Self {
            name: format!("driftless-test-{}", std::process::id()),
            compose: compose.split(' ').map(str::to_owned).collect(),
            servers: free_ports().map(|port| format!("127.0.0.1:{port}")),
        };
        project.compose(&["up", "-d", "--no-build"]);
        project
    }

    /// `docker compose` with these arguments.
    #[track_caller]
    pub fn compose(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.compose[0]);
        command.args(&self.compose[1..]).args(["-p", &self.name, "-f"]).arg(repository("docker-compose.yml"));
        for (at, server) in self.servers.iter().enumerate() {
            let port = server.rsplit(':').next().expect("an address has a port");
            command.env(format!("DRIFTLESS_PORT_{}", at + 1), port);
        }
        command.args(arguments);
        command::run(command, b"").ok().stdout
    }

    /// The containers of a service, by their short ids, which are their host names too.
    #[track_caller]
    pub fn containers(&self, service: &str) -> Vec<String> {
        let label = format!("label=com.docker.compose.service={service}");
        let listed = docker(&["ps", "-aq", "--filter", &self.label(), "--filter", &label]);
        listed.lines().map(str::to_owned).collect()
    }

    /// The only container of a service.
    #[track_caller]
    pub fn container(&self, service: &str) -> String {
        self.containers(service).pop().unwrap_or_else(|| panic!("{service} has no container"))
    }

    pub fn network(&self) -> String {
        format!("{}_cluster", self.name)
    }

    fn label(&self) -> String {
        format!("label=com.docker.compose.project={}", self.name)
    }

    /// `driftless` from outside, to whichever server answers.
    pub fn run(&self, arguments: &[&str]) -> Done {
        self.run_at(&self.servers.join(","), arguments)
    }

    pub fn run_at(&self, server: &str, arguments: &[&str]) -> Done {
        let mut command = driftless(server);
        command.args(arguments);
        command::run(command, b"")
    }

    /// Where that server is reached from outside.
    pub fn address(&self, server: &str) -> &str {
        &self.servers[usize::from(server == "server2")]
    }

    pub fn apply(&self, manifest: &str) {
        let mut command = driftless(&self.servers.join(","));
        command.args(["apply", "-f", "-"]);
        command::run(command, manifest.as_bytes()).ok();
    }

    /// What `get` shows of that, as JSON items; nothing where it can't be had now.
    pub fn get(&self, what: &str) -> Vec<Value> {
        let done = self.run(&["get", what, "-o", "json"]);
        let json: Value = serde_json::from_str(&done.stdout).unwrap_or_default();
        json["items"].as_array().cloned().unwrap_or_default()
    }

    pub fn instances(&self) -> Vec<Instance> {
        self.get("instances").iter().map(Instance::of).collect()
    }

    /// The names of the controllers that take part.
    pub fn controllers(&self) -> BTreeSet<String> {
        let members = self.get("members").into_iter().filter(|m| m["role"] == "controller" && m["ready"] == true);
        members.map(|member| member["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// How many containers there are, and how many of them are healthy by their own checks.
    pub fn health(&self) -> (usize, usize) {
        let count = |filter: &[&str]| {
            let label = self.label();
            docker(&[&["ps", "-aq", "--filter", &label], filter].concat()).lines().count()
        };
        (count(&[]), count(&["--filter", "health=healthy"]))
    }

    /// (node, port) of every web server that really runs, as the engine sees processes.
    pub fn processes(&self) -> Vec<(String, u16)> {
        let mut found = Vec::new();
        for agent in ["agent1", "agent2", "agent3"] {
            let top = docker(&["top", &self.container(agent), "-eo", "pid,args"]);
            found.extend(top.lines().filter_map(port_of_web_server).map(|port| (agent.to_owned(), port)));
        }
        found.sort();
        found
    }

    /// Everything away, and proof of it.
    pub fn down(&self) {
        self.compose(&["down", "-v", "--remove-orphans", "-t", "5"]);
        for list in [["ps", "-aq"], ["volume", "ls"], ["network", "ls"]] {
            let mut arguments = list.to_vec();
            let label = self.label();
            arguments.extend(["--filter", &label]);
            if list[0] != "ps" {
                arguments.push("-q");
            }
            assert_eq!(docker(&arguments), "", "docker {} shows what is left", list.join(" "));
        }
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.compose(&["ps"]));
            eprintln!("{}", self.compose(&["logs", "--no-color", "--tail", "15"]));
            self.compose(&["down", "-v", "--remove-orphans", "-t", "5"]);
        }
    }
}

/// Of a line of `PID COMMAND`; a supervisor's has the same words, but after its own.
fn port_of_web_server(line: &str) -> Option<u16> {
    let (_, command) = line.trim().split_once(' ')?;
    let port = command.trim().strip_prefix("python3 -u -m http.server ")?.split(' ').next()?;
    port.parse().ok()
}

/// The Docker client with these arguments. Returns what it printed.
#[track_caller]
pub fn docker(arguments: &[&str]) -> String {
    let mut command = Command::new("docker");
    command.args(arguments);
    command::run(command, b"").ok().stdout
}

/// The end of the container's processes, as a crash: its restart policy applies, which it doesn't after `docker kill`.
#[track_caller]
pub fn crash(container: &str) {
    let mut command = Command::new("docker");
    command.args(["exec", container, "sh", "-c", "kill -KILL -1"]);
    // The shell is among those that end, or isn't, and the answer gets through, or doesn't.
    command::run(command, b"");
}

/// Looks again until it finds something.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + WITHIN;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "{what}: not within {WITHIN:?}; seen last: {seen}"),
        }
        thread::sleep(LOOK);
    }
}

/// Two at once, so that they differ.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("it listens").port())
}
