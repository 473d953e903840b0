//! Which process is meant, for all time: a number alone says nothing once it may have been given to another.

use std::{collections::BTreeMap, fs, io, os::fd::OwnedFd, path::Path};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// One life of a machine (or of a container on it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    pub boot: String,
    /// Start of the pid namespace's first process: another container on the same boot has another one.
    pub init: u64,
}

impl Life {
    pub fn now() -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { boot, init: stat(1).map_or(0, |s| s.start) })
    }
}

/// As a supervisor wrote it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pid: i32,
    pub start: u64,
    pub life: Life,
}

impl Identity {
    /// None: it wasn't written (yet).
    pub fn read(file: &Path) -> Option<Self> {
        let fields = Fields::read(file)?;
        let life = Life { boot: fields.text("boot")?.into(), init: fields.number("init")? };
        Some(Self { pid: fields.number("pid")?, start: fields.number("start")?, life })
    }

    /// Holds that very process; none where it's gone, whoever has its number now.
    pub fn hold(&self) -> Option<OwnedFd> {
        if Life::now().ok()? != self.life {
            return None;
        }
        let held = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Compared after it's held: from here on the number can't change hands.
        (stat(self.pid)?.start == self.start).then_some(held)
    }
}

/// What `/proc/<pid>/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Clock ticks since boot.
    pub start: u64,
    /// It has ended, and waits for its parent to hear of it.
    pub zombie: bool,
}

pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; fields are counted from after it (proc(5): 3 is the state).
    let fields: Vec<&str> = text[text.rfind(')')? + 2..].split(' ').collect();
    let field = |number: usize| fields.get(number - 3);
    Some(Stat {
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        start: field(22)?.parse().ok()?,
        zombie: matches!(*field(3)?, "Z" | "X"),
    })
}

/// `key value` lines, as supervisors write them.
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    pub fn read(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let fields = text.lines().filter_map(|line| line.split_once(' '));
        Some(Self(fields.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()))
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.text(key)?.parse().ok()
    }
}
