//! A node's data dir, and what is asked about it. Conditions are waited for; every command ends by itself in the end.

use std::{
    collections::BTreeMap,
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use agent::{
    driver::{
        Driver, Ended, Exit, Found, FoundRun, Id, Launch, Memory, Started, Stop,
        process::{Cgroups, Config, Process},
    },
    template::Template,
};
use api::v1;
use model::{Key, Time};
use prost::Message;

/// Far more than anything here takes, and less than what is started lives by itself.
pub const PATIENCE: Duration = Duration::from_secs(50);

pub struct World {
    pub dir: PathBuf,
    pub cgroups: bool,
    pub log_bytes: u64,
    /// Stands in for the supervisor.
    pub supervisor: Option<PathBuf>,
    /// Removes it in the end.
    _temporary: Option<tempfile::TempDir>,
}

impl World {
    pub fn new() -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let world = Self::at(temporary.path());
        Self { _temporary: Some(temporary), ..world }
    }

    /// One that is another's.
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.into(), cgroups: true, log_bytes: 10 << 20, supervisor: None, _temporary: None }
    }

    /// Where no control group can be made.
    pub fn without_cgroups() -> Self {
        Self { cgroups: false, ..Self::new() }
    }

    pub fn config(&self) -> Config {
        let supervisor = self.supervisor.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_driftless-supervisor").into());
        let mut config = Config::new(self.path("data"), "n1", supervisor);
        config.log_bytes = self.log_bytes;
        config.ports = own_ports();
        if !self.cgroups {
            config.cgroups = Cgroups::none();
        }
        config
    }

    /// An agent's driver; the one before it must have been dropped.
    pub fn driver(&self) -> Process {
        Process::new(self.config()).expect("the data dir can be used")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn instance(&self, launch: &Launch) -> PathBuf {
        let name = launch.id.key.name();
        self.path("data/instances").join(format!("default_{name}_{}", launch.id.uid))
    }

    /// A file that a process of the test writes, once it's there with something in it.
    pub async fn read(&self, name: &str) -> String {
        let path = self.path(name);
        until(|| fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))).await.trim().to_owned()
    }

    pub async fn pid(&self, name: &str) -> i32 {
        self.read(name).await.parse().expect("a pid")
    }
}

/// Of no other test that runs beside: what was found free may be another's by the time that it's used.
fn own_ports() -> RangeInclusive<u16> {
    const PORTS: u16 = 4;
    let first = 10_000 + u16::try_from(std::process::id() % 2_400).expect("it's small") * PORTS;
    first..=first + PORTS - 1
}

/// A shell script of the first run of `web`.
pub fn script(text: &str) -> Launch {
    launch(v1::InstanceTemplate { command: vec!["sh".into(), "-c".into(), text.into()], ..Default::default() })
}

pub fn command(words: &[&str]) -> Launch {
    launch(v1::InstanceTemplate { command: words.iter().map(|w| (*w).to_owned()).collect(), ..Default::default() })
}

pub fn launch(template: v1::InstanceTemplate) -> Launch {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Control groups are named by it, and tests run side by side.
    let uid = format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let id = Id { uid: uid.as_str().into(), key: Key::new("Instance", "default", "web") };
    let metadata = v1::Metadata {
        kind: "Instance".into(),
        namespace: "default".into(),
        name: "web".into(),
        uid,
        ..Default::default()
    };
    let spec = v1::InstanceSpec { template: Some(template.clone()), ..Default::default() };
    let spec = prost_types::Any { type_url: String::new(), value: spec.encode_to_vec() };
    let resource = Arc::new(v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None });
    let memory = Memory { run: 1, started: Time::from_millis(1), ..Memory::default() };
    Launch { id, resource, template: Arc::new(Template::from(&template)), memory, contact_until: None }
}

/// Under a uid of its own.
pub fn named(mut launch: Launch, uid: &str) -> Launch {
    launch.id.uid = uid.into();
    Arc::make_mut(&mut launch.resource).metadata.get_or_insert_default().uid = uid.into();
    launch
}

/// The same instance, started again.
pub fn again(launch: &Launch, ports: &BTreeMap<String, u16>) -> Launch {
    let mut next = launch.clone();
    next.memory.run += 1;
    next.memory.ports = ports.clone();
    next
}

pub fn grace(mut launch: Launch, millis: u64) -> Launch {
    Arc::make_mut(&mut launch.template).stop_grace = Duration::from_millis(millis);
    launch
}

pub async fn ended(started: Started) -> Ended {
    tokio::time::timeout(PATIENCE, started.ended).await.expect("it ends in time")
}

pub async fn exit(started: Started) -> Exit {
    match ended(started).await {
        Ended::Exit(exit) => exit,
        Ended::Broken => panic!("no exit record"),
    }
}

pub async fn stop(driver: &Process, launch: &Launch, started: Started) -> Exit {
    driver.stop(&launch.id, Stop::Gracefully).await.expect("it can be asked to stop");
    exit(started).await
}

/// The only instance that a new driver finds.
pub async fn find(driver: &Process) -> Found {
    let mut found = driver.observe().await.expect("the data dir can be read");
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// As an agent does: what can't be told yet, since a supervisor is just being born or just ending, is looked at again.
pub async fn told(driver: &Process, id: &Id, mut run: FoundRun) -> FoundRun {
    let deadline = Instant::now() + PATIENCE;
    while let FoundRun::Unknown(why) = run {
        assert!(Instant::now() < deadline, "unknown: {why}");
        run = driver.look(id).await.expect("the data dir can be read").1;
    }
    run
}

pub fn running(found: Found) -> Started {
    match found.run {
        FoundRun::Running(started) => started,
        FoundRun::Never => panic!("never started"),
        FoundRun::Exited(exit) => panic!("exited: {exit:?}"),
        FoundRun::Broken => panic!("broken"),
        FoundRun::Unknown(why) => panic!("unknown: {why}"),
    }
}

pub async fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// It runs, or could be waited for by somebody who does.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    stat.rfind(')').is_some_and(|at| !stat[at + 2..].starts_with(['Z', 'X']))
}

/// Living processes with an entry in their environment that begins so.
pub fn marked(mark: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("there is one").flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|e| e.starts_with(mark.as_bytes()))
    };
    pids.filter(has).collect()
}

/// `key value` lines of a record.
pub fn field(record: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(record).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned))
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: takes no pointers. The pid is of a process that the test started.
    unsafe { libc::kill(pid, signal) };
}
