//! Which process is meant, for all time: a number alone says nothing once it may have been given to another.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io, iter,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::{Path, PathBuf},
};

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
    let fields = StatFields::read(Path::new(&format!("/proc/{pid}")))?;
    Some(Stat {
        parent: fields.number(4)?,
        group: fields.number(5)?,
        session: fields.number(6)?,
        start: fields.number(22)?,
        // Its first thread may be over while others go on.
        zombie: fields.is_over()? && fields.number::<u32>(20)? <= 1,
    })
}

/// proc(5) numbers them: 1 is the pid, 2 the name, 3 the state.
struct StatFields(Vec<String>);

impl StatFields {
    /// Of a process, or of one thread of it.
    fn read(dir: &Path) -> Option<Self> {
        let bytes = fs::read(dir.join("stat")).ok()?;
        // The name, in parentheses, may hold anything, also half of a letter; fields are counted from after it.
        let text = String::from_utf8_lossy(&bytes);
        Some(Self(text[text.rfind(')')? + 2..].split(' ').map(|field| field.trim_end().to_owned()).collect()))
    }

    fn text(&self, number: usize) -> Option<&str> {
        self.0.get(number - 3).map(String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, number: usize) -> Option<T> {
        self.text(number)?.parse().ok()
    }

    fn is_over(&self) -> Option<bool> {
        self.text(3).map(|state| matches!(state, "Z" | "X"))
    }

    /// What has none: the kernel's own threads, and what is about to end.
    fn has_memory(&self) -> Option<bool> {
        const KERNEL: u64 = 0x0020_0000;
        const EXITING: u64 = 0x4;
        self.number(9).map(|flags: u64| flags & (KERNEL | EXITING) == 0)
    }

    /// Begins where it ends. While a program is being loaded that isn't so yet, or is so for a moment; where its code is
    /// stands there afterwards.
    fn environment_is_empty(&self) -> Option<bool> {
        let (code, start, end): (u64, u64, u64) = (self.number(26)?, self.number(50)?, self.number(51)?);
        Some(code != 0 && start == end && end != 0)
    }
}

/// What a process was given as its environment; empty where it's gone or may not be looked at. None: not to be told now,
/// since another program is being loaded, and for a moment it has none.
pub fn environment(pid: i32) -> Option<Vec<u8>> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let threads = || fs::read_dir(dir.join("task")).into_iter().flatten().flatten().map(|task| task.path());
    // The others have it where the first thread is over.
    let mut all = iter::once(dir.clone()).chain(iter::once_with(threads).flatten()).map(|dir| environment_of(&dir));
    all.find(|environment| environment.as_ref().is_none_or(|e| !e.is_empty())).unwrap_or_else(|| Some(Vec::new()))
}

fn environment_of(thread: &Path) -> Option<Vec<u8>> {
    let read = File::open(thread.join("environ")).and_then(|file| read_at_once(&file));
    let Ok(environment) = read else { return Some(Vec::new()) };
    if !environment.is_empty() {
        return Some(environment);
    }
    let Some(fields) = StatFields::read(thread) else { return Some(Vec::new()) };
    let none = !fields.has_memory()? || fields.environment_is_empty()?;
    none.then_some(environment)
}

/// By one call: what is read by two may end in between.
fn read_at_once(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let length = file.read_at(&mut bytes, 0)?;
        if length < bytes.len() {
            bytes.truncate(length);
            return Ok(bytes);
        }
        bytes.resize(2 * length, 0);
    }
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
