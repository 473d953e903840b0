//! Everything the agent knows of one instance.

use std::{sync::Arc, time::Duration};

use api::v1;
use model::Time;
use tokio::task::AbortHandle;

use crate::{
    Clock,
    assigned::Assigned,
    driver::{Exit, Found, FoundRun, Id, Launch, Memory, Reached, Started, Target},
    health::Finding,
    plan::{Backoff, Run, Seen, Stopping, Want},
    status::{self, Facts},
    template::Template,
    trace::Trace,
};

pub struct Slot {
    pub id: Id,
    pub generation: i64,
    pub resource: Arc<v1::Resource>,
    pub template: Arc<Template>,
    /// And what it is can't be read on this node: until a server says it, nothing is checked.
    pub unread: bool,
    pub memory: Memory,
    pub seen: Seen,
    pub pid: i64,
    /// A startup check hasn't passed yet.
    pub starting_up: bool,
    /// What is wrong, in words.
    pub trouble: Option<String>,
    /// Troubles of the node in a row, which space the tries.
    pub troubles: u32,
    /// An action is being done; since when.
    pub busy: Option<Busy>,
    pub unenforced: Option<String>,
    /// How often it came up against its limits, by its magnitude.
    pub reached: Reached,
    pub wake: Option<Time>,
    /// Its record had a deletion time.
    pub explicit: bool,
    /// It's among the strays that may be stopped now.
    pub stray_stop: bool,
    /// Waits for its end, and asks its checks.
    pub attendant: Option<AbortHandle>,
    /// None once what was asked for was reported, and of what an earlier agent began.
    pub trace: Option<Trace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    pub since: Time,
    pub starting: bool,
}

/// Between tries where the node had trouble; doubles up to the last one.
const TROUBLE_FIRST: Duration = Duration::from_millis(200);
const TROUBLE_MAX: Duration = Duration::from_secs(10);

impl Slot {
    pub fn new(assigned: &Assigned) -> Self {
        let template = Arc::clone(&assigned.template);
        Self {
            id: assigned.id.clone(),
            generation: assigned.generation,
            resource: Arc::clone(&assigned.resource),
            seen: Seen {
                run: Run::Never,
                restart: template.restart,
                grace: template.stop_grace,
                started: Time::default(),
                failures: 0,
                dead: false,
                ready: false,
                ready_noted: false,
                not_before: None,
                start_until: None,
                stop_noted: None,
            },
            template,
            unread: false,
            memory: Memory::default(),
            pid: 0,
            starting_up: false,
            trouble: None,
            troubles: 0,
            busy: None,
            unenforced: None,
            reached: Reached::default(),
            wake: None,
            explicit: assigned.deleting,
            stray_stop: false,
            attendant: None,
            trace: Trace::of(&assigned.resource),
        }
    }

    /// Of what the driver has. With what is to be attended to, where it runs.
    pub fn adopt(found: Found, now: Time) -> Option<(Self, Option<Started>)> {
        let mut slot = Self::new(&Assigned::read(found.resource)?);
        slot.trace = None;
        slot.unread = found.unread;
        slot.remember(found.memory);
        slot.seen.ready_noted = found.ready;
        slot.seen.stop_noted = Some(found.stop);
        slot.explicit = found.stop;
        let started = slot.look(found.run, now);
        Some((slot, started))
    }

    pub fn remember(&mut self, memory: Memory) {
        self.seen.started = memory.started;
        self.seen.failures = memory.failures;
        self.memory = memory;
        self.seen.stop_noted.get_or_insert(false);
    }

    /// The record as it is now. The template of an instance never changes, but what is found on disk may be older.
    pub fn assign(&mut self, assigned: &Assigned) {
        self.generation = assigned.generation;
        self.resource = Arc::clone(&assigned.resource);
        self.template = Arc::clone(&assigned.template);
        self.seen.restart = assigned.template.restart;
        self.seen.grace = assigned.template.stop_grace;
        if assigned.deleting && !self.explicit {
            self.trace = Trace::of(&assigned.resource);
        }
        self.explicit = assigned.deleting;
        self.stray_stop = false;
        if std::mem::take(&mut self.unread) && matches!(self.seen.run, Run::Running { stopping: None }) {
            // As if it was found now.
            self.seen.run = Run::Unknown;
            self.seen.ready = self.seen.ready_noted || !self.is_checked();
        }
    }

    pub fn look(&mut self, run: FoundRun, now: Time) -> Option<Started> {
        let (run, started) = match run {
            FoundRun::Never => (Run::Never, None),
            FoundRun::Exited(exit) => {
                self.works();
                (Run::Exited(self.timed(exit, now)), None)
            }
            FoundRun::Broken => (Run::Broken, None),
            FoundRun::Unknown(why) => {
                self.trouble = Some(why);
                (Run::Unknown, None)
            }
            FoundRun::Running(started) => (Run::Running { stopping: None }, Some(started)),
        };
        self.seen.run = run;
        if let Some(started) = &started {
            self.runs(started, self.seen.ready_noted);
        }
        started
    }

    /// A run goes on; `carried`: an earlier agent saw it ready.
    pub fn runs(&mut self, started: &Started, carried: bool) {
        self.seen.run = Run::Running { stopping: None };
        self.seen.dead = false;
        self.seen.ready = carried || !self.is_checked();
        // What isn't checked is ready whenever it runs: nothing to note.
        self.seen.ready_noted = self.seen.ready;
        self.starting_up = self.template.startup.is_some() && !carried;
        self.pid = started.pid;
        self.memory.ports = started.ports.clone();
        self.reached = started.reached.rounded();
        self.trouble = None;
        self.works();
    }

    /// A server was heard then.
    pub fn contact(&mut self, heard: Time) {
        self.seen.start_until = self.template.stop_after.map(|after| heard.plus(after));
    }

    pub fn is_checked(&self) -> bool {
        let Template { startup, readiness, liveness, .. } = &*self.template;
        self.unread || startup.is_some() || readiness.is_some() || liveness.is_some()
    }

    pub fn target(&self) -> Target {
        let template = Arc::clone(&self.template);
        Target { id: self.id.clone(), run: self.memory.run, template, ports: self.memory.ports.clone() }
    }

    /// What to start, with the memory as it shall be from then on.
    pub fn launch(&self, again: bool, backoff: &Backoff, clock: Clock) -> Launch {
        let now = clock.now();
        let (failures, last_exit) = match &self.seen.run {
            Run::Exited(exit) => (backoff.failures(&self.seen, exit) + 1, Some(exit.clone())),
            _ => (self.memory.failures, self.memory.last_exit.clone()),
        };
        // A run that was noted and never began is the next one: it must not cost the logs of those that ran.
        let begun = !matches!(self.seen.run, Run::Never);
        let memory = Memory {
            run: (self.memory.run + u64::from(begun)).max(1),
            restarts: self.memory.restarts + u32::from(again),
            failures,
            started: now,
            ports: self.memory.ports.clone(),
            last_exit,
        };
        let (resource, template) = (Arc::clone(&self.resource), Arc::clone(&self.template));
        let contact_until = self.seen.start_until.map(|until| clock.moment(until));
        Launch { id: self.id.clone(), resource, template, memory, contact_until }
    }

    /// Ends are dated by the machine's clock, and the agent's own only began by it: one that was set since, or stood still
    /// while the machine slept, would hold up the next start, or let it come at once, again and again. An end before the
    /// start, or yet to come, is one of now.
    fn timed(&self, exit: Exit, now: Time) -> Exit {
        let possible = self.seen.started <= exit.time && exit.time <= now;
        Exit { time: if possible { exit.time } else { now }, ..exit }
    }

    pub fn ended(&mut self, exit: Exit, now: Time) {
        let mut exit = self.timed(exit, now);
        if self.seen.dead {
            exit.unwell.clone_from(&self.trouble);
        }
        self.seen.run = Run::Exited(exit);
        self.seen.ready = false;
        self.seen.ready_noted = false;
        self.seen.dead = false;
        self.starting_up = false;
        self.pid = 0;
        self.works();
    }

    pub fn found(&mut self, finding: Finding) {
        match finding {
            Finding::Up => self.starting_up = false,
            Finding::Ready => {
                self.seen.ready = true;
                self.trouble = None;
            }
            Finding::NotReady(why) => {
                self.seen.ready = false;
                self.trouble = Some(why);
            }
            Finding::Dead(why) => {
                self.seen.dead = true;
                self.trouble = Some(why);
            }
        }
    }

    /// A stop was asked for, or its next degree.
    pub fn stopping(&mut self, killed: bool, now: Time) {
        if let Run::Running { stopping } = &mut self.seen.run {
            let since = stopping.map_or(now, |s| s.since);
            *stopping = Some(Stopping { since, killed: killed.then_some(now) });
        }
    }

    /// The node couldn't do it; not again before a while.
    pub fn trouble(&mut self, why: String, now: Time) {
        let pause = TROUBLE_FIRST.saturating_mul(2_u32.saturating_pow(self.troubles)).min(TROUBLE_MAX);
        self.troubles = self.troubles.saturating_add(1);
        self.seen.not_before = Some(now.plus(pause));
        self.trouble = Some(why);
    }

    /// The node could.
    pub fn works(&mut self) {
        self.troubles = 0;
        self.seen.not_before = None;
    }

    pub fn is_running(&self) -> bool {
        matches!(self.seen.run, Run::Running { .. } | Run::Unknown | Run::Broken)
    }

    /// It was to be killed, and is still there; or nothing can be done about it at present.
    pub fn is_stuck(&self) -> bool {
        let killed = matches!(self.seen.run, Run::Running { stopping: Some(Stopping { killed: Some(_), .. }) });
        killed || self.troubles > 0
    }

    /// What a trace is waiting for has happened: what follows is no part of it. `gone`: that its tree is, is being said.
    pub fn is_settled(&self, gone: bool) -> bool {
        match self.explicit {
            true => gone,
            false => self.seen.ready || matches!(self.seen.run, Run::Exited(_)),
        }
    }

    /// What the store should know.
    pub fn report(&self, want: Want, backoff: &Backoff) -> v1::InstanceReport {
        let facts = Facts {
            generation: self.generation,
            want,
            seen: &self.seen,
            memory: &self.memory,
            pid: self.pid,
            starting_up: self.starting_up,
            trouble: self.trouble.as_deref(),
            unenforced: self.unenforced.as_deref(),
            reached: self.reached,
        };
        v1::InstanceReport {
            key: Some((&self.id.key).into()),
            uid: self.id.uid.to_string(),
            status: Some(status::status(&facts, backoff)),
            gone: want == Want::Stop
                && self.busy.is_none()
                && self.seen.stop_noted != Some(false)
                && matches!(self.seen.run, Run::Never | Run::Exited(_)),
            traceparent: String::new(),
        }
    }
}
