//! Real processes, each run under a supervisor of its own.
//!
//! Nothing here needs the agent that started a run: the supervisor holds the instance's lock until the tree is gone, so
//! a free lock means that nothing is kept, and a held one that it mustn't be started. A process is only ever signalled
//! through a pidfd that was compared with what stands on disk.

mod cgroup;
mod exit;
mod folder;
mod identity;
mod launch;
mod logs;
mod ports;
mod reap;
mod times;

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    ops::RangeInclusive,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Child,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use api::v1;
use async_trait::async_trait;
use model::Key;
use rustix::process::{Signal, pidfd_send_signal};

pub use self::{cgroup::Root as Cgroups, logs::Retention, ports::RANGE as PORTS};
use self::{
    folder::Folder,
    identity::Identity,
    launch::{Launched, Said},
    ports::Ports,
};
use crate::{
    driver::{
        Driver, Exit, Found, FoundRun, How, Id, Launch, LogPart, LogStream, Memory, NodeMemory, Result, StartError,
        Started, Stop, Target, Trouble,
    },
    health,
    template::{Limits, Probe, Restart, Template},
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

/// There while an instance is stopped for good.
const STOP: &str = "stop";
/// How long a supervisor that is just being born may take to write down who it is.
const BIRTH_MAX: Duration = Duration::from_secs(1);
const BIRTH_PAUSE: Duration = Duration::from_millis(2);
/// How long the data dir may still be taken. A process that an agent was killed while starting holds what that agent
/// held until it runs its program.
const OWN_MAX: Duration = Duration::from_secs(3);
const OWN_PAUSE: Duration = Duration::from_millis(20);

pub struct Process(Arc<Inner>);

struct Inner {
    config: Config,
    ports: Ports,
    /// The supervisors of what runs, by uid.
    supervisors: Mutex<HashMap<Arc<str>, Arc<OwnedFd>>>,
    /// Supervisors that said nothing, and may have ended: the kernel keeps each until its end was asked for.
    unheard: Mutex<Vec<Child>>,
    /// One agent at a time works in a data dir.
    _lock: File,
}

impl Process {
    pub fn new(mut config: Config) -> io::Result<Self> {
        // Supervisors start elsewhere.
        config.data_dir = std::path::absolute(&config.data_dir)?;
        config.supervisor = std::path::absolute(&config.supervisor)?;
        fs::create_dir_all(config.data_dir.join("instances"))?;
        let lock = own(&config.data_dir)?;
        let ports = Ports::new(config.ports.clone());
        Ok(Self(Arc::new(Inner {
            config,
            ports,
            supervisors: Mutex::default(),
            unheard: Mutex::default(),
            _lock: lock,
        })))
    }

    /// Disk and processes may be slow; the agent's loop must not be.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> T + Send + 'static) -> T {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
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
        self.blocking(|inner| inner.load_node().map_err(trouble("reading node.json"))).await
    }

    async fn save_node(&self, memory: &NodeMemory) -> Result<()> {
        let memory = memory.clone();
        self.blocking(move |inner| {
            folder::write_json(&inner.config.data_dir, "node.json", &memory, true).map_err(trouble("writing node.json"))
        })
        .await
    }

    async fn observe(&self) -> Result<Vec<Found>> {
        self.blocking(|inner| inner.observe().map_err(trouble("reading the data dir"))).await
    }

    async fn look(&self, id: &Id) -> Result<FoundRun> {
        let id = id.clone();
        Ok(self.blocking(move |inner| inner.look(&id, &inner.memory(&id))).await)
    }

    async fn start(&self, launch: Launch) -> Result<Started, StartError> {
        self.blocking(move |inner| inner.start(launch)).await
    }

    async fn stop(&self, id: &Id, how: Stop) -> Result<()> {
        let signal = match how {
            Stop::Gracefully => Signal::TERM,
            Stop::Kill => Signal::INT,
            Stop::Destroy => Signal::KILL,
        };
        let supervisor = self.0.supervisors.lock().expect("no holder panics").get(&id.uid).cloned();
        match supervisor.map(|held| pidfd_send_signal(&*held, signal)) {
            // Gone meanwhile: just what was asked for.
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(e)) => Err(Trouble(format!("signalling the supervisor: {e}"))),
        }
    }

    async fn clean(&self, id: &Id) -> Result<Exit> {
        let id = id.clone();
        self.blocking(move |inner| inner.clean(&id)).await
    }

    async fn heard(&self, id: &Id) {
        let supervisor = self.0.supervisors.lock().expect("no holder panics").get(&id.uid).cloned();
        if let Some(held) = supervisor {
            // One that is gone needs no word any more.
            let _ = pidfd_send_signal(&*held, Signal::USR1);
        }
    }

    fn unenforced(&self, limits: &Limits) -> Option<String> {
        self.0.config.cgroups.unenforced(limits)
    }

    async fn note_ready(&self, id: &Id, ready: bool) -> Result<()> {
        let id = id.clone();
        self.blocking(move |inner| inner.note_ready(&id, ready).map_err(trouble("noting readiness"))).await
    }

    async fn note_stop(&self, id: &Id, stop: bool) -> Result<()> {
        let id = id.clone();
        self.blocking(move |inner| inner.note_stop(&id, stop).map_err(trouble("noting a stop"))).await
    }

    async fn forget(&self, id: &Id) -> Result<()> {
        let id = id.clone();
        self.blocking(move |inner| inner.forget(&id).map_err(trouble("removing the instance's folder"))).await
    }

    async fn probe(&self, target: &Target, probe: &Probe, timeout: Duration) -> Result<(), String> {
        let config = &self.0.config;
        let folder = Folder::of(&config.data_dir, &target.id);
        let exec = health::exec::Place {
            supervisor: &config.supervisor,
            env: folder.run(target.run).join("env"),
            work: target.template.working_dir.clone().unwrap_or_else(|| folder.work()),
            cgroup: config.cgroups.group(&target.id.uid, target.run).filter(|group| group.is_dir()),
        };
        health::probe(target, probe, timeout, &exec).await
    }

    async fn logs(&self, id: &Id, part: LogPart) -> Result<LogStream> {
        let folder = Folder::of(&self.0.config.data_dir, id);
        Ok(logs::stream(folder, part))
    }
}

impl Inner {
    fn folder(&self, id: &Id) -> Folder {
        Folder::of(&self.config.data_dir, id)
    }

    fn load_node(&self) -> io::Result<NodeMemory> {
        match folder::read_json(&self.config.data_dir.join("node.json")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let machine_id = uuid::Uuid::new_v4().simple().to_string();
                let memory = NodeMemory { machine_id, ..NodeMemory::default() };
                folder::write_json(&self.config.data_dir, "node.json", &memory, true)?;
                Ok(memory)
            }
            read => read,
        }
    }

    fn observe(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.config.data_dir.join("instances"))? {
            let folder = Folder(entry?.path());
            match folder.resource() {
                Ok(resource) => found.push(self.find(resource)),
                // An agent was killed while it made the folder. Removed only where nothing can be kept in it.
                Err(e) if e.kind() == io::ErrorKind::NotFound && folder.newest_run() == 0 => {
                    fs::remove_dir_all(&folder.0)?;
                }
                Err(e) => tracing::error!(folder = %folder.0.display(), error = %e, "an instance that can't be read"),
            }
        }
        Ok(found)
    }

    fn find(&self, resource: v1::Resource) -> Found {
        let metadata = resource.metadata.clone().unwrap_or_default();
        let id = Id { uid: metadata.uid.as_str().into(), key: Key::of(&metadata) };
        let memory = self.memory(&id);
        self.ports.adopt(&id.uid, &memory.ports);
        let ready = self.folder(&id).run(memory.run).join("ready").exists();
        let run = self.look(&id, &memory);
        let stop = self.folder(&id).0.join(STOP).exists();
        Found { resource, memory, ready, stop, run }
    }

    /// A machine that lost power may have lost it; then the runs' records tell how far it had come.
    fn memory(&self, id: &Id) -> Memory {
        let folder = self.folder(id);
        let newest = folder.newest_run();
        let memory = folder.memory().unwrap_or_default();
        // The memory is written before the run's folder is made use of, so it can't be behind but by such a loss.
        if memory.run < newest { Memory { run: newest, ..memory } } else { memory }
    }

    fn look(&self, id: &Id, memory: &Memory) -> FoundRun {
        if memory.run == 0 {
            return FoundRun::Never;
        }
        let dir = self.folder(id).run(memory.run);
        let deadline = Instant::now() + BIRTH_MAX;
        loop {
            match self.folder(id).lock() {
                Err(e) => return FoundRun::Unknown(format!("locking the instance: {e}")),
                Ok(Some(_free)) => return self.look_at_end(id, memory),
                Ok(None) => {}
            }
            let supervisor = Identity::read(&dir.join("supervisor"));
            let child = Identity::read(&dir.join("child"));
            if let (Some(supervisor), Some(child)) = (supervisor, child)
                && let Some(held) = supervisor.hold()
            {
                return FoundRun::Running(self.running(id, memory, i64::from(child.pid), held, None));
            }
            if Instant::now() > deadline {
                return FoundRun::Unknown("something holds the instance's lock, and it isn't its supervisor".into());
            }
            thread::sleep(BIRTH_PAUSE);
        }
    }

    /// Nobody keeps it.
    fn look_at_end(&self, id: &Id, memory: &Memory) -> FoundRun {
        let dir = self.folder(id).run(memory.run);
        self.config.cgroups.remove(&id.uid, memory.run);
        match exit::read(&dir, &self.folder(id)) {
            Some(exit) => FoundRun::Exited(exit),
            // Noted, but no supervisor ever got far enough to start anything.
            None if !dir.join("supervisor").exists() => FoundRun::Never,
            None => FoundRun::Broken,
        }
    }

    fn running(&self, id: &Id, memory: &Memory, pid: i64, supervisor: OwnedFd, child: Option<Child>) -> Started {
        let supervisor = Arc::new(supervisor);
        self.supervisors.lock().expect("no holder panics").insert(id.uid.clone(), Arc::clone(&supervisor));
        let folder = self.folder(id);
        let (groups, uid, run) = (self.config.cgroups.clone(), id.uid.clone(), memory.run);
        let ended = Box::pin(exit::wait(supervisor, child, folder, run, move || groups.remove(&uid, run)));
        Started { pid, ports: memory.ports.clone(), ended }
    }

    fn start(&self, mut launch: Launch) -> Result<Started, StartError> {
        let failed = |what: &'static str| move |e: io::Error| StartError::Trouble(trouble(what)(e).0);
        let folder = self.folder(&launch.id);
        let sync = launch.template.restart != Restart::Always;
        let run = launch.memory.run;
        fs::create_dir_all(&folder.0).map_err(failed("making the instance's folder"))?;
        let lock = folder.lock().map_err(failed("locking the instance"))?.ok_or(StartError::Busy)?;
        let wanted = &launch.template.ports;
        launch.memory.ports =
            self.ports.allocate(&launch.id.uid, wanted, &launch.memory.ports).map_err(StartError::Trouble)?;
        folder.save_resource(&launch.resource, sync).map_err(failed("writing instance.pb"))?;
        folder.save_memory(&launch.memory, sync).map_err(failed("writing memory.json"))?;
        folder.make(run, sync).map_err(failed("making the run's folder"))?;
        folder.prune(run);
        let Launched { mut supervisor, pidfd, said } =
            launch::launch(&self.config, &folder, &launch, lock).map_err(|e| {
                StartError::Trouble(format!("starting {}: {}", self.config.supervisor.display(), words(&e)))
            })?;
        match said {
            Said::Started(pid) => Ok(self.running(&launch.id, &launch.memory, pid, pidfd, Some(supervisor))),
            Said::CannotStart { errno, at } => {
                // It has written its record and is about to end.
                let _ = supervisor.wait();
                self.config.cgroups.remove(&launch.id.uid, run);
                let why = launch::cannot_start(&launch.template, &folder.work(), errno, &at);
                Err(StartError::CannotStart(Exit::new(How::CannotStart(why), exit::now())))
            }
            Said::Nothing => {
                self.leave(supervisor);
                Err(StartError::Busy)
            }
        }
    }

    fn clean(&self, id: &Id) -> Result<Exit> {
        let folder = self.folder(id);
        let memory = self.memory(id);
        let dir = folder.run(memory.run);
        let lock = folder.lock().map_err(trouble("locking the instance"))?;
        let _lock = lock.ok_or_else(|| Trouble("a supervisor is there after all".into()))?;
        if let Some(exit) = exit::read(&dir, &folder) {
            return Ok(exit);
        }
        let group = self.config.cgroups.group(&id.uid, memory.run);
        let traces = reap::Traces {
            child: Identity::read(&dir.join("child")),
            mark: launch::mark(&id.uid, memory.run),
            cgroup: group,
        };
        reap::kill_all(&traces).ok_or_else(|| Trouble("processes of a broken run don't end".into()))?;
        self.config.cgroups.remove(&id.uid, memory.run);
        let how = exit::of_broken(&dir);
        exit::write(&dir, &how, exit::now()).map_err(trouble("writing the exit record"))
    }

    fn note_ready(&self, id: &Id, ready: bool) -> io::Result<()> {
        folder::mark(&self.folder(id).run(self.memory(id).run), "ready", ready, false)
    }

    /// What must not run twice must not begin again after a loss of power, either.
    fn note_stop(&self, id: &Id, stop: bool) -> io::Result<()> {
        let folder = self.folder(id);
        let spec = folder.resource().ok().and_then(|resource| crate::assigned::spec(&resource));
        let always = spec.and_then(|spec| spec.template).is_some_and(|t| Template::from(&t).restart == Restart::Always);
        folder::mark(&folder.0, STOP, stop, !always)
    }

    /// Looked at later; meanwhile those are let go that have ended.
    fn leave(&self, supervisor: Child) {
        let mut unheard = self.unheard.lock().expect("no holder panics");
        unheard.push(supervisor);
        unheard.retain_mut(|supervisor| matches!(supervisor.try_wait(), Ok(None)));
    }

    fn forget(&self, id: &Id) -> io::Result<()> {
        self.supervisors.lock().expect("no holder panics").remove(&id.uid);
        let folder = self.folder(id);
        // One that was made for a start that failed has nobody else to remove it.
        self.config.cgroups.remove(&id.uid, self.memory(id).run);
        if folder.0.exists() {
            let Some(_lock) = folder.lock()? else {
                return Err(io::Error::other("something is still kept here"));
            };
            match logs::put_away(&self.config.data_dir, &folder, &self.config.gone_logs) {
                // What is gone must not hold the room that the others need.
                Err(e) if e.kind() == io::ErrorKind::StorageFull => {}
                kept => kept?,
            }
            fs::remove_dir_all(&folder.0)?;
        }
        self.ports.release(&id.uid);
        Ok(())
    }
}

/// The lock of the one agent that works in a data dir.
fn own(data_dir: &Path) -> io::Result<File> {
    let deadline = Instant::now() + OWN_MAX;
    loop {
        if let Some(lock) = folder::lock(&data_dir.join("agent.lock"))? {
            return Ok(lock);
        }
        if Instant::now() > deadline {
            let text = format!("another agent works in {}; give each its own", data_dir.display());
            return Err(io::Error::other(text));
        }
        thread::sleep(OWN_PAUSE);
    }
}

fn trouble(what: &'static str) -> impl Fn(io::Error) -> Trouble {
    move |e| Trouble(format!("{what}: {}", words(&e)))
}

/// What somebody can help against is said so that it can't be missed.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("the disk below the agent's data dir is full ({error}); free some space, and it goes on by itself")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
