//! Kills what is left of a tree that no supervisor keeps any more: a run's, or that of a health check's command.
//!
//! A control group knows its members whatever they did. Without one, everything is taken that descends from the child,
//! is in its session or group while the child lives, or carries a mark in its environment (which children inherit). Only a
//! process that left all of these, and wiped its environment, without control groups on the machine, escapes. A check's is
//! known by its mark alone, since its control group is the run's.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::PathBuf,
    thread,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{
    cgroup,
    identity::{self, Identity, Stat},
};

/// Passes over the processes; what even SIGKILL hasn't ended by then hangs in the kernel.
const PASSES_MAX: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// Of passes that found nothing, until nothing is there: a process may be born behind the one that goes over them, and its
/// parent may end before it's come to.
const QUIET_PASSES: u32 = 2;
/// The same where each pass missed something: on a busy machine others come and go all the time. One of ours that hops from
/// process to process is caught by the chase after one of so many, if not by the pass.
const MISSED_PASSES: u32 = 50;
/// Looks at whatever was born last, after a pass that missed something. A few milliseconds.
const CHASE_LOOKS: u32 = 100;

/// What a tree can be known by.
pub struct Traces<M> {
    pub child: Option<Identity>,
    /// Whether an entry of its environment says that a process is one of them.
    pub is_mark: M,
    pub cgroup: Option<PathBuf>,
}

impl<M: Fn(&[u8]) -> bool> Traces<M> {
    /// By nothing else.
    pub fn marked(is_mark: M) -> Self {
        Self { child: None, is_mark, cgroup: None }
    }
}

/// How many processes were killed; none where some are still there, or may be.
pub fn kill_all(traces: &Traces<impl Fn(&[u8]) -> bool>) -> Option<usize> {
    let mut search = Search { traces, strangers: HashMap::new(), killed: HashSet::new() };
    let (mut quiet, mut without) = (0, 0);
    for _ in 0..PASSES_MAX {
        let pass = search.pass();
        quiet = if pass == Pass::Quiet { quiet + 1 } else { 0 };
        without = if pass == Pass::Found { 0 } else { without + 1 };
        if quiet == QUIET_PASSES || without == MISSED_PASSES {
            return Some(search.killed.len());
        }
        if let Some(group) = &traces.cgroup {
            let _ = fs::write(group.join("cgroup.kill"), "1");
        }
        thread::sleep(PAUSE);
    }
    None
}

struct Search<'a, M> {
    traces: &'a Traces<M>,
    /// What was seen to be another's, by number and start: it won't be ours.
    strangers: HashMap<i32, u64>,
    killed: HashSet<(i32, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Something of ours was there.
    Found,
    /// Nothing was seen to be, but something might have been.
    Missed,
    Quiet,
}

impl<M: Fn(&[u8]) -> bool> Search<'_, M> {
    /// Kills what it finds.
    fn pass(&mut self) -> Pass {
        let mut table = HashMap::new();
        let mut found: HashSet<i32> = self.traces.cgroup.as_deref().map(cgroup::members).unwrap_or_default();
        let mut missed = false;
        for pid in newest_first() {
            let (stat, look) = self.look_at(pid);
            table.extend(stat.map(|stat| (pid, stat)));
            found.extend((look == Look::Ours).then_some(pid));
            missed |= look == Look::Missed;
        }
        // Only while the child itself is there is its number, and so its session's and group's, certainly not another's.
        if let Some(child) = self.traces.child.as_ref().filter(|c| is_alive(c, &table)) {
            let ours = |pid: i32, s: &Stat| pid == child.pid || s.session == child.pid || s.group == child.pid;
            found.extend(table.iter().filter(|(pid, s)| ours(**pid, s)).map(|(pid, _)| *pid));
        }
        descend(&mut found, &table);
        let left: Vec<(i32, Stat)> = found.into_iter().filter_map(|pid| Some((pid, *table.get(&pid)?))).collect();
        left.iter().for_each(|(pid, stat)| self.kill(*pid, *stat));
        let caught = missed && self.chase();
        match (left.is_empty() && !caught, missed) {
            (false, _) => Pass::Found,
            (true, true) => Pass::Missed,
            (true, false) => Pass::Quiet,
        }
    }

    /// What was missed may be another one each time that it's come to: only who looks at nothing else keeps pace. True where
    /// it was caught.
    fn chase(&mut self) -> bool {
        (0..CHASE_LOOKS).any(|_| last_born().is_some_and(|pid| self.look_at(pid).1 == Look::Ours))
    }

    /// Killed at once where it's ours: it may be on its way to be another one.
    fn look_at(&mut self, pid: i32) -> (Option<Stat>, Look) {
        // A zombie runs nothing any more, and whoever is its parent has to see to it.
        let Some(stat) = identity::stat(pid).filter(|stat| !stat.zombie) else { return (None, self.gone(pid)) };
        if self.strangers.get(&pid) == Some(&stat.start) {
            return (Some(stat), Look::Others);
        }
        // On its way out it loses its environment first, and then all else that it holds.
        if self.killed.contains(&(pid, stat.start)) {
            return (Some(stat), Look::Ours);
        }
        let look = match whose(pid, &self.traces.is_mark) {
            Whose::Ours => {
                self.kill(pid, stat);
                Look::Ours
            }
            Whose::Unclear => Look::Missed,
            Whose::Nobodys | Whose::Strangers if !is_still(pid, stat) => self.gone(pid),
            Whose::Nobodys => Look::Others,
            Whose::Strangers => {
                self.strangers.insert(pid, stat.start);
                Look::Others
            }
        };
        (Some(stat), look)
    }

    /// It ended before it could be asked whose it is, and may have left another one. A control group would know that one.
    fn gone(&mut self, pid: i32) -> Look {
        let new = self.strangers.insert(pid, GONE).is_none();
        if new && self.traces.cgroup.is_none() { Look::Missed } else { Look::Others }
    }

    fn kill(&mut self, pid: i32, stat: Stat) {
        if kill(pid, stat) {
            self.killed.insert((pid, stat.start));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Ours,
    Others,
    /// It could not be told.
    Missed,
}

/// The start of what wasn't seen to have one.
const GONE: u64 = u64::MAX;

fn is_still(pid: i32, seen: Stat) -> bool {
    identity::stat(pid).is_some_and(|now| now.start == seen.start && !now.zombie)
}

/// Held first, then compared: a number that was given to another meanwhile is left alone.
fn kill(pid: i32, seen: Stat) -> bool {
    let held = Pid::from_raw(pid).and_then(|p| pidfd_open(p, PidfdFlags::empty()).ok());
    let same = identity::stat(pid).is_some_and(|now| now.start == seen.start);
    held.filter(|_| same).is_some_and(|held| pidfd_send_signal(held, Signal::KILL).is_ok())
}

fn is_alive(child: &Identity, table: &HashMap<i32, Stat>) -> bool {
    let same_life = identity::Life::now().is_ok_and(|life| life == child.life);
    same_life && table.get(&child.pid).is_some_and(|s| s.start == child.start)
}

fn descend(found: &mut HashSet<i32>, table: &HashMap<i32, Stat>) {
    loop {
        let more = |(pid, s): (&i32, &Stat)| (found.contains(&s.parent) && !found.contains(pid)).then_some(*pid);
        let next: Vec<i32> = table.iter().filter_map(more).collect();
        if next.is_empty() {
            return;
        }
        found.extend(next);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    /// Its environment says so.
    Strangers,
    /// It has none, or is gone.
    Nobodys,
    /// Not to be told now, since it's about to run another program.
    Unclear,
}

fn whose(pid: i32, is_mark: impl Fn(&[u8]) -> bool) -> Whose {
    match identity::environment(pid) {
        None => Whose::Unclear,
        Some(environment) if environment.is_empty() => Whose::Nobodys,
        Some(environment) if environment.split(|b| *b == 0).any(is_mark) => Whose::Ours,
        Some(_) => Whose::Strangers,
    }
}

/// What is there, the latest to be born first: those that live for a moment only are come to in that moment.
fn newest_first() -> Vec<i32> {
    // As many as there are at most (`PID_MAX_LIMIT`).
    const NUMBERS: i32 = 1 << 22;
    let me = std::process::id() as i32;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut pids: Vec<i32> = pids.filter(|pid| *pid != me).collect();
    let last = last_born().unwrap_or(NUMBERS);
    pids.sort_unstable_by_key(|pid| (last - pid).rem_euclid(NUMBERS));
    pids
}

/// Whose number was given last, to a process or a thread.
fn last_born() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests;
