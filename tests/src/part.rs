//! One role of a cluster as a process, with what it writes.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    command::driftless,
    processes::{Process, look_until},
};

/// Until a role can be used; a debug build on a busy machine takes its time.
const START_MAX: Duration = Duration::from_secs(60);
/// A role promises to end within 5 s of SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(5);

pub struct Part {
    name: String,
    child: Child,
    process: Process,
    out: PathBuf,
    log: PathBuf,
}

impl Part {
    /// Starts `driftless` with these arguments; what it writes goes to files of that name.
    pub fn start(dir: &Path, name: &str, server: &str, arguments: &[&str]) -> Self {
        Self::start_with(dir, name, server, arguments, &[])
    }

    /// The same, with more in its environment.
    pub fn start_with(
        dir: &Path,
        name: &str,
        server: &str,
        arguments: &[&str],
        environment: &[(&str, String)],
    ) -> Self {
        let mut command = driftless(server);
        command.args(arguments).envs(environment.iter().cloned());
        Self::of(dir, name, command)
    }

    /// The same of a command that becomes the role.
    pub fn of(dir: &Path, name: &str, mut command: Command) -> Self {
        let (out, log) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.log")));
        let create = |path: &PathBuf| File::create(path).expect("a file in the temporary directory");
        command.env("DRIFTLESS_METRICS", "127.0.0.1:0").current_dir(dir).stdout(create(&out)).stderr(create(&log));
        let child = command.spawn().expect("the binary can be started");
        let process = Process::of_child(&child);
        Self { name: name.to_owned(), child, process, out, log }
    }

    /// The address in its `ready: ...` line.
    #[track_caller]
    pub fn address(&self) -> String {
        look_until("the role can be used", START_MAX, || {
            assert!(self.process.is_alive(), "it ended:\n{}", self.log());
            let text = fs::read_to_string(&self.out).unwrap_or_default();
            let line = text.lines().find(|l| l.starts_with("ready: "))?;
            let mut words = line.split_whitespace().map(|word| word.trim_end_matches(','));
            words.find(|word| word.parse::<SocketAddr>().is_ok()).map(str::to_owned)
        })
    }

    /// Where it serves its metrics, as it logs when it starts.
    #[track_caller]
    pub fn metrics(&self) -> String {
        look_until("it serves metrics", START_MAX, || {
            let log = self.log();
            let line = log.lines().find(|l| l.contains("metrics are served"))?;
            Some(line.split_once("address=")?.1.split_whitespace().next()?.to_owned())
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn process(&self) -> Process {
        self.process
    }

    /// What it logged since it was started.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        // It may have ended by itself, which a test that cares will have noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM. Returns the exit code.
    #[track_caller]
    pub fn stop(&mut self) -> i32 {
        self.process.signal(Signal::TERM);
        self.process.wait_gone(STOP_MAX);
        self.child.wait().expect("it can be waited for").code().unwrap_or(-1)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let words = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("last words of {}:\n{words}", self.log.display());
        }
    }
}
