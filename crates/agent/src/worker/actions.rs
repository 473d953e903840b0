//! The one step: starts what `plan` says as a task, and takes in its outcome.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc};

use futures::FutureExt;
use model::Time;
use tokio::sync::mpsc;

use super::{Done, Event, News, START_QUIET, Worker};
use crate::{
    driver::{Driver, FoundRun, Id, Result, StartError, Started, Stop},
    health, limits,
    plan::{Action, Run},
    slot::Busy,
};

impl Worker {
    pub(super) fn act(&mut self, uid: &Arc<str>, action: Action, now: Time) {
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
        let stop = |how: Stop, note: bool, driver: Arc<dyn Driver>, id: Id| async move {
            let noted = if note { Some(driver.note_stop(&id, true).await) } else { None };
            Done::Stopping { killed: how != Stop::Gracefully, noted, outcome: driver.stop(&id, how).await }
        };
        match action {
            Action::Wait(_) | Action::Nothing => {}
            Action::Start { again } => {
                let launch = slot.launch(again, &self.config.backoff, self.clock);
                let starts = Arc::clone(&self.starts);
                self.answer(uid, async move {
                    let _permit = starts.acquire().await.expect("never closed");
                    let memory = launch.memory.clone();
                    Done::Started { memory, outcome: driver.start(launch).await }
                });
            }
            Action::Stop { note } => self.answer(uid, stop(Stop::Gracefully, note, driver, id)),
            Action::Kill => self.answer(uid, stop(Stop::Kill, false, driver, id)),
            Action::Destroy => self.answer(uid, stop(Stop::Destroy, false, driver, id)),
            Action::Clean => self.answer(uid, async move { Done::Cleaned(driver.clean(&id).await) }),
            Action::Look => self.answer(uid, async move { Done::Looked(driver.look(&id).await) }),
            Action::NoteReady(ready) => {
                self.answer(uid, async move { Done::Noted(ready, driver.note_ready(&id, ready).await) });
            }
            Action::NoteStop(stop) => {
                self.answer(uid, async move { Done::StopNoted(stop, driver.note_stop(&id, stop).await) });
            }
            Action::Forget => self.answer(uid, async move { Done::Forgotten(driver.forget(&id).await) }),
        }
    }

    fn answer(&mut self, uid: &Arc<str>, work: impl Future<Output = Done> + Send + 'static) {
        let (uid, events) = (uid.clone(), self.events.clone());
        self.tasks.spawn(async move {
            // One instance with which something can't be done must not take the others' agent with it.
            let done = AssertUnwindSafe(work).catch_unwind().await.unwrap_or(Done::Panicked);
            // Nobody listens any more once the agent ends.
            let _ = events.send(Event::Done { uid, done }).await;
        });
    }

    pub(super) fn done(&mut self, uid: &Arc<str>, done: Done) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(uid) else { return };
        let since = slot.busy.take().map_or(now, |busy| busy.since);
        let carried = slot.seen.ready_noted;
        match done {
            Done::Forgotten(Ok(())) => return self.leave(uid),
            Done::Started { memory, outcome } => {
                match outcome {
                    Err(StartError::Trouble(why)) => {
                        self.metrics.start_trouble.add(1);
                        return self.failed(uid, why);
                    }
                    Err(StartError::Busy) => {
                        self.metrics.start_trouble.add(1);
                        slot.seen.run = Run::Unknown;
                        slot.trouble("the start was not answered".into(), now);
                        return self.worked(uid);
                    }
                    Err(StartError::CannotStart(exit)) => {
                        self.metrics.cannot_start.add(1);
                        slot.ended(exit, now);
                    }
                    Ok(started) => {
                        self.metrics.has_started(memory.run > 1, now.since(since));
                        slot.remember(memory);
                        slot.runs(&started, false);
                        if let Some(trace) = &mut slot.trace {
                            let (tracer, node) = (&self.config.tracer, &self.config.node);
                            trace.started(tracer, &slot.id, node, since, started.pid);
                        }
                        self.attend(uid, started, false);
                        return self.worked(uid);
                    }
                }
                slot.remember(memory);
            }
            Done::Looked(Ok((_, FoundRun::Unknown(why)))) => slot.trouble(why, now),
            Done::Looked(Ok((memory, found))) => {
                // What a start had come to that wasn't answered, or whose run it found there, only the driver knows.
                if memory.run > 0 && memory.run != slot.memory.run {
                    slot.remember(memory);
                }
                if let Some(started) = slot.look(found, now) {
                    self.attend(uid, started, carried);
                }
            }
            Done::Stopping { killed, noted, outcome } => {
                match outcome {
                    Ok(()) => {
                        slot.stopping(killed, now);
                        slot.works();
                    }
                    Err(trouble) => return self.failed(uid, trouble.0),
                }
                if let Some(outcome) = noted {
                    return self.stop_noted(uid, true, outcome);
                }
            }
            Done::Cleaned(Ok(exit)) => slot.ended(exit, now),
            Done::Noted(ready, Ok(())) => {
                slot.seen.ready_noted = ready;
                slot.works();
            }
            Done::Panicked => {
                slot.seen.run = Run::Unknown;
                let why = "what was to be done for it panicked, which is a defect (the agent's log says where)";
                return self.failed(uid, why.into());
            }
            Done::StopNoted(stop, outcome) => return self.stop_noted(uid, stop, outcome),
            Done::Looked(Err(trouble))
            | Done::Cleaned(Err(trouble))
            | Done::Noted(_, Err(trouble))
            | Done::Forgotten(Err(trouble)) => return self.failed(uid, trouble.0),
        }
        self.worked(uid);
    }

    /// A disk that can't take the note must not keep anything from being stopped: it counts as noted.
    fn stop_noted(&mut self, uid: &Arc<str>, stop: bool, outcome: Result<()>) {
        if let Some(slot) = self.slots.get_mut(uid) {
            slot.seen.stop_noted = Some(stop);
        }
        match outcome {
            Ok(()) => self.worked(uid),
            Err(trouble) => {
                self.node_forgetful(trouble.0);
                self.step(uid);
            }
        }
    }

    fn worked(&mut self, uid: &Arc<str>) {
        self.node_works();
        self.step(uid);
    }

    fn failed(&mut self, uid: &Arc<str>, why: String) {
        let now = self.clock.now();
        if let Some(slot) = self.slots.get_mut(uid) {
            slot.trouble(why.clone(), now);
        }
        self.node_trouble(uid, why);
        self.step(uid);
    }

    /// Waits for a run's end, and asks its checks until then.
    pub(super) fn attend(&mut self, uid: &Arc<str>, started: Started, carried: bool) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        let (uid, run, target, events) = (uid.clone(), slot.memory.run, slot.target(), self.events.clone());
        let (driver, checked) = (Arc::clone(&self.driver), slot.is_checked() && !slot.unread);
        let (reader, limited) = (Arc::clone(&self.driver), target.clone());
        let attendant = self.tasks.spawn(async move {
            let (tell, mut findings) = mpsc::channel(health::FINDINGS_MAX);
            let checks = async {
                if checked {
                    health::watch(driver, target, carried, tell).await;
                }
                std::future::pending::<()>().await;
            };
            let (say, mut reached) = mpsc::channel(1);
            let limits = async {
                limits::watch(reader, limited, started.reached.rounded(), say).await;
                std::future::pending::<()>().await;
            };
            let (mut ended, mut checks, mut limits) = (started.ended, pin!(checks), pin!(limits));
            loop {
                let news = tokio::select! {
                    ended = &mut ended => News::Ended(ended),
                    Some(finding) = findings.recv() => News::Found(finding),
                    Some(reached) = reached.recv() => News::Reached(reached),
                    () = &mut checks => continue,
                    () = &mut limits => continue,
                };
                let last = matches!(news, News::Ended(_));
                // Nobody listens any more once the agent ends.
                if events.send(Event::Run { uid: uid.clone(), run, news }).await.is_err() || last {
                    return;
                }
            }
        });
        // Where it was looked at again there is one already.
        if let Some(before) = slot.attendant.replace(attendant) {
            before.abort();
        }
    }
}
