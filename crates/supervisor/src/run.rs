//! One run, from the child's birth until its tree is gone.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use crate::{
    arguments::Run,
    log::Log,
    record::{self, Around, Exit, Outcome},
    spawn::{self, Born, CannotStart, Program},
    sys::{self, Alarm, Ended, Pid, Reaped, Signals},
    tree,
};

/// How soon a log says that something is missing, once there is room.
const HOLE_RETRY: Duration = Duration::from_secs(1);

pub fn run(options: &Run) -> io::Result<()> {
    let signals = Signals::block()?;
    let alarm = Alarm::new()?;
    let agent = Agent::take()?;
    // Fails where a shell started us as a group's leader: then we have a group of our own already.
    let _ = sys::new_session();
    sys::become_subreaper()?;
    let me = record::identity(std::process::id() as Pid)?;
    record::write(&options.dir, "supervisor", &me, false)?;
    let exit = Exit::reserve(&options.dir, options.sync)?;
    let mut log = Log::open(&options.dir, options.log_bytes, options.log_files);
    let (pipe, output) = sys::pipe()?;
    sys::set_nonblocking(&pipe)?;
    let child = match start(options, &output) {
        Ok(child) => child,
        Err(CannotStart { errno, at }) => {
            tree::kill_all(&options.cgroups, &signals, |_, _| {});
            exit.write(Outcome::CannotStart { errno, at }, Around::default())?;
            agent.say(&format!("failed {errno} {at}\n"));
            return Ok(());
        }
    };
    drop(output);
    let lock = agent.say(&format!("started {child}\n"));
    let contact_until = options.contact_until;
    let mut keeper = Keeper { options, child, signals, alarm, contact_until, stop: Stop::No, late: false, ended: None };
    keeper.keep(&pipe, &mut log);
    log.drain(&pipe);
    log.finish();
    let ended = keeper.ended.expect("keep returns once the child has ended");
    let asked = !matches!(keeper.stop, Stop::No);
    exit.write(Outcome::Ended(ended), Around { asked, late: keeper.late, oom: tree::oom_killed(&options.cgroups) })?;
    drop(lock);
    Ok(())
}

/// Born, written down, then let go.
fn start(options: &Run, output: &File) -> Result<Pid, CannotStart> {
    if options.contact_until.is_some_and(|until| sys::since_boot() >= until) {
        // The agent, or this, was stopped for a while on the way here.
        return Err(CannotStart { errno: libc::ETIME, at: "contact" });
    }
    let setup = |e: io::Error| CannotStart { errno: e.raw_os_error().unwrap_or(libc::EIO), at: "setup" };
    let env = spawn::read_env(&options.dir.join("env")).map_err(setup)?;
    let program = Program { command: &options.command, env, cwd: &options.cwd, cgroups: &options.cgroups, output };
    let born: Born = spawn::spawn(&program)?;
    let pid = born.pid;
    let identity = record::identity(pid).map_err(setup)?;
    record::write(&options.dir, "child", &identity, options.sync).map_err(setup)?;
    born.go()?;
    Ok(pid)
}

/// What the agent handed us: the lock as standard input, a pipe for one line as standard output.
struct Agent {
    lock: OwnedFd,
    pipe: File,
}

impl Agent {
    fn take() -> io::Result<Self> {
        let lock = sys::keep(0)?;
        let pipe = File::from(sys::keep(1)?);
        let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        for standard in 0..3 {
            sys::redirect(&null, standard)?;
        }
        Ok(Self { lock, pipe })
    }

    /// Says it, and is done with the agent, which may be gone by now. The lock is held on.
    fn say(mut self, line: &str) -> OwnedFd {
        let _ = self.pipe.write_all(line.as_bytes());
        self.lock
    }
}

enum Stop {
    No,
    /// Asked by SIGTERM; the tree is killed then.
    Until(Duration),
    Now,
}

struct Keeper<'a> {
    options: &'a Run,
    child: Pid,
    signals: Signals,
    alarm: Alarm,
    /// It's stopped then, unless a later time is told before.
    contact_until: Option<Duration>,
    stop: Stop,
    late: bool,
    ended: Option<Ended>,
}

impl Keeper<'_> {
    /// Returns once the tree is gone.
    fn keep(&mut self, pipe: &File, log: &mut Log) {
        let mut output = Some(pipe.as_raw_fd());
        self.alarm.set(self.deadline());
        while self.ended.is_none() && !self.overdue() {
            let retry = log.has_hole().then_some(HOLE_RETRY);
            let [_, written, _] =
                sys::poll([Some(self.signals.as_raw_fd()), output, Some(self.alarm.as_raw_fd())], retry);
            if log.has_hole() {
                log.fill_hole();
            }
            if written && !log.drain(pipe) {
                // Every writer closed it: it would be ready for ever.
                output = None;
            }
            while let Some((signal, value)) = self.signals.next() {
                self.hear(signal, value);
            }
            if matches!(self.stop, Stop::No) && self.contact_until.is_some_and(|until| sys::since_boot() >= until) {
                self.late = true;
                self.hear(libc::SIGTERM, None);
            }
        }
        let (child, mut ended) = (self.child, self.ended);
        tree::kill_all(&self.options.cgroups, &self.signals, |pid, how| {
            if pid == child {
                ended = Some(how);
            }
        });
        self.ended = ended;
    }

    fn hear(&mut self, signal: libc::c_int, value: Option<u64>) {
        match (signal, &self.stop) {
            (libc::SIGCHLD, _) => self.reap(),
            // Once it was reaped its number is free: no more signals to its group.
            (libc::SIGTERM, Stop::No) if self.ended.is_none() => {
                sys::signal_group(self.child, libc::SIGTERM);
                // A stopped group would not hear it.
                sys::signal_group(self.child, libc::SIGCONT);
                self.stop = Stop::Until(sys::since_boot() + self.options.grace);
            }
            (libc::SIGINT, _) => self.stop = Stop::Now,
            (libc::SIGUSR1, _) => {
                let told = value.map(Duration::from_millis).unwrap_or_default();
                self.contact_until = self.contact_until.map(|until| until.max(told));
            }
            _ => {}
        }
        self.alarm.set(self.deadline());
    }

    fn reap(&mut self) {
        while let Reaped::Child(pid, ended) = sys::reap() {
            if pid == self.child {
                self.ended = Some(ended);
                return;
            }
        }
    }

    fn overdue(&self) -> bool {
        match self.stop {
            Stop::No => false,
            Stop::Until(end) => sys::since_boot() >= end,
            Stop::Now => true,
        }
    }

    /// When something is due though nobody says a word. All of it counts on while the machine sleeps: nobody else's clock
    /// stands still meanwhile.
    fn deadline(&self) -> Option<Duration> {
        match self.stop {
            Stop::No => self.contact_until,
            Stop::Until(end) => Some(end),
            Stop::Now => None,
        }
    }
}
