//! The loop: hears what changed, asks `plan` about the instances concerned, does the one step it says, and reports.
//!
//! It never waits for anything but its inbox: actions, checks and reports are tasks that answer there. An instance has
//! at most one action at a time.

mod actions;
mod contact;
mod reports;
mod strays;
mod trouble;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use api::v1;
use model::{Key, Revision, Time};
use store::{Api, WatchItem};
use telemetry::spell::Spell;
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    task::{JoinError, JoinSet},
    time::sleep_until,
};

pub use self::contact::Contact;
use crate::{
    Clock, Config, Metrics,
    assigned::{Assigned, View},
    driver::{Driver, Ended, Exit, Found, FoundRun, Id, Memory, NodeMemory, Reached, Result, StartError, Started},
    feed::Feed,
    health::Finding,
    node::Node,
    outbox::Outbox,
    plan::{self, Action, Run, Want},
    session::Link,
    slot::Slot,
    trace,
};

/// Events waiting for the loop; who sends one waits for room.
pub const EVENTS_MAX: usize = 1024;
/// A start that takes longer is worth a report of its own.
const START_QUIET: Duration = Duration::from_millis(100);

pub enum Event {
    Feed(Feed),
    /// A renewal of the node's session was granted that was asked for then.
    Renewed(Time),
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
    /// Time to try again whether something can be kept.
    CheckDue,
    /// The removal of releases was tried.
    Cleared,
}

/// Of one run.
pub enum News {
    Ended(Ended),
    Found(Finding),
    Reached(Reached),
}

/// An action's outcome.
pub enum Done {
    Started {
        memory: Memory,
        outcome: Result<Started, StartError>,
    },
    /// `noted`: that it's for good, where that was to be noted too.
    Stopping {
        killed: bool,
        noted: Option<Result<()>>,
        outcome: Result<()>,
    },
    Cleaned(Result<Exit>),
    Looked(Result<(Memory, FoundRun)>),
    Noted(bool, Result<()>),
    StopNoted(bool, Result<()>),
    Forgotten(Result<()>),
    /// It may have been done, or half of it.
    Panicked,
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
    pub deleted: Arc<Notify>,
    pub relist: Arc<Notify>,
    pub directory: Directory,
    pub metrics: Arc<Metrics>,
    pub told: watch::Sender<v1::NodeStatus>,
    pub node: Node,
    pub starts: Arc<Semaphore>,
    pub slots: BTreeMap<Arc<str>, Slot>,
    pub view: View,
    pub outbox: Outbox,
    pub link: Option<Link>,
    pub wakes: BTreeSet<(Time, Arc<str>)>,
    pub report_failures: u32,
    /// Whose traces end with the report that is under way.
    pub traced: Vec<Arc<str>>,
    /// Releases are being removed.
    pub clearing: bool,
    /// What must be known of the node is being written.
    pub saving: bool,
    /// And this is to be written after it.
    pub unsaved: Option<NodeMemory>,
    /// It will be tried again.
    pub check_due: bool,
    /// What can't be done at present, by the instance for which it was tried.
    pub troubled: BTreeMap<Arc<str>, String>,
    pub troubles: Spell,
    /// Lists that weren't believed.
    pub doubts: Spell,
    pub contact: Contact,
    /// What it comes to: from then on counts the time that may pass without a server.
    pub heard: Time,
    pub tasks: JoinSet<()>,
}

impl Worker {
    pub async fn run(
        mut self,
        found: Vec<Found>,
        mut inbox: mpsc::Receiver<Event>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), JoinError> {
        tokio::pin!(shutdown);
        self.adopt(found);
        loop {
            let wake = self.wakes.first().map(|(time, _)| self.clock.instant(*time));
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                Some(event) = inbox.recv() => {
                    self.hear(event);
                    while let Ok(event) = inbox.try_recv() {
                        self.hear(event);
                    }
                }
                () = async { sleep_until(wake.expect("guarded")).await }, if wake.is_some() => self.wake(),
            }
            self.flush();
            self.metrics.instances.set(self.slots.len() as u64);
            // What one that panicked was about to answer would be waited for for ever.
            while let Some(ended) = self.tasks.try_join_next() {
                ended.or_else(|error| if error.is_cancelled() { Ok(()) } else { Err(error) })?;
            }
        }
    }

    fn adopt(&mut self, found: Vec<Found>) {
        for found in found {
            let Some((slot, started)) = Slot::adopt(found, self.clock.now()) else { continue };
            let (uid, carried) = (slot.id.uid.clone(), slot.seen.ready_noted);
            self.enter(slot);
            if let Some(started) = started {
                self.attend(&uid, started, carried);
            }
            self.step(&uid);
        }
    }

    fn enter(&mut self, mut slot: Slot) {
        slot.contact(self.heard);
        slot.unenforced = self.driver.unenforced(&slot.template.limits);
        self.directory.lock().expect("no holder panics").insert(slot.id.key.clone(), slot.id.clone());
        self.slots.insert(slot.id.uid.clone(), slot);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Feed(Feed::Broken) => {
                self.metrics.hears.set(0);
                self.view.broken();
                self.contact.untold();
            }
            Event::Feed(Feed::Open) => self.metrics.hears.set(1),
            Event::Feed(Feed::Item(item)) => {
                let live = matches!(item, WatchItem::Changes(_));
                let had_node = self.view.records.node;
                let changed = self.view.apply(item);
                if live && self.config.tracer.is_on() {
                    self.delivered(&changed.uids);
                }
                if changed.complete || had_node {
                    self.miss_node();
                }
                self.contact.told(self.view.is_current());
                self.count_contact();
                if changed.complete {
                    self.complete();
                }
                changed.uids.iter().for_each(|uid| self.assign(uid));
                self.doubt_absence(&changed.uids);
                self.clear_releases();
            }
            Event::Link(link) => self.relink(link),
            Event::Renewed(asked) => self.renewed(asked),
            Event::Run { uid, run, news } => {
                if let Some(slot) = self.slots.get_mut(&uid).filter(|slot| slot.memory.run == run) {
                    match news {
                        News::Found(finding) => {
                            if let (Finding::Ready, false, Some(trace)) = (&finding, slot.seen.ready, &mut slot.trace) {
                                trace.healthy(&self.config.tracer, &slot.id, &self.config.node);
                            }
                            slot.found(finding);
                        }
                        News::Reached(reached) => slot.reached = reached,
                        News::Ended(Ended::Exit(exit)) => slot.ended(exit, self.clock.now()),
                        News::Ended(Ended::Broken) => slot.seen.run = Run::Broken,
                    }
                    self.step(&uid);
                }
            }
            Event::Done { uid, done } => self.done(&uid, done),
            Event::Reported { sequence, answer } => self.reported(sequence, answer),
            Event::Cleared => self.clearing = false,
            Event::NodeSaved(saved) => self.node_saved(saved),
            Event::CheckDue => {
                self.check_due = false;
                self.check_node();
            }
        }
    }

    /// Which of these are new, or new to be stopped, was told by the watch.
    fn delivered(&self, uids: &BTreeSet<Arc<str>>) {
        let news = uids
            .iter()
            .filter_map(|uid| self.view.records.instances.get(uid))
            .filter(|assigned| self.slots.get(&assigned.id.uid).is_none_or(|slot| assigned.deleting && !slot.explicit));
        trace::delivered(&self.config.tracer, &self.config.node, news.map(|assigned| &*assigned.resource));
    }

    /// A complete snapshot: now absence means something.
    fn complete(&mut self) {
        self.metrics.told.set(1);
        let uids: BTreeSet<Arc<str>> = self.view.records.instances.keys().chain(self.slots.keys()).cloned().collect();
        let memory = self.judge_strays();
        uids.iter().for_each(|uid| self.assign(uid));
        // Also where it says nothing new: whether something can be kept at all is tried before it's needed.
        self.save_node(memory);
        self.say_node();
    }

    /// Its record may have changed.
    fn assign(&mut self, uid: &Arc<str>) {
        if let Some(assigned) = self.view.records.instances.get(uid) {
            match self.slots.get_mut(uid) {
                Some(slot) => {
                    let unread = slot.unread;
                    slot.assign(assigned);
                    if unread {
                        slot.contact(self.heard);
                        slot.unenforced = self.driver.unenforced(&slot.template.limits);
                    }
                }
                None => {
                    let slot = Slot::new(assigned);
                    self.enter(slot);
                }
            }
            // It may have been missing before.
            self.renew(uid);
        }
        self.step(uid);
    }

    /// Registered, and yet the Node isn't there: somebody deleted it. It comes back with another uid; what was bound to
    /// the one before is given up by its services, and stopped here by their word.
    fn miss_node(&self) {
        if self.link.is_some() && !self.view.records.node {
            self.deleted.notify_one();
        }
    }

    fn want(&self, slot: &Slot) -> Want {
        match self.view.records.instances.get(&slot.id.uid) {
            Some(Assigned { deleting: true, .. }) => Want::Stop,
            Some(_) => Want::Run,
            None if self.view.incarnation.is_none() || !self.view.absent(&slot.id) => Want::Unknown,
            None if slot.explicit || self.view.records.releases.contains_key(&slot.id.uid) => Want::Forget,
            None => Want::Stray { stop: slot.stray_stop },
        }
    }

    /// Observe, plan, one step; then it's reported.
    fn step(&mut self, uid: &Arc<str>) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get(uid) else { return };
        let want = self.want(slot);
        if slot.busy.is_none() {
            let action = match plan::plan(want, &slot.seen, &self.config.backoff, now) {
                // The name may be another machine's: only an agent that was granted a session begins anything. What ran
                // here before is kept up without one.
                Action::Start { again: false } if self.link.is_none() && slot.memory.run <= 1 => Action::Nothing,
                action => action,
            };
            self.act(uid, action, now);
        }
        self.outbox.mark(uid);
    }

    fn leave(&mut self, uid: &Arc<str>) {
        let Some(slot) = self.slots.remove(uid) else { return };
        if let Some(wake) = slot.wake {
            self.wakes.remove(&(wake, uid.clone()));
        }
        self.outbox.forget(uid);
        self.clear_releases();
        self.next_strays();
        self.node_works();
        let mut directory = self.directory.lock().expect("no holder panics");
        if directory.get(&slot.id.key) == Some(&slot.id) {
            directory.remove(&slot.id.key);
        }
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
        self.metrics.linked.set(u64::from(link.is_some()));
        self.link = link.map(|(link, told)| {
            self.contact.linked(&link.session);
            self.outbox.start_over(self.slots.keys().cloned(), told);
            link
        });
        let never = |slot: &&Slot| matches!(slot.seen.run, Run::Never);
        let waiting: Vec<Arc<str>> = self.slots.values().filter(never).map(|slot| slot.id.uid.clone()).collect();
        waiting.iter().for_each(|uid| self.step(uid));
        self.say_node();
    }
}
