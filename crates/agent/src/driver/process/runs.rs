//! What the driver does on disk and to processes. All of it blocks, so none of it runs in the agent's loop.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::Path,
    process::Child,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use api::v1;
use model::Key;

use super::{
    Config,
    checks::Checks,
    exit,
    folder::{self, Folder},
    identity::Identity,
    launch::{self, Launched, Said},
    logs::Kept,
    ports::Ports,
    reap,
};
use crate::{
    driver::{Exit, Found, FoundRun, How, Id, Launch, Memory, NodeMemory, Result, StartError, Started, Trouble},
    template::{Restart, Template},
};

/// There while an instance is stopped for good.
const STOP: &str = "stop";
/// Where in the data dir folders go that are being removed.
const REMOVED: &str = "removed";
/// How long a supervisor that is just being born may take to write down who it is.
const BIRTH_MAX: Duration = Duration::from_secs(1);
const BIRTH_PAUSE: Duration = Duration::from_millis(2);
/// How long the data dir may still be taken. A process that an agent was killed while starting holds what that agent
/// held until it runs its program.
const OWN_MAX: Duration = Duration::from_secs(3);

pub struct Runs {
    pub config: Config,
    ports: Ports,
    /// The supervisors of what runs, by uid.
    supervisors: Mutex<HashMap<Arc<str>, Arc<OwnedFd>>>,
    /// Supervisors that said nothing, and may have ended: the kernel keeps each until its end was asked for.
    unheard: Mutex<Vec<Child>>,
    kept: Kept,
    pub checks: Arc<Checks>,
    /// One agent at a time works in a data dir.
    _lock: File,
}

impl Runs {
    pub fn open(mut config: Config) -> io::Result<Self> {
        // Supervisors start elsewhere.
        config.data_dir = std::path::absolute(&config.data_dir)?;
        config.supervisor = std::path::absolute(&config.supervisor)?;
        if let Some(above) = config.data_dir.parent() {
            fs::create_dir_all(above)?;
        }
        folder::passage(&config.data_dir.join("instances"))?;
        let lock = own(&config.data_dir)?;
        // What an agent was killed while it removed.
        folder::remove_or_warn(&config.data_dir.join(REMOVED));
        let ports = Ports::new(config.ports.clone());
        let kept = Kept::new(&config.data_dir, config.gone_logs);
        let (supervisors, unheard, checks) = (Mutex::default(), Mutex::default(), Arc::default());
        Ok(Self { config, ports, kept, supervisors, unheard, checks, _lock: lock })
    }

    /// Of what runs.
    pub fn supervisor(&self, id: &Id) -> Option<Arc<OwnedFd>> {
        self.supervisors.lock().expect("no holder panics").get(&id.uid).cloned()
    }

    fn folder(&self, id: &Id) -> Folder {
        Folder::of(&self.config.data_dir, id)
    }

    pub fn load_node(&self) -> io::Result<NodeMemory> {
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

    pub fn observe(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.config.data_dir.join("instances"))? {
            let folder = Folder(entry?.path());
            match folder.resource() {
                Ok(resource) => found.push(self.find(resource)),
                // An agent was killed while it made the folder. Removed only where nothing can be kept in it.
                Err(e) if e.kind() == io::ErrorKind::NotFound && folder.is_new() => {
                    folder::remove_or_warn(&folder.0);
                }
                Err(e) => {
                    tracing::error!(folder = %folder.0.display(), error = %e, "an instance whose record can't be read");
                    found.extend(folder.unread().map(|resource| self.find_unread(resource)));
                }
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
        Found { resource, unread: false, memory, ready, stop, run }
    }

    /// What it is stands in its folder's name alone. What may never have begun doesn't before a server says what it is.
    fn find_unread(&self, resource: v1::Resource) -> Found {
        let found = self.find(resource);
        let stop = found.stop || matches!(found.run, FoundRun::Never);
        Found { unread: true, stop, ..found }
    }

    /// A machine that lost power may have lost it; then the runs' records tell how far it had come.
    pub fn memory(&self, id: &Id) -> Memory {
        let folder = self.folder(id);
        let newest = folder.newest_run();
        let memory = folder.memory().unwrap_or_default();
        // The memory is written before the run's folder is made use of, so it can't be behind but by such a loss.
        if memory.run < newest { Memory { run: newest, ..memory } } else { memory }
    }

    pub fn look(&self, id: &Id, memory: &Memory) -> FoundRun {
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
            // Noted, but no supervisor ever got far enough to let anything run.
            None if !dir.join("child").exists() => FoundRun::Never,
            None => FoundRun::Broken,
        }
    }

    fn running(&self, id: &Id, memory: &Memory, pid: i64, supervisor: OwnedFd, child: Option<Child>) -> Started {
        let supervisor = Arc::new(supervisor);
        self.supervisors.lock().expect("no holder panics").insert(id.uid.clone(), Arc::clone(&supervisor));
        let folder = self.folder(id);
        let (groups, uid, run) = (self.config.cgroups.clone(), id.uid.clone(), memory.run);
        let ended = Box::pin(exit::wait(supervisor, child, folder, run, move || groups.remove(&uid, run)));
        let reached = self.config.cgroups.reached(&id.uid, memory.run);
        Started { pid, ports: memory.ports.clone(), reached, ended }
    }

    pub fn start(&self, mut launch: Launch) -> Result<Started, StartError> {
        let failed = |what: &'static str| move |e: io::Error| StartError::Trouble(trouble(what)(e).0);
        let folder = self.folder(&launch.id);
        let sync = launch.template.restart != Restart::Always;
        let run = launch.memory.run;
        folder::passage(&folder.0).map_err(failed("making the instance's folder"))?;
        let lock = folder.lock_soon().map_err(failed("locking the instance"))?.ok_or(StartError::Busy)?;
        let wanted = &launch.template.ports;
        launch.memory.ports =
            self.ports.allocate(&launch.id.uid, wanted, &launch.memory.ports).map_err(StartError::Trouble)?;
        folder.save_resource(&launch.resource, sync).map_err(failed("writing instance.pb"))?;
        folder.save_memory(&launch.memory, sync).map_err(failed("writing memory.json"))?;
        folder.make(run, sync).map_err(failed("making the run's folder"))?;
        for old in folder.prune(run) {
            // Whose last process may have been on its way out when it was tried before.
            self.config.cgroups.remove(&launch.id.uid, old);
        }
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

    pub fn clean(&self, id: &Id) -> Result<Exit> {
        let folder = self.folder(id);
        let memory = self.memory(id);
        let dir = folder.run(memory.run);
        // It may have removed all of it itself.
        folder::passage(&folder.0).and_then(|()| folder::private(&dir)).map_err(trouble("making the run's folder"))?;
        let lock = folder.lock_soon().map_err(trouble("locking the instance"))?;
        let _lock = lock.ok_or_else(|| Trouble("a supervisor is there after all".into()))?;
        if let Some(exit) = exit::read(&dir, &folder) {
            return Ok(exit);
        }
        let traces = reap::Traces {
            child: Identity::read(&dir.join("child")),
            // Where nobody keeps anything, nothing of any run has a right to be there.
            is_mark: |entry: &[u8]| launch::is_mark(&id.uid, entry),
            cgroup: self.config.cgroups.group(&id.uid, memory.run).filter(|group| group.is_dir()),
        };
        reap::kill_all(&traces).ok_or_else(|| Trouble("processes of a broken run don't end".into()))?;
        self.config.cgroups.remove(&id.uid, memory.run);
        let how = exit::of_broken(&dir);
        exit::write(&dir, &how, exit::now()).map_err(trouble("writing the exit record"))
    }

    pub fn note_ready(&self, id: &Id, ready: bool) -> io::Result<()> {
        folder::mark(&self.folder(id).run(self.memory(id).run), "ready", ready, false)
    }

    /// What must not run twice must not begin again after a loss of power, either.
    pub fn note_stop(&self, id: &Id, stop: bool) -> io::Result<()> {
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

    pub fn forget(&self, id: &Id) -> io::Result<()> {
        self.supervisors.lock().expect("no holder panics").remove(&id.uid);
        let folder = self.folder(id);
        // One that was made for a start that failed has nobody else to remove it.
        self.config.cgroups.remove_all(&id.uid);
        if folder.0.exists() {
            let Some(_lock) = folder.lock_soon()? else {
                return Err(io::Error::other("something is still kept here"));
            };
            match self.kept.put_away(&folder) {
                // What is gone must not hold the room that the others need.
                Err(e) if e.kind() == io::ErrorKind::StorageFull => {}
                kept => kept?,
            }
            folder::remove_at_once(&folder.0, &self.config.data_dir.join(REMOVED))?;
        }
        self.ports.release(&id.uid);
        Ok(())
    }
}

/// The lock of the one agent that works in a data dir.
fn own(data_dir: &Path) -> io::Result<File> {
    let lock = folder::lock_within(&data_dir.join("agent.lock"), OWN_MAX)?;
    lock.ok_or_else(|| io::Error::other(format!("another agent works in {}; give each its own", data_dir.display())))
}

pub fn trouble(what: &'static str) -> impl Fn(io::Error) -> Trouble {
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
