//! The public entry: puts the parts together and runs them until it is told to end. What runs on the node is left alone
//! then; the next agent finds it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use api::v1;
use async_trait::async_trait;
use futures::StreamExt;
use model::{Key, Time};
use store::{Api, LogPiece, LogSource, LogStream};
use telemetry::spell::Spell;
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    task::{JoinError, JoinSet},
};

use crate::{
    Clock, Config, Metrics,
    assigned::{self, View},
    driver::{Driver, Found, LogPart, Result, Trouble},
    feed::Watcher,
    node::Node,
    outbox::Outbox,
    session::Keeper,
    worker::{Contact, Directory, EVENTS_MAX, Event, Worker},
};

pub struct Agent {
    config: Arc<Config>,
    driver: Arc<dyn Driver>,
    api: Arc<dyn Api>,
    directory: Directory,
    metrics: Arc<Metrics>,
}

impl Agent {
    pub fn new(config: Config, driver: Arc<dyn Driver>, api: Arc<dyn Api>) -> Self {
        Self { config: Arc::new(config), driver, api, directory: Directory::default(), metrics: Arc::default() }
    }

    /// What it shows to Prometheus, and whether it's ready.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// What the instances here write, for the connection to hand out.
    pub fn logs(&self) -> Arc<dyn LogSource> {
        Arc::new(Logs::new(Arc::clone(&self.driver), Arc::clone(&self.directory)))
    }

    /// Runs until `shutdown`. An error means that it can't go on: the driver can't tell what is here, so nothing was done;
    /// or a part of the agent panicked. What runs here is left alone in any case.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let memory = self.driver.load_node().await?;
        let found = self.driver.observe().await?;
        own(&self.config.node, &found)?;
        tracing::info!(node = %self.config.node, driver = self.driver.name(), instances = found.len(), "agent starts");
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let node = Node::new(&self.config.node, Arc::clone(&self.driver), memory);
        let (told, status) = watch::channel(node.status());
        let (doubt, deleted, relist) = (Arc::default(), Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        let clock = Clock::start();
        // The longest time from one list to the next, by chance.
        let doubts = Spell::of_every(self.config.sweep * 3 / 2);
        let keeper = Keeper {
            config: Arc::clone(&self.config),
            clock,
            api: Arc::clone(&self.api),
            doubt: Arc::clone(&doubt),
            deleted: Arc::clone(&deleted),
        };
        tasks.spawn(keeper.keep(status, events.clone()));
        self.keep_watch(&mut tasks, &events, Arc::clone(&relist));
        let worker = Worker {
            clock,
            starts: Arc::new(Semaphore::new(self.config.starts_max)),
            config: self.config,
            driver: self.driver,
            api: self.api,
            directory: self.directory,
            metrics: self.metrics,
            events,
            doubt,
            deleted,
            relist,
            told,
            node,
            slots: BTreeMap::new(),
            view: View::default(),
            outbox: Outbox::default(),
            link: None,
            wakes: BTreeSet::new(),
            report_failures: 0,
            traced: Vec::new(),
            clearing: false,
            saving: false,
            unsaved: None,
            check_due: false,
            troubled: BTreeMap::new(),
            troubles: Spell::default(),
            doubts,
            contact: Contact::default(),
            heard: Time::default(),
            tasks: JoinSet::new(),
        };
        let panicked = |error: JoinError| {
            Trouble(format!("a part of it panicked, which is a defect (its log says where): {error}; start it anew"))
        };
        tokio::select! {
            ended = worker.run(found, inbox, shutdown) => ended.map_err(panicked),
            // None of them ends by itself.
            Some(Err(error)) = tasks.join_next() => Err(panicked(error)),
        }
    }

    fn keep_watch(&self, tasks: &mut JoinSet<()>, events: &mpsc::Sender<Event>, relist: Arc<Notify>) {
        let watcher = Watcher { config: Arc::clone(&self.config), api: Arc::clone(&self.api), relist };
        tasks.spawn(watcher.watch(events.clone()));
    }
}

/// Work belongs to the node that it was given to: an agent of another name would be told nothing of it, while whoever
/// declared it waits for that node, or has it replaced.
fn own(node: &str, found: &[Found]) -> Result<()> {
    let owner = |found: &Found| assigned::spec(&found.resource).map(|spec| spec.node).filter(|name| !name.is_empty());
    let others: Vec<String> = found.iter().filter_map(owner).filter(|name| name != node).collect();
    let Some(other) = others.first() else { return Ok(()) };
    let instances = kinds::count(others.len(), "instance");
    Err(Trouble(format!(
        "its data dir holds {instances} of node {other}, so it can't be {node}'s: start it with --node {other}, and to \
         rename the node drain it first (driftless drain {other}); see docs/DEPLOY.md, \"A host that is renamed\""
    )))
}

/// Logs that are read at the same time; one that is followed is looked at ten times a second.
pub const LOGS_MAX: usize = 256;

struct Logs {
    driver: Arc<dyn Driver>,
    directory: Directory,
    readers: Arc<Semaphore>,
}

impl Logs {
    fn new(driver: Arc<dyn Driver>, directory: Directory) -> Self {
        Self { driver, directory, readers: Arc::new(Semaphore::new(LOGS_MAX)) }
    }

    fn too_many() -> store::Error {
        store::Error::Unavailable(format!("{LOGS_MAX} logs of this node are read already; try again when one ends"))
    }
}

#[async_trait]
impl LogSource for Logs {
    async fn open(&self, start: v1::LogStart) -> store::Result<LogStream> {
        let key = Key::new("Instance", &start.namespace, &start.instance);
        let id = self.directory.lock().expect("no holder panics").get(&key).cloned();
        let id = id.ok_or_else(|| store::Error::NotFound(key.clone()))?;
        let after = match start.after.split_once('/') {
            // Where that one was there is another of its name now.
            Some((uid, _)) if uid != &*id.uid => return Err(store::Error::NotFound(key)),
            after => after.map(|(_, position)| position.to_owned()),
        };
        let reader = Arc::clone(&self.readers).try_acquire_owned().map_err(|_| Self::too_many())?;
        let age = start.since.and_then(|since| Duration::try_from(since).ok());
        let part = LogPart {
            previous: start.previous,
            since: age.map(|age| SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH)),
            tail: start.tail.map(|lines| usize::try_from(lines).unwrap_or(0)),
            follow: start.follow && !start.previous,
            after,
        };
        let log = self.driver.logs(&id, part).await.map_err(|t| store::Error::Unavailable(t.0))?;
        Ok(log
            .map(move |piece| {
                let _until_it_is_dropped = &reader;
                piece.map(|piece| LogPiece { position: format!("{}/{}", id.uid, piece.position), ..piece })
            })
            .boxed())
    }
}
