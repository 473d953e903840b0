//! Processes as the kernel knows them. Signals go only to pids that the tests' own clusters started.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Child,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Pause between two looks at `/proc`, which can't be watched.
const LOOK: Duration = Duration::from_millis(5);

/// A process for all time: a pid may be used again, its start time then differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    started: u64,
}

impl Process {
    /// None where there is no such process, or only its remains.
    pub fn find(pid: i32) -> Option<Self> {
        Self::with_state(pid).filter(|(_, state)| !matches!(state.as_str(), "Z" | "X")).map(|(process, _)| process)
    }

    /// One that wasn't waited for yet, which has an entry though it may have ended by now.
    pub fn of_child(child: &Child) -> Self {
        let pid = i32::try_from(child.id()).expect("a pid fits");
        Self::with_state(pid).expect("a child that wasn't waited for is there").0
    }

    fn with_state(pid: i32) -> Option<(Self, String)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let started = fields.get(19)?.parse().ok()?;
        Some((Self { pid, started }, (*fields.first()?).to_owned()))
    }

    pub fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Whether this is what it runs now, each argument with a zero byte behind it.
    pub fn is_running(self, command: &[u8]) -> bool {
        fs::read(format!("/proc/{}/cmdline", self.pid)).is_ok_and(|arguments| arguments == command)
    }

    pub fn signal(self, signal: Signal) {
        if self.is_alive() {
            // It may end in between; then there is nothing to signal.
            let _ = kill_process(Pid::from_raw(self.pid).expect("a pid is not 0"), signal);
        }
    }

    #[track_caller]
    pub fn wait_gone(self, within: Duration) {
        let deadline = Instant::now() + within;
        while self.is_alive() {
            assert!(Instant::now() < deadline, "process {} is still there after {within:?}", self.pid);
            thread::sleep(LOOK);
        }
    }
}

/// Looks again until it finds something; for what only `/proc` and files tell.
#[track_caller]
pub fn look_until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {within:?}");
        thread::sleep(LOOK);
    }
}

/// Every process that works in, or was started out of, that directory.
pub fn below(dir: &Path) -> BTreeSet<Process> {
    let pids = fs::read_dir("/proc").expect("/proc").filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != own_pid() && belongs(*pid, dir)).filter_map(Process::find).collect()
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).expect("a pid fits")
}

fn belongs(pid: i32, dir: &Path) -> bool {
    let inside = |path: PathBuf| path.starts_with(dir);
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let named = arguments.split(|b| *b == 0).any(|a| Path::new(&*String::from_utf8_lossy(a)).starts_with(dir));
    named || fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(inside)
}

/// Kills whatever `below` finds, until nothing is found.
pub fn kill_below(dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found = below(dir);
        if found.is_empty() || Instant::now() > deadline {
            return;
        }
        found.into_iter().for_each(|process| process.signal(Signal::KILL));
        thread::sleep(LOOK);
    }
}

/// Kills a child that takes too long, unless dropped before.
pub struct Watchdog {
    _disarm: mpsc::Sender<()>,
}

impl Watchdog {
    pub fn kill_after(pid: u32, limit: Duration) -> Self {
        let process = Process::find(i32::try_from(pid).expect("a pid fits"));
        let (disarm, disarmed) = mpsc::channel::<()>();
        thread::spawn(move || {
            if disarmed.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout)
                && let Some(process) = process
            {
                process.signal(Signal::KILL);
            }
        });
        Self { _disarm: disarm }
    }
}
