//! Instances that run nothing: for thousands of nodes in one process, and for simulations. What is "on the machine"
//! lives in the `Sim`, which outlives the agents that work with it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use api::v1;
use async_trait::async_trait;
use futures::{FutureExt, StreamExt, stream};
use model::Key;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    Driver, Ended, Exit, Found, FoundRun, How, Id, Launch, LogPart, Memory, NodeMemory, Reached, Result, StartError,
    Started, Stop, Target, Trouble,
};
use crate::{
    Clock, Moment, assigned,
    template::{Limits, Probe},
};

#[derive(Clone, Debug)]
pub struct Config {
    /// From the order until the program runs.
    pub start_delay: Duration,
    /// From the order until the tree is gone.
    pub stop_delay: Duration,
    pub capacity: v1::Capacity,
    /// Empty: a new one.
    pub machine_id: String,
    /// What is started and stopped is so on the next beat.
    pub beat: Option<Beat>,
}

/// Moments at which everything happens that nodes do, so that machines go in lockstep and what happens between two beats
/// is the controllers' doing alone.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    pub first: Instant,
    pub every: Duration,
}

impl Beat {
    /// The one that `now` belongs to, or the next: what follows from a beat at once belongs to it.
    pub fn next(&self, now: Instant) -> Instant {
        let since = now.saturating_duration_since(self.first);
        let count = since.as_nanos() / self.every.as_nanos().max(1);
        let this = self.first + self.every * u32::try_from(count).unwrap_or(u32::MAX);
        if now.saturating_duration_since(this) < self.every / 100 { this } else { this + self.every }
    }

    async fn wait(&self) {
        sleep_until(self.next(Instant::now())).await;
    }
}

impl Default for Config {
    fn default() -> Self {
        // Far more than any test places.
        let capacity = v1::Capacity { cpu_millis: 1 << 40, memory_bytes: 1 << 60, instances: 1_000_000 };
        Self {
            start_delay: Duration::ZERO,
            stop_delay: Duration::ZERO,
            capacity,
            machine_id: String::new(),
            beat: None,
        }
    }
}

pub struct Sim {
    config: Config,
    clock: Clock,
    machine: Mutex<Machine>,
}

#[derive(Default)]
struct Machine {
    node: NodeMemory,
    instances: HashMap<Arc<str>, Instance>,
    next_pid: i64,
    next_port: u16,
    /// Nothing can be kept.
    full: bool,
    /// Whose starts panic.
    defective: BTreeSet<Key>,
    /// For whom there is no port.
    portless: BTreeSet<Key>,
}

struct Instance {
    resource: v1::Resource,
    memory: Memory,
    ready: bool,
    stop: bool,
    well: bool,
    /// Nothing ends it.
    hung: bool,
    /// Its run was noted, and never began.
    unborn: bool,
    /// What it is can't be read.
    unread: bool,
    reached: Reached,
    /// How often it was allowed to go on since a server was heard.
    renewals: u64,
    pid: i64,
    /// None: it runs.
    exit: watch::Sender<Option<Exit>>,
}

const FIRST_PORT: u16 = 20_000;

impl Sim {
    pub fn new(config: Config, clock: Clock) -> Self {
        Self { config, clock, machine: Mutex::default() }
    }

    /// Ends a run, as if its process had; false where none runs under that name.
    pub fn crash(&self, key: &Key, how: How) -> bool {
        let machine = self.machine.lock().expect("no holder panics");
        let running = machine.instances.values().find(|i| i.key() == *key && i.exit.borrow().is_none());
        let exit = Exit::new(how, self.clock.now());
        running.map(|instance| instance.exit.send_replace(Some(exit))).is_some()
    }

    /// What its checks answer from now on.
    pub fn set_well(&self, key: &Key, well: bool) {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.instances.values_mut().filter(|i| i.key() == *key).for_each(|i| i.well = well);
    }

    /// Nothing that is done to it ends it any more, as where the kernel hangs.
    pub fn hang(&self, key: &Key) {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.instances.values_mut().filter(|i| i.key() == *key).for_each(|i| i.hung = true);
    }

    /// As an agent leaves it that is killed while it starts it again.
    pub fn break_off(&self, key: &Key) {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.instances.values_mut().filter(|i| i.key() == *key).for_each(|i| i.unborn = true);
    }

    /// What it is can't be read any more, until it's started again.
    pub fn damage(&self, key: &Key) {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.instances.values_mut().filter(|i| i.key() == *key).for_each(|i| i.unread = true);
    }

    /// How often it was allowed to go on since a server was heard.
    pub fn renewals(&self, key: &Key) -> u64 {
        let machine = self.machine.lock().expect("no holder panics");
        machine.instances.values().filter(|i| i.key() == *key).map(|i| i.renewals).sum()
    }

    /// How often its run came up against its limits.
    pub fn set_reached(&self, key: &Key, reached: Reached) {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.instances.values_mut().filter(|i| i.key() == *key).for_each(|i| i.reached = reached);
    }

    /// Its disk: while it's full nothing is kept, so nothing is started either.
    pub fn set_full(&self, full: bool) {
        self.machine.lock().expect("no holder panics").full = full;
    }

    /// Whoever starts that panics.
    pub fn set_defective(&self, key: &Key, defective: bool) {
        let mut machine = self.machine.lock().expect("no holder panics");
        match defective {
            true => machine.defective.insert(key.clone()),
            false => machine.defective.remove(key),
        };
    }

    /// There is no port for it.
    pub fn set_portless(&self, key: &Key, portless: bool) {
        let mut machine = self.machine.lock().expect("no holder panics");
        match portless {
            true => machine.portless.insert(key.clone()),
            false => machine.portless.remove(key),
        };
    }

    /// Names of what runs.
    pub fn running(&self) -> Vec<Key> {
        let machine = self.machine.lock().expect("no holder panics");
        let mut keys: Vec<Key> =
            machine.instances.values().filter(|i| !i.unborn && i.exit.borrow().is_none()).map(Instance::key).collect();
        keys.sort();
        keys
    }

    fn end(&self, uid: &str, how: How) {
        let machine = self.machine.lock().expect("no holder panics");
        if let Some(instance) = machine.instances.get(uid).filter(|i| !i.hung && i.exit.borrow().is_none()) {
            instance.exit.send_replace(Some(Exit::new(how, self.clock.now())));
        }
    }
}

impl Machine {
    fn room(&self) -> Result<()> {
        if self.full { Err(Trouble("simulated to be full".into())) } else { Ok(()) }
    }
}

impl Instance {
    fn key(&self) -> Key {
        Key::of(self.resource.metadata.as_ref().unwrap_or(&v1::Metadata::default()))
    }

    fn by_name(&self) -> v1::Resource {
        let v1::Metadata { namespace, name, uid, .. } = self.resource.metadata.clone().unwrap_or_default();
        assigned::unread(namespace, name, uid)
    }

    fn look(&self) -> FoundRun {
        match &*self.exit.borrow() {
            _ if self.unborn => FoundRun::Never,
            Some(exit) => FoundRun::Exited(exit.clone()),
            None => FoundRun::Running(self.started()),
        }
    }

    fn started(&self) -> Started {
        let mut exit = self.exit.subscribe();
        let ended = async move {
            match exit.wait_for(Option::is_some).await.map(|exit| (*exit).clone()) {
                Ok(Some(exit)) => Ended::Exit(exit),
                // The machine forgot it.
                _ => Ended::Broken,
            }
        };
        Started { pid: self.pid, ports: self.memory.ports.clone(), reached: self.reached, ended: ended.boxed() }
    }
}

#[async_trait]
impl Driver for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn capacity(&self) -> v1::Capacity {
        self.config.capacity
    }

    async fn load_node(&self) -> Result<NodeMemory> {
        let mut machine = self.machine.lock().expect("no holder panics");
        if machine.node.machine_id.is_empty() {
            let known = Some(self.config.machine_id.clone()).filter(|id| !id.is_empty());
            machine.node.machine_id = known.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        }
        Ok(machine.node.clone())
    }

    async fn save_node(&self, memory: &NodeMemory) -> Result<()> {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.room()?;
        machine.node = memory.clone();
        Ok(())
    }

    async fn observe(&self) -> Result<Vec<Found>> {
        let machine = self.machine.lock().expect("no holder panics");
        let found = |i: &Instance| Found {
            resource: if i.unread { i.by_name() } else { i.resource.clone() },
            unread: i.unread,
            memory: i.memory.clone(),
            ready: i.ready,
            stop: i.stop,
            run: i.look(),
        };
        Ok(machine.instances.values().map(found).collect())
    }

    async fn look(&self, id: &Id) -> Result<(Memory, FoundRun)> {
        let machine = self.machine.lock().expect("no holder panics");
        let found = machine.instances.get(&id.uid).map(|instance| (instance.memory.clone(), instance.look()));
        Ok(found.unwrap_or((Memory::default(), FoundRun::Never)))
    }

    async fn start(&self, launch: Launch) -> Result<Started, StartError> {
        let defective = self.machine.lock().expect("no holder panics").defective.contains(&launch.id.key);
        assert!(!defective, "as it was told");
        if let Some(beat) = &self.config.beat {
            beat.wait().await;
        }
        if !self.config.start_delay.is_zero() {
            tokio::time::sleep(self.config.start_delay).await;
        }
        let mut machine = self.machine.lock().expect("no holder panics");
        if machine.instances.get(&launch.id.uid).is_some_and(|i| !i.unborn && i.exit.borrow().is_none()) {
            return Err(StartError::Busy);
        }
        machine.room().map_err(|trouble| StartError::Trouble(trouble.0))?;
        if machine.portless.contains(&launch.id.key) {
            return Err(StartError::Trouble(format!("simulated to have no port for {}", launch.id.key.name())));
        }
        let mut memory = launch.memory;
        let mut ports = BTreeMap::new();
        for port in &launch.template.ports {
            let next = machine.next_port.checked_add(1).unwrap_or_default().max(FIRST_PORT);
            machine.next_port = next;
            let kept = memory.ports.get(&port.name).copied();
            ports.insert(port.name.clone(), port.fixed.or(kept).unwrap_or(next));
        }
        memory.ports = ports;
        machine.next_pid += 1;
        let instance = Instance {
            resource: (*launch.resource).clone(),
            memory,
            ready: false,
            stop: false,
            well: true,
            hung: false,
            unborn: false,
            unread: false,
            reached: Reached::default(),
            renewals: 0,
            pid: machine.next_pid,
            exit: watch::Sender::new(None),
        };
        let started = instance.started();
        machine.instances.insert(launch.id.uid, instance);
        Ok(started)
    }

    async fn stop(&self, id: &Id, how: Stop) -> Result<()> {
        let signal = if how == Stop::Gracefully { 15 } else { 9 };
        if let Some(beat) = &self.config.beat {
            beat.wait().await;
        }
        if how == Stop::Gracefully && !self.config.stop_delay.is_zero() {
            tokio::time::sleep(self.config.stop_delay).await;
        }
        self.end(&id.uid, How::Signal(signal));
        Ok(())
    }

    async fn clean(&self, id: &Id) -> Result<Exit> {
        self.end(&id.uid, How::SupervisorLost);
        Ok(Exit::new(How::SupervisorLost, self.clock.now()))
    }

    async fn heard(&self, id: &Id, _until: Moment) {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.instances.get_mut(&id.uid).into_iter().for_each(|i| i.renewals += 1);
    }

    fn unenforced(&self, _limits: &Limits) -> Option<String> {
        None
    }

    async fn reached(&self, target: &Target) -> Reached {
        let machine = self.machine.lock().expect("no holder panics");
        machine.instances.get(&target.id.uid).map(|instance| instance.reached).unwrap_or_default()
    }

    async fn note_ready(&self, id: &Id, ready: bool) -> Result<()> {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.room()?;
        if let Some(instance) = machine.instances.get_mut(&id.uid) {
            instance.ready = ready;
        }
        Ok(())
    }

    async fn note_stop(&self, id: &Id, stop: bool) -> Result<()> {
        let mut machine = self.machine.lock().expect("no holder panics");
        machine.room()?;
        if let Some(instance) = machine.instances.get_mut(&id.uid) {
            instance.stop = stop;
        }
        Ok(())
    }

    async fn forget(&self, id: &Id) -> Result<()> {
        self.machine.lock().expect("no holder panics").instances.remove(&id.uid);
        Ok(())
    }

    async fn probe(&self, target: &Target, _probe: &Probe, _timeout: Duration) -> Result<(), String> {
        let machine = self.machine.lock().expect("no holder panics");
        let well = machine.instances.get(&target.id.uid).is_some_and(|i| i.well);
        if well { Ok(()) } else { Err("simulated to be unwell".into()) }
    }

    async fn logs(&self, _id: &Id, _part: LogPart) -> Result<store::LogStream> {
        Ok(stream::empty().boxed())
    }
}
