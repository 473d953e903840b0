//! Kills everything below this process, whatever session, group or parent it moved to.
//!
//! This process is a subreaper, so what is orphaned below it becomes its child: once it has no children, nothing of the
//! tree is left. A control group of version 2 kills all at once; without one the parents' chain is walked, again and
//! again until nothing is left.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use crate::{
    record::{self, Stat},
    sys::{self, Ended, Pid, Reaped, Signals},
};

/// Pause between two passes; doubles up to the last one, for what even SIGKILL doesn't end soon (a hung disk).
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Returns once nothing is left. `seen` is told of each child that ended.
pub fn kill_all(cgroups: &[PathBuf], signals: &Signals, mut seen: impl FnMut(Pid, Ended)) {
    let mut pause = PAUSE_FIRST;
    loop {
        loop {
            match sys::reap() {
                Reaped::Child(pid, ended) => seen(pid, ended),
                Reaped::Alive => break,
                Reaped::Nobody => return,
            }
        }
        kill_once(cgroups);
        sys::poll([Some(std::os::fd::AsRawFd::as_raw_fd(signals))], Some(pause));
        while signals.next().is_some() {}
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether the kernel killed something in these groups since it was out of memory.
pub fn oom_killed(cgroups: &[PathBuf]) -> bool {
    // Of version 2 and of version 1; both have a line `oom_kill N`.
    let files = cgroups.iter().flat_map(|group| ["memory.events", "memory.oom_control"].map(|name| group.join(name)));
    let kills = |text: String| text.lines().any(|l| l.strip_prefix("oom_kill ").is_some_and(|n| n != "0"));
    files.filter_map(|file| fs::read_to_string(file).ok()).any(kills)
}

fn kill_once(cgroups: &[PathBuf]) {
    for group in cgroups {
        // Groups of version 1 have no such file; the walk does it.
        let _ = fs::write(group.join("cgroup.kill"), "1");
    }
    let me = std::process::id() as Pid;
    let table = processes();
    for pid in below(me, &table) {
        // A number may have been given to another since the table was read: hold it first, then compare.
        if let Ok(held) = sys::pidfd(pid)
            && record::stat(pid).as_ref() == table.get(&pid)
        {
            sys::signal(&held, libc::SIGKILL);
        }
    }
}

fn processes() -> HashMap<Pid, Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Pid>().ok());
    pids.filter_map(|pid| Some((pid, record::stat(pid)?))).collect()
}

/// Everything whose chain of parents leads to `root`.
fn below(root: Pid, table: &HashMap<Pid, Stat>) -> HashSet<Pid> {
    let mut found = HashSet::new();
    let mut grown = true;
    while grown {
        let parent_found = |s: &Stat, found: &HashSet<Pid>| s.parent == root || found.contains(&s.parent);
        let next: Vec<Pid> =
            table.iter().filter(|(pid, s)| !found.contains(*pid) && parent_found(s, &found)).map(|(p, _)| *p).collect();
        grown = !next.is_empty();
        found.extend(next);
    }
    found
}
