//! Kills what is left of a tree that no supervisor keeps any more: a run's, or that of a health check's command.
//!
//! A control group knows its members whatever they did. Without one, everything is taken that descends from the child,
//! is in its session or group while the child lives, or carries a mark in its environment (which children inherit). Only a
//! process that left all of these, and wiped its environment, without control groups on the machine, escapes. A check's is
//! known by its mark alone, since its control group is the run's.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::identity::{self, Identity, Stat};

/// Passes over the processes; what even SIGKILL hasn't ended by then hangs in the kernel.
const PASSES_MAX: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// Of passes that found nothing, until nothing is there: a process may be born behind the one that goes over them, and its
/// parent may end before it's come to.
const QUIET_PASSES: u32 = 2;

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
    let mut killed = HashSet::new();
    let mut quiet = 0;
    for _ in 0..PASSES_MAX {
        let Look { found: left, unclear } = look(traces);
        quiet = if left.is_empty() && !unclear { quiet + 1 } else { 0 };
        if quiet == QUIET_PASSES {
            return Some(killed.len());
        }
        if let Some(group) = &traces.cgroup {
            let _ = fs::write(group.join("cgroup.kill"), "1");
        }
        for (pid, stat) in left {
            if kill(pid, stat) {
                killed.insert((pid, stat.start));
            }
        }
        thread::sleep(PAUSE);
    }
    None
}

/// Held first, then compared: a number that was given to another meanwhile is left alone.
fn kill(pid: i32, seen: Stat) -> bool {
    let held = Pid::from_raw(pid).and_then(|p| pidfd_open(p, PidfdFlags::empty()).ok());
    let same = identity::stat(pid).is_some_and(|now| now.start == seen.start);
    held.filter(|_| same).is_some_and(|held| pidfd_send_signal(held, Signal::KILL).is_ok())
}

/// What one pass saw.
struct Look {
    found: Vec<(i32, Stat)>,
    /// Of some process it could not be told whose it is.
    unclear: bool,
}

fn look(traces: &Traces<impl Fn(&[u8]) -> bool>) -> Look {
    let table = processes();
    let mut found: HashSet<i32> = traces.cgroup.as_deref().map(members).unwrap_or_default();
    // Only while the child itself is there is its number, and so its session's and group's, certainly not another's.
    if let Some(child) = traces.child.as_ref().filter(|c| is_alive(c, &table)) {
        let ours = |pid: i32, s: &Stat| pid == child.pid || s.session == child.pid || s.group == child.pid;
        found.extend(table.iter().filter(|(pid, s)| ours(**pid, s)).map(|(pid, _)| *pid));
    }
    let mut unclear = false;
    for pid in table.keys() {
        match marked(*pid, &traces.is_mark) {
            Some(true) => drop(found.insert(*pid)),
            Some(false) => {}
            None => unclear = true,
        }
    }
    descend(&mut found, &table);
    Look { found: found.into_iter().filter_map(|pid| Some((pid, *table.get(&pid)?))).collect(), unclear }
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

fn members(group: &Path) -> HashSet<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// None: not to be told now, since it's about to run another program.
fn marked(pid: i32, is_mark: impl Fn(&[u8]) -> bool) -> Option<bool> {
    let environment = identity::environment(pid)?;
    Some(environment.split(|b| *b == 0).any(is_mark))
}

/// All that live: a zombie runs nothing any more, and whoever is its parent has to see to it.
fn processes() -> HashMap<i32, Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let me = std::process::id() as i32;
    let all = pids.filter(|pid| *pid != me).filter_map(|pid| Some((pid, identity::stat(pid)?)));
    all.filter(|(_, stat)| !stat.zombie).collect()
}

#[cfg(test)]
mod tests;
