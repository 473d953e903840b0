//! What to do next about one instance: a pure function of what is wanted and what was seen.
//!
//! It takes at most one step; the agent does it, looks again, and asks again. Losing any event costs time, nothing else.
//! It must never stop anything for a reason other than those in `Want`.

use std::time::Duration;

use model::Time;

use crate::{
    driver::{Exit, How},
    template::Restart,
};

/// What the store says of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// It's assigned here.
    Run,
    /// Somebody asked for its end; its record goes once we say that the tree is gone.
    Stop,
    /// Its record went after somebody asked for its end.
    Forget,
    /// A complete snapshot didn't name it. `stop`: and it's among those that may be stopped now.
    Stray { stop: bool },
    /// Nothing is known yet: it goes on as it was.
    Unknown,
}

/// What was seen of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub run: Run,
    pub restart: Restart,
    pub grace: Duration,
    /// When the present or last run was started.
    pub started: Time,
    /// Starts since it last ran stably.
    pub failures: u32,
    /// A liveness check failed for good.
    pub dead: bool,
    pub ready: bool,
    /// What the driver was last told of `ready`.
    pub ready_noted: bool,
    /// What the driver was last told of whether it was stopped for good; nothing yet where it was never started.
    pub stop_noted: Option<bool>,
    /// The node had trouble: nothing before that time.
    pub not_before: Option<Time>,
    /// It may run only in contact with a server: not started from then on, unless one is heard.
    pub start_until: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    Never,
    Running { stopping: Option<Stopping> },
    Exited(Exit),
    Broken,
    Unknown,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopping {
    pub since: Time,
    /// When the tree's end was asked for without grace.
    pub killed: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start {
        again: bool,
    },
    /// `note`: for good, and the driver doesn't know that yet. The next agent must not start it again, though it may find
    /// no record of it.
    Stop {
        note: bool,
    },
    Kill,
    Destroy,
    Clean,
    Look,
    NoteReady(bool),
    /// The same of what has ended already; or it's wanted after all.
    NoteStop(bool),
    Forget,
    /// Nothing before that time, unless something changes.
    Wait(Time),
    Nothing,
}

/// When a run is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second restart in a row; doubles from there.
    pub first: Duration,
    pub max: Duration,
    /// A run of that length makes the next restart the first one again.
    pub stable: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(300), stable: kinds::instance::STABLE }
    }
}

impl Backoff {
    /// How many starts count, now that the run ended.
    pub fn failures(&self, seen: &Seen, exit: &Exit) -> u32 {
        if exit.time.since(seen.started) >= self.stable { 0 } else { seen.failures }
    }

    /// The first restart is immediate, but for what can't be started at all.
    pub fn delay(&self, failures: u32, how: &How) -> Duration {
        let doublings = match how {
            How::CannotStart(_) => failures,
            _ if failures == 0 => return Duration::ZERO,
            _ => failures - 1,
        };
        self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.max)
    }

    pub fn restart_at(&self, seen: &Seen, exit: &Exit) -> Time {
        exit.time.plus(self.delay(self.failures(seen, exit), &exit.how))
    }
}

/// A supervisor kills by itself after the grace; past that margin it's taken to be stuck.
pub const STOP_MARGIN: Duration = Duration::from_secs(5);

pub fn plan(want: Want, seen: &Seen, backoff: &Backoff, now: Time) -> Action {
    if let Some(time) = seen.not_before.filter(|t| now < *t) {
        return Action::Wait(time);
    }
    let end = ends(want, seen);
    match (&seen.run, want) {
        (Run::Broken, _) => Action::Clean,
        (Run::Unknown, _) => Action::Look,
        (Run::Running { stopping: None }, _) if end => Action::Stop { note: seen.stop_noted == Some(false) },
        _ if seen.stop_noted.is_some_and(|noted| noted != end) => Action::NoteStop(end),
        (Run::Running { stopping }, _) if seen.dead || stopping.is_some() => stop(*stopping, seen.grace, now),
        (Run::Running { .. }, _) if seen.ready != seen.ready_noted => Action::NoteReady(seen.ready),
        (Run::Running { .. }, _) => Action::Nothing,
        (_, Want::Forget | Want::Stray { stop: true }) => Action::Forget,
        _ if end => Action::Nothing,
        (Run::Exited(exit), _) if finished(seen.restart, exit) => Action::Nothing,
        _ if seen.start_until.is_some_and(|until| now >= until) => Action::Nothing,
        (Run::Never, _) => Action::Start { again: false },
        (Run::Exited(exit), _) => match backoff.restart_at(seen, exit) {
            time if now < time => Action::Wait(time),
            _ => Action::Start { again: true },
        },
    }
}

/// Whether it's to end for good. What was decided before isn't given up for not knowing.
fn ends(want: Want, seen: &Seen) -> bool {
    match want {
        Want::Stop | Want::Forget | Want::Stray { stop: true } => true,
        Want::Run => false,
        Want::Stray { stop: false } | Want::Unknown => seen.stop_noted == Some(true),
    }
}

/// A stop goes on to its end, whatever is wanted meanwhile: half-stopped is no state to stay in.
fn stop(stopping: Option<Stopping>, grace: Duration, now: Time) -> Action {
    let Some(stopping) = stopping else {
        return Action::Stop { note: false };
    };
    let (deadline, next) = match stopping.killed {
        None => (stopping.since.plus(grace + STOP_MARGIN), Action::Kill),
        Some(killed) => (killed.plus(STOP_MARGIN), Action::Destroy),
    };
    if now < deadline { Action::Wait(deadline) } else { next }
}

/// Finished means finished.
pub fn finished(restart: Restart, exit: &Exit) -> bool {
    match restart {
        Restart::Always => false,
        Restart::OnFailure => exit.is_success(),
        Restart::Never => true,
    }
}

/// Which of the instances that a complete, trusted snapshot didn't name may be stopped now: at most half of what is here
/// (but one always may), the rest not before another complete snapshot says the same.
pub fn strays_to_stop<T>(strays: Vec<T>, here: usize) -> Vec<T> {
    let most = (here / 2).max(1);
    strays.into_iter().take(most).collect()
}
