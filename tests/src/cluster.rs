//! A cluster of its own for one test: `driftless dev` on a free port, with its data in a temporary directory.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    command::{self, Done, driftless},
    processes::{self, Process, look_until},
    stream::Lines,
};

/// Until a cluster is ready; a debug build on a busy machine takes its time.
const START_MAX: Duration = Duration::from_secs(30);

pub struct Cluster {
    dir: TempDir,
    server: String,
    dev: Option<Child>,
    starts: usize,
}

/// What a test looks at of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub name: String,
    pub uid: String,
    pub pid: i32,
    pub port: u16,
    pub ready: bool,
    pub restarts: i64,
    pub version: String,
    pub deleting: bool,
}

impl Cluster {
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("driftless-test-").tempdir().expect("a temporary directory");
        let mut cluster = Self { dir, server: String::new(), dev: None, starts: 0 };
        cluster.start_again();
        cluster
    }

    /// Starts the control plane on the same data, after `kill` or `stop`.
    pub fn start_again(&mut self) {
        assert!(self.dev.is_none(), "it runs already");
        self.starts += 1;
        let out = self.dir.path().join(format!("dev.{}.out", self.starts));
        let create = |path: &PathBuf| File::create(path).expect("a file in the temporary directory");
        let child = driftless("")
            .args(["dev", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(self.data_dir())
            .stdout(create(&out))
            .stderr(create(&self.log_path()))
            .spawn()
            .expect("the binary can be started");
        let process = Process::find(i32::try_from(child.id()).expect("a pid fits"));
        self.dev = Some(child);
        self.server = look_until("the cluster starts", START_MAX, || {
            assert!(process.is_some_and(Process::is_alive), "dev ended:\n{}", self.log());
            let text = fs::read_to_string(&out).unwrap_or_default();
            let line = text.lines().find(|l| l.starts_with("ready"))?.to_owned();
            line.split_whitespace().find(|w| w.starts_with("127.0.0.1:")).map(|w| w.trim_end_matches(',').to_owned())
        });
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join(format!("dev.{}.log", self.starts))
    }

    /// What the control plane wrote since it was last started.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn address(&self) -> &str {
        &self.server
    }

    /// The control plane itself.
    pub fn process(&self) -> Process {
        let pid = self.dev.as_ref().expect("it runs").id();
        Process::find(i32::try_from(pid).expect("a pid fits")).expect("it runs")
    }

    /// SIGKILL to the control plane; the instances are nobody's now.
    pub fn kill(&mut self) {
        let mut dev = self.dev.take().expect("it runs");
        dev.kill().expect("it can be killed");
        dev.wait().expect("it can be waited for");
    }

    /// SIGTERM to the control plane. Returns its exit code.
    pub fn stop(&mut self) -> i32 {
        let process = self.process();
        process.signal(rustix::process::Signal::TERM);
        process.wait_gone(Duration::from_secs(10));
        self.dev.take().expect("it runs").wait().expect("it can be waited for").code().unwrap_or(-1)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = driftless(&self.server);
        command.args(arguments);
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

    pub fn apply_with(&self, manifest: &[u8], arguments: &[&str]) -> Done {
        let mut command = self.command(&["apply", "-f", "-"]);
        command.args(arguments);
        command::run(command, manifest)
    }

    #[track_caller]
    pub fn wait_ready(&self, service: &str, timeout: &str) -> Done {
        self.run(&["wait", "service", service, "--for", "ready", "--timeout", timeout]).ok()
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

impl Instance {
    pub fn of(resource: &Value) -> Self {
        let (metadata, status) = (&resource["metadata"], &resource["status"]);
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let port = status["ports"].as_object().and_then(|ports| ports.values().next()?.as_u64());
        Self {
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
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
        if let Some(mut dev) = self.dev.take() {
            // It may have ended by itself, which the test will have noticed.
            let _ = dev.kill();
            let _ = dev.wait();
        }
        processes::kill_below(self.dir.path());
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the cluster's last words:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}
