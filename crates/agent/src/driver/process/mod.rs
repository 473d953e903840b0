//! Real processes, each run under a supervisor of its own.
//!
//! Nothing here needs the agent that started a run: the supervisor holds the instance's lock until the tree is gone, so
//! a free lock means that nothing is kept, and a held one that it mustn't be started. A process is only ever signalled
//! through a pidfd that was compared with what stands on disk.

mod cgroup;
pub(crate) mod checks;
mod exit;
mod folder;
mod identity;
mod launch;
mod logs;
mod ports;
mod position;
mod reap;
mod runs;
mod times;
mod word;

use std::{io, ops::RangeInclusive, path::PathBuf, sync::Arc, thread, time::Duration};

use api::v1;
use async_trait::async_trait;
use rustix::process::{Signal, pidfd_send_signal};

pub use self::{cgroup::Root as Cgroups, logs::Retention, ports::RANGE as PORTS};
use self::{
    folder::Folder,
    runs::{Runs, trouble},
};
use crate::{
    Moment,
    driver::{
        Driver, Exit, Found, FoundRun, Id, Launch, LogPart, Memory, NodeMemory, Reached, Result, StartError, Started,
        Stop, Target, Trouble,
    },
    health,
    template::{Limits, Probe},
};

/// How the driver works. `new` gives the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    pub node: String,
    /// The binary `driftless-supervisor`.
    pub supervisor: PathBuf,
    /// What every instance finds in its environment, beside what its template says.
    pub env: Vec<(String, String)>,
    /// A log file is rotated once it is larger.
    pub log_bytes: u64,
    /// Log files of one run.
    pub log_files: u32,
    /// Ports are allocated from here.
    pub ports: RangeInclusive<u16>,
    pub cgroups: Cgroups,
    /// Instances that this node takes.
    pub instances: i32,
    /// What the node offers; none: what the machine has.
    pub cpu_millis: Option<i64>,
    pub memory_bytes: Option<i64>,
    /// Logs of instances that are gone: how many of them, and how long.
    pub gone_logs: Retention,
}

impl Config {
    pub fn new(data_dir: PathBuf, node: &str, supervisor: PathBuf) -> Self {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        Self {
            data_dir,
            node: node.into(),
            supervisor,
            env: vec![("PATH".into(), path.into())],
            log_bytes: 10 << 20,
            log_files: 3,
            ports: PORTS,
            cgroups: Cgroups::find(),
            instances: 1000,
            cpu_millis: None,
            memory_bytes: None,
            gone_logs: Retention::default(),
        }
    }
}

pub struct Process(Arc<Runs>);

impl Process {
    pub fn new(config: Config) -> io::Result<Self> {
        Ok(Self(Arc::new(Runs::open(config)?)))
    }

    /// Disk and processes may be slow; the agent's loop must not be.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Runs) -> T + Send + 'static) -> T {
        let runs = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&runs)).await;
        done.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))
    }
}

#[async_trait]
impl Driver for Process {
    fn name(&self) -> &'static str {
        "process"
    }

    fn capacity(&self) -> v1::Capacity {
        let cores = thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(i64::MAX));
        let system = rustix::system::sysinfo();
        let memory = i64::try_from(system.totalram).unwrap_or(i64::MAX).saturating_mul(i64::from(system.mem_unit));
        let config = &self.0.config;
        v1::Capacity {
            cpu_millis: config.cpu_millis.unwrap_or(cores * 1000),
            memory_bytes: config.memory_bytes.unwrap_or(memory),
            instances: config.instances,
        }
    }

    async fn load_node(&self) -> Result<NodeMemory> {
        self.blocking(|runs| runs.load_node().map_err(trouble("reading node.json"))).await
    }

    async fn save_node(&self, memory: &NodeMemory) -> Result<()> {
        let memory = memory.clone();
        self.blocking(move |runs| {
            folder::write_json(&runs.config.data_dir, "node.json", &memory, true).map_err(trouble("writing node.json"))
        })
        .await
    }

    async fn observe(&self) -> Result<Vec<Found>> {
        let found = self.blocking(|runs| runs.observe().map_err(trouble("reading the data dir"))).await?;
        let instances = found.iter().filter_map(|f| Some(f.resource.metadata.as_ref()?.uid.as_str().into())).collect();
        checks::kill_older(Arc::clone(&self.0.checks), instances);
        Ok(found)
    }

    async fn look(&self, id: &Id) -> Result<(Memory, FoundRun)> {
        let id = id.clone();
        let look = move |runs: &Runs| {
            let memory = runs.memory(&id);
            let run = runs.look(&id, &memory);
            (memory, run)
        };
        Ok(self.blocking(look).await)
    }

    async fn start(&self, launch: Launch) -> Result<Started, StartError> {
        self.blocking(move |runs| runs.start(launch)).await
    }

    async fn stop(&self, id: &Id, how: Stop) -> Result<()> {
        let signal = match how {
            Stop::Gracefully => Signal::TERM,
            Stop::Kill => Signal::INT,
            Stop::Destroy => Signal::KILL,
        };
        let supervisor = self.0.supervisor(id);
        match supervisor.map(|held| pidfd_send_signal(&*held, signal)) {
            // Gone meanwhile: just what was asked for.
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(e)) => Err(Trouble(format!("signalling the supervisor: {e}"))),
        }
    }

    async fn clean(&self, id: &Id) -> Result<Exit> {
        let id = id.clone();
        self.blocking(move |runs| runs.clean(&id)).await
    }

    async fn heard(&self, id: &Id, until: Moment) {
        let supervisor = self.0.supervisor(id);
        if let Some(held) = supervisor {
            word::tell(&held, until.millis());
        }
    }

    fn unenforced(&self, limits: &Limits) -> Option<String> {
        self.0.config.cgroups.unenforced(limits)
    }

    async fn reached(&self, target: &Target) -> Reached {
        let (uid, run) = (Arc::clone(&target.id.uid), target.run);
        self.blocking(move |runs| runs.config.cgroups.reached(&uid, run)).await
    }

    async fn note_ready(&self, id: &Id, ready: bool) -> Result<()> {
        let id = id.clone();
        self.blocking(move |runs| runs.note_ready(&id, ready).map_err(trouble("noting readiness"))).await
    }

    async fn note_stop(&self, id: &Id, stop: bool) -> Result<()> {
        let id = id.clone();
        self.blocking(move |runs| runs.note_stop(&id, stop).map_err(trouble("noting a stop"))).await
    }

    async fn forget(&self, id: &Id) -> Result<()> {
        let id = id.clone();
        self.blocking(move |runs| runs.forget(&id).map_err(trouble("removing the instance's folder"))).await
    }

    async fn probe(&self, target: &Target, probe: &Probe, timeout: Duration) -> Result<(), String> {
        let config = &self.0.config;
        let folder = Folder::of(&config.data_dir, &target.id);
        let exec = health::exec::Place {
            supervisor: &config.supervisor,
            env: folder.run(target.run).join("env"),
            work: target.template.working_dir.clone().unwrap_or_else(|| folder.work()),
            cgroup: config.cgroups.group(&target.id.uid, target.run).filter(|group| group.is_dir()),
            mark: self.0.checks.mark(&target.id.uid),
        };
        health::probe(target, probe, timeout, &exec).await
    }

    async fn logs(&self, id: &Id, part: LogPart) -> Result<store::LogStream> {
        let folder = Folder::of(&self.0.config.data_dir, id);
        logs::stream(folder, part)
    }
}

#[cfg(test)]
mod tests;
