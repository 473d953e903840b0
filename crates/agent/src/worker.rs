//! The loop: hears what changed, asks `plan` about the instances concerned, does the one step it says, and reports.
//!
//! It never waits for anything but its inbox: actions, checks and reports are tasks that answer there. An instance has
//! at most one action at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::v1;
use model::{Key, Revision, Time};
use store::{Api, Class};
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    task::JoinSet,
    time::sleep_until,
};

use crate::{
    Clock, Config,
    assigned::{Assigned, View},
    driver::{Driver, Ended, Exit, Found, FoundRun, Id, Memory, NodeMemory, Result, StartError, Started, Stop},
    feed::Feed,
    health::{self, Finding},
    node::{self, Node, Trust, Unconfirmed},
    outbox::Outbox,
    plan::{self, Action, Run, Want},
    session::{Keeper, Link},
    slot::{Busy, Slot},
};

/// Events waiting for the loop; who sends one waits for room.
pub const EVENTS_MAX: usize = 1024;
/// A start that takes longer is worth a report of its own.
const START_QUIET: Duration = Duration::from_millis(100);
/// The longest pause after a report that failed.
const REPORT_PAUSE_MAX: Duration = Duration::from_secs(1);
const REPORT_PAUSE_FIRST: Duration = Duration::from_millis(10);

pub enum Event {
    Feed(Feed),
    /// A new link, and what the node said under it; or none.
    Link(Option<(Link, v1::NodeStatus)>),
    Run {
        uid: Arc<str>,
        run: u64,
        news: News,
    },
    Done {
        uid: Arc<str>,
        done: Done,
    },
    Reported {
        sequence: u64,
        answer: store::Result<(Revision, Vec<Key>)>,
    },
    NodeSaved(Result<NodeMemory>),
}

/// Of one run.
pub enum News {
    Ended(Ended),
    Found(Finding),
}

/// An action's outcome.
pub enum Done {
    Started { memory: Memory, outcome: Result<Started, StartError> },
    Stopping { killed: bool, outcome: Result<()> },
    Cleaned(Result<Exit>),
    Looked(Result<FoundRun>),
    Noted(bool, Result<()>),
    Forgotten(Result<()>),
}

/// Which instance a name means here, for those who ask for logs.
pub type Directory = Arc<Mutex<BTreeMap<Key, Id>>>;

pub struct Worker {
    pub config: Arc<Config>,
    pub driver: Arc<dyn Driver>,
    pub api: Arc<dyn Api>,
    pub clock: Clock,
    pub events: mpsc::Sender<Event>,
    pub doubt: Arc<Notify>,
    pub relist: Arc<Notify>,
    pub directory: Directory,
    pub told: watch::Sender<v1::NodeStatus>,
    pub node: Node,
    pub starts: Arc<Semaphore>,
    pub slots: BTreeMap<Arc<str>, Slot>,
    pub view: View,
    pub outbox: Outbox,
    pub link: Option<Link>,
    pub wakes: BTreeSet<(Time, Arc<str>)>,
    pub report_failures: u32,
    pub tasks: JoinSet<()>,
}

impl Worker {
    pub async fn run(
        mut self,
        found: Vec<Found>,
        mut inbox: mpsc::Receiver<Event>,
        shutdown: impl Future<Output = ()>,
    ) {
        tokio::pin!(shutdown);
        self.adopt(found);
        loop {
            let wake = self.wakes.first().map(|(time, _)| self.clock.instant(*time));
            tokio::select! {
                biased;
                () = &mut shutdown => return,
                Some(event) = inbox.recv() => {
                    self.hear(event);
                    while let Ok(event) = inbox.try_recv() {
                        self.hear(event);
                    }
                }
                () = async { sleep_until(wake.expect("guarded")).await }, if wake.is_some() => self.wake(),
            }
            self.flush();
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn adopt(&mut self, found: Vec<Found>) {
        for found in found {
            let Some((slot, started)) = Slot::adopt(found) else { continue };
            let (uid, carried) = (slot.id.uid.clone(), slot.seen.ready_noted);
            self.enter(slot);
            if let Some(started) = started {
                self.attend(&uid, started, carried);
            }
            self.step(&uid);
        }
    }

    fn enter(&mut self, slot: Slot) {
        self.directory.lock().expect("no holder panics").insert(slot.id.key.clone(), slot.id.clone());
        self.slots.insert(slot.id.uid.clone(), slot);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Feed(Feed::Broken) => self.view.broken(),
            Event::Feed(Feed::Item(item)) => {
                let changed = self.view.apply(item);
                if changed.complete {
                    self.complete();
                }
                changed.uids.iter().for_each(|uid| self.assign(uid));
                self.doubt_absence(&changed.uids);
            }
            Event::Link(link) => self.relink(link),
            Event::Run { uid, run, news } => {
                if let Some(slot) = self.slots.get_mut(&uid).filter(|slot| slot.memory.run == run) {
                    match news {
                        News::Found(finding) => slot.found(finding),
                        News::Ended(Ended::Exit(exit)) => slot.ended(exit),
                        News::Ended(Ended::Broken) => slot.seen.run = Run::Broken,
                    }
                    self.step(&uid);
                }
            }
            Event::Done { uid, done } => self.done(&uid, done),
            Event::Reported { sequence, answer } => self.reported(sequence, answer),
            Event::NodeSaved(saved) => match saved {
                Ok(memory) => {
                    self.node.memory = memory;
                    self.node_works();
                }
                Err(trouble) => self.node_trouble(trouble.0),
            },
        }
    }

    /// A complete snapshot: now absence means something.
    fn complete(&mut self) {
        let uids: BTreeSet<Arc<str>> = self.view.instances.keys().chain(self.slots.keys()).cloned().collect();
        self.judge_strays();
        uids.iter().for_each(|uid| self.assign(uid));
        if self.node.trouble.is_some() {
            self.save_node(self.node.memory.clone());
        }
        self.say_node();
    }

    /// What isn't assigned here any more though nobody asked for its end.
    fn judge_strays(&mut self) {
        let is_stray = |slot: &&Slot| !slot.explicit && self.absent(&slot.id.uid);
        let strays: Vec<&Slot> = self.slots.values().filter(is_stray).collect();
        let incarnation = self.view.incarnation.clone().unwrap_or_default();
        let known = self.node.memory.incarnation.as_deref();
        match node::trust(known, &incarnation, strays.len()) {
            Trust::Known => {
                let (running, idle): (Vec<&Slot>, Vec<&Slot>) = strays.into_iter().partition(|slot| slot.is_running());
                let total = self.slots.values().filter(|slot| slot.is_running()).count();
                let mut stop = plan::strays_to_stop(running, total);
                stop.extend(plan::strays_to_stop(idle, self.slots.len() - total));
                let stop: Vec<Arc<str>> = stop.into_iter().map(|slot| slot.id.uid.clone()).collect();
                for uid in stop {
                    let Some(slot) = self.slots.get_mut(&uid) else { continue };
                    tracing::warn!(instance = %slot.id.key, uid = %slot.id.uid, "no longer assigned here: stopping it");
                    slot.stray_stop = true;
                }
                self.node.unconfirmed = None;
            }
            Trust::Adopt => {
                self.node.unconfirmed = None;
                self.save_node(NodeMemory { incarnation: Some(incarnation), ..self.node.memory.clone() });
            }
            Trust::Unconfirmed => {
                let instances = strays.len();
                tracing::warn!(incarnation, instances, "another store, which doesn't know what runs here");
                self.node.unconfirmed = Some(Unconfirmed { incarnation, instances });
            }
        }
    }

    fn absent(&self, uid: &str) -> bool {
        !self.view.instances.contains_key(uid) && !self.view.unreadable.contains(uid)
    }

    /// Its record may have changed.
    fn assign(&mut self, uid: &Arc<str>) {
        if let Some(assigned) = self.view.instances.get(uid) {
            match self.slots.get_mut(uid) {
                Some(slot) => slot.assign(assigned),
                None => {
                    let slot = Slot::new(assigned);
                    self.enter(slot);
                }
            }
        }
        self.step(uid);
    }

    /// Records that went without a word before: only a complete list may say that they are strays. It's asked for once, by
    /// the change; what such a list leaves running waits for the next sweep.
    fn doubt_absence(&self, uids: &BTreeSet<Arc<str>>) {
        let vanished = |uid: &Arc<str>| self.absent(uid) && self.slots.get(uid).is_some_and(|slot| !slot.explicit);
        if self.node.unconfirmed.is_none() && uids.iter().any(vanished) {
            self.relist.notify_one();
        }
    }

    fn want(&self, slot: &Slot) -> Want {
        match self.view.instances.get(&slot.id.uid) {
            Some(Assigned { deleting: true, .. }) => Want::Stop,
            Some(_) => Want::Run,
            None if self.view.incarnation.is_none() || !self.absent(&slot.id.uid) => Want::Unknown,
            None if slot.explicit => Want::Forget,
            None => Want::Stray { stop: slot.stray_stop },
        }
    }

    /// Observe, plan, one step; then it's reported.
    fn step(&mut self, uid: &Arc<str>) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get(uid) else { return };
        let want = self.want(slot);
        if slot.busy.is_none() {
            let action = plan::plan(want, &slot.seen, &self.config.backoff, now);
            self.act(uid, action, now);
        }
        self.outbox.mark(uid);
    }

    fn act(&mut self, uid: &Arc<str>, action: Action, now: Time) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        if let Some(before) = slot.wake.take() {
            self.wakes.remove(&(before, uid.clone()));
        }
        let (driver, id) = (Arc::clone(&self.driver), slot.id.clone());
        let wake = match action {
            Action::Wait(time) => Some(time),
            Action::Start { .. } => Some(now.plus(START_QUIET)),
            _ => None,
        };
        if let Some(time) = wake {
            slot.wake = Some(time);
            self.wakes.insert((time, uid.clone()));
        }
        match action {
            Action::Wait(_) | Action::Nothing => return,
            _ => slot.busy = Some(Busy { since: now, starting: matches!(action, Action::Start { .. }) }),
        }
        let stop = |how: Stop, driver: Arc<dyn Driver>, id: Id| async move {
            Done::Stopping { killed: how != Stop::Gracefully, outcome: driver.stop(&id, how).await }
        };
        match action {
            Action::Wait(_) | Action::Nothing => {}
            Action::Start { again } => {
                let launch = slot.launch(again, &self.config.backoff, now);
                let starts = Arc::clone(&self.starts);
                self.answer(uid, async move {
                    let _permit = starts.acquire().await.expect("never closed");
                    let memory = launch.memory.clone();
                    Done::Started { memory, outcome: driver.start(launch).await }
                });
            }
            Action::Stop => self.answer(uid, stop(Stop::Gracefully, driver, id)),
            Action::Kill => self.answer(uid, stop(Stop::Kill, driver, id)),
            Action::Destroy => self.answer(uid, stop(Stop::Destroy, driver, id)),
            Action::Clean => self.answer(uid, async move { Done::Cleaned(driver.clean(&id).await) }),
            Action::Look => self.answer(uid, async move { Done::Looked(driver.look(&id).await) }),
            Action::NoteReady(ready) => {
                self.answer(uid, async move { Done::Noted(ready, driver.note_ready(&id, ready).await) });
            }
            Action::Forget => self.answer(uid, async move { Done::Forgotten(driver.forget(&id).await) }),
        }
    }

    fn answer(&mut self, uid: &Arc<str>, work: impl Future<Output = Done> + Send + 'static) {
        let (uid, events) = (uid.clone(), self.events.clone());
        self.tasks.spawn(async move {
            let done = work.await;
            // Nobody listens any more once the agent ends.
            let _ = events.send(Event::Done { uid, done }).await;
        });
    }

    fn done(&mut self, uid: &Arc<str>, done: Done) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.busy = None;
        let mut attend = None;
        let trouble = match done {
            Done::Started { memory, outcome: Ok(started) } => {
                slot.remember(memory);
                slot.runs(&started, false);
                attend = Some((started, false));
                None
            }
            Done::Started { memory, outcome: Err(StartError::CannotStart(exit)) } => {
                slot.remember(memory);
                slot.ended(exit);
                slot.works();
                None
            }
            Done::Started { memory, outcome: Err(StartError::Busy) } => {
                slot.remember(memory);
                slot.seen.run = Run::Unknown;
                slot.trouble("the start was not answered".into(), now);
                None
            }
            Done::Started { outcome: Err(StartError::Trouble(why)), .. } => Some(why),
            Done::Stopping { killed, outcome } => {
                slot.stopping(killed, now);
                outcome.err().map(|t| t.0)
            }
            Done::Cleaned(Ok(exit)) => {
                slot.ended(exit);
                slot.works();
                None
            }
            Done::Looked(Ok(found)) => {
                if let FoundRun::Unknown(why) = &found {
                    slot.trouble(why.clone(), now);
                }
                let carried = slot.seen.ready_noted;
                attend = slot.look(found).map(|started| (started, carried));
                None
            }
            Done::Noted(ready, Ok(())) => {
                slot.seen.ready_noted = ready;
                None
            }
            Done::Forgotten(Ok(())) => {
                self.leave(uid);
                return;
            }
            Done::Cleaned(Err(t)) | Done::Looked(Err(t)) | Done::Noted(_, Err(t)) | Done::Forgotten(Err(t)) => {
                Some(t.0)
            }
        };
        if let Some((started, carried)) = attend {
            self.attend(uid, started, carried);
        }
        match trouble {
            Some(why) => {
                if let Some(slot) = self.slots.get_mut(uid) {
                    slot.trouble(why.clone(), now);
                }
                self.node_trouble(why);
            }
            None => self.node_works(),
        }
        self.step(uid);
    }

    fn leave(&mut self, uid: &Arc<str>) {
        let Some(slot) = self.slots.remove(uid) else { return };
        if let Some(wake) = slot.wake {
            self.wakes.remove(&(wake, uid.clone()));
        }
        self.outbox.forget(uid);
        let mut directory = self.directory.lock().expect("no holder panics");
        if directory.get(&slot.id.key) == Some(&slot.id) {
            directory.remove(&slot.id.key);
        }
    }

    /// Waits for a run's end, and asks its checks until then.
    fn attend(&mut self, uid: &Arc<str>, started: Started, carried: bool) {
        let Some(slot) = self.slots.get(uid) else { return };
        let (uid, run, target, events) = (uid.clone(), slot.memory.run, slot.target(), self.events.clone());
        let (driver, checked) = (Arc::clone(&self.driver), slot.is_checked());
        self.tasks.spawn(async move {
            let (tell, mut findings) = mpsc::channel(health::FINDINGS_MAX);
            let checks = async {
                if checked {
                    health::watch(driver, target, carried, tell).await;
                }
                std::future::pending::<()>().await;
            };
            let (mut ended, mut checks) = (started.ended, pin!(checks));
            loop {
                let news = tokio::select! {
                    ended = &mut ended => News::Ended(ended),
                    Some(finding) = findings.recv() => News::Found(finding),
                    () = &mut checks => continue,
                };
                let last = matches!(news, News::Ended(_));
                // Nobody listens any more once the agent ends.
                if events.send(Event::Run { uid: uid.clone(), run, news }).await.is_err() || last {
                    return;
                }
            }
        });
    }

    fn wake(&mut self) {
        let now = self.clock.now();
        while self.wakes.first().is_some_and(|(time, _)| *time <= now)
            && let Some((_, uid)) = self.wakes.pop_first()
        {
            if let Some(slot) = self.slots.get_mut(&uid) {
                slot.wake = None;
            }
            self.step(&uid);
        }
    }

    fn relink(&mut self, link: Option<(Link, v1::NodeStatus)>) {
        self.link = link.map(|(link, told)| {
            self.outbox.start_over(self.slots.keys().cloned(), told);
            link
        });
        self.say_node();
    }

    fn save_node(&mut self, memory: NodeMemory) {
        let (driver, events) = (Arc::clone(&self.driver), self.events.clone());
        self.tasks.spawn(async move {
            let saved = driver.save_node(&memory).await.map(|()| memory);
            let _ = events.send(Event::NodeSaved(saved)).await;
        });
    }

    fn node_trouble(&mut self, why: String) {
        if self.node.trouble.as_ref() != Some(&why) {
            tracing::error!(node = %self.config.node, trouble = %why, "the node can't do its work");
            self.node.trouble = Some(why);
            self.say_node();
        }
    }

    fn node_works(&mut self) {
        if self.node.trouble.take().is_some() {
            tracing::info!(node = %self.config.node, "the node can do its work again");
            self.say_node();
        }
    }

    fn say_node(&mut self) {
        let status = self.node.status();
        self.outbox.set_node(status.clone());
        self.told.send_replace(status);
    }

    /// Says what the store doesn't know, unless it's being told something just now.
    fn flush(&mut self) {
        let Some(link) = &self.link else { return };
        let now = self.clock.now();
        let mut outbox = std::mem::take(&mut self.outbox);
        let batch = outbox.next(|uid| {
            let slot = self.slots.get(uid)?;
            let quiet = slot.busy.is_some_and(|busy| busy.starting && now.since(busy.since) < START_QUIET);
            let want = self.want(slot);
            let recorded = matches!(want, Want::Run | Want::Stop) && !quiet;
            recorded.then(|| slot.report(want, &self.config.backoff))
        });
        self.outbox = outbox;
        let Some(batch) = batch else { return };
        let (api, events, config, fence) =
            (Arc::clone(&self.api), self.events.clone(), Arc::clone(&self.config), link.fence());
        let pause = REPORT_PAUSE_FIRST.saturating_mul(2_u32.saturating_pow(self.report_failures)).min(REPORT_PAUSE_MAX);
        self.tasks.spawn(async move {
            let sequence = batch.sequence;
            let caller = Keeper::caller(&config);
            let report = api.report(&caller, fence, &config.node, batch);
            let lost = || Err(store::Error::OutcomeUnknown("no answer in time".into()));
            let answer = tokio::time::timeout(config.call_timeout, report).await.unwrap_or_else(|_| lost());
            if answer.is_err() {
                tokio::time::sleep(pause).await;
            }
            let _ = events.send(Event::Reported { sequence, answer }).await;
        });
    }

    fn reported(&mut self, sequence: u64, answer: store::Result<(Revision, Vec<Key>)>) {
        match answer {
            Ok((_, refused)) => {
                self.report_failures = 0;
                self.outbox.acknowledged(sequence, &refused);
            }
            Err(error) => {
                tracing::warn!(node = %self.config.node, %error, "a report failed");
                self.report_failures = self.report_failures.saturating_add(1);
                self.outbox.failed(sequence);
                if error.class() == Class::Fenced {
                    self.doubt.notify_one();
                }
            }
        }
    }
}
