//! What the agent reads back from disk: `key value` lines in small files, each replaced whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::sys::{Ended, Pid};

/// Room for an exit record, set aside before the child runs: a full disk must not lose how it ended.
const EXIT_BYTES: usize = 256;

/// Writes a file whole or not at all.
pub fn write(dir: &Path, name: &str, text: &str, sync: bool) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    finish(&file, &temporary, dir, name, sync)
}

fn finish(file: &File, temporary: &Path, dir: &Path, name: &str, sync: bool) -> io::Result<()> {
    if sync {
        file.sync_data()?;
    }
    fs::rename(temporary, dir.join(name))?;
    if sync {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Which process that is, for all time: its number and start, and in which life of which machine or container.
pub fn identity(pid: Pid) -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let start = stat(pid).ok_or_else(|| io::Error::other(format!("process {pid} is gone")))?.start;
    let init = stat(1).map_or(0, |s| s.start);
    Ok(format!("pid {pid}\nstart {start}\nboot {}\ninit {init}\n", boot.trim()))
}

/// What `/proc/<pid>/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub parent: Pid,
    /// Clock ticks since boot.
    pub start: u64,
}

pub fn stat(pid: Pid) -> Option<Stat> {
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything, also half of a letter; fields are counted from after it (proc(5): 3 is
    // the state).
    let text = String::from_utf8_lossy(&bytes);
    let mut fields = text[text.rfind(')')? + 2..].split(' ');
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(22 - 5)?.parse().ok()?;
    Some(Stat { parent, start })
}

/// How the run ended, as far as the supervisor can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ended(Ended),
    /// The program could not be started: the error, and at what.
    CannotStart {
        errno: i32,
        at: &'static str,
    },
}

/// What else is to be said of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// It was asked for, by a signal to the supervisor.
    pub asked: bool,
    /// No server was heard for too long.
    pub late: bool,
    /// The kernel killed something of the tree since it was out of memory.
    pub oom: bool,
}

/// The exit record before it's known.
pub struct Exit {
    dir: PathBuf,
    file: File,
    sync: bool,
}

impl Exit {
    pub fn reserve(dir: &Path, sync: bool) -> io::Result<Self> {
        let file = File::create(dir.join("exit.new"))?;
        file.write_all_at(&[b'\n'; EXIT_BYTES], 0)?;
        Ok(Self { dir: dir.into(), file, sync })
    }

    pub fn write(&self, outcome: Outcome, around: Around) -> io::Result<()> {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros());
        let what = match outcome {
            Outcome::Ended(Ended::Code(code)) => format!("code {code}\n"),
            Outcome::Ended(Ended::Signal(signal)) => format!("signal {signal}\n"),
            Outcome::CannotStart { errno, at } => format!("errno {errno}\nat {at}\n"),
        };
        let text = format!("{what}time {micros}\nasked {}\nlate {}\noom {}\n", around.asked, around.late, around.oom);
        self.file.write_all_at(text.as_bytes(), 0)?;
        finish(&self.file, &self.dir.join("exit.new"), &self.dir, "exit", self.sync)
    }
}
