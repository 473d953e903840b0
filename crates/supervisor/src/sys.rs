//! The few system calls that std lacks, each made safe and small. All `unsafe` of this crate but the fork is here.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

pub type Pid = libc::pid_t;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_long(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A session and process group of our own; fails only where we lead a group already.
pub fn new_session() -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Orphans below us become our children instead of init's.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Signals that come as bytes on a descriptor from now on.
pub struct Signals(File);

impl Signals {
    pub const WATCHED: [libc::c_int; 5] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD];

    pub fn block() -> io::Result<Self> {
        // SAFETY: the set is initialised by sigemptyset before it is used, and lives through the calls.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in Self::WATCHED {
                libc::sigaddset(&mut set, signal);
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
            let fd = check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(Self(File::from_raw_fd(fd)))
        }
    }

    /// The next pending signal, and the value that its sender gave along.
    pub fn next(&self) -> Option<(libc::c_int, Option<u64>)> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        if io::Read::read(&mut &self.0, &mut info).ok()? != info.len() {
            return None;
        }
        // SAFETY: the kernel filled it, and any bytes are one.
        let info: libc::signalfd_siginfo = unsafe { std::mem::transmute(info) };
        let value = (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_ptr);
        Some((info.ssi_signo as libc::c_int, value))
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// No signal blocked, none ignored: what a program expects to start with.
pub fn default_signals() {
    // SAFETY: the set is initialised before it is used; SIG_DFL is a valid disposition.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        // Whoever started the agent may have had it ignore any (as shells do of what they put behind them). Those that can't
        // be ignored are refused, which changes nothing.
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Both ends close on exec.
pub fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors, which are ours from then on.
    unsafe {
        check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])))
    }
}

pub fn set_nonblocking(fd: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as the borrow.
    unsafe {
        let flags = check(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        check(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// Another descriptor of the same file, above the standard three, that closes on exec.
pub fn keep(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the new descriptor is ours.
    unsafe { check(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Makes `to` speak of the same file as `from`; `to` stays open on exec.
pub fn redirect(from: &impl AsRawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: `to` is a standard descriptor, which nothing here owns.
    check(unsafe { libc::dup2(from.as_raw_fd(), to) }).map(drop)
}

/// Which descriptors have something to say. None: not watched. Waits without end where `wait` is none.
pub fn poll<const N: usize>(fds: [Option<RawFd>; N], wait: Option<Duration>) -> [bool; N] {
    let mut polled = fds.map(|fd| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 });
    let millis = wait.map_or(-1, |w| i32::try_from(w.as_millis() + 1).unwrap_or(i32::MAX));
    // SAFETY: `polled` outlives the call and holds N entries. EINTR leaves revents at 0: look again.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, millis) };
    polled.map(|p| p.revents != 0)
}

/// Since the machine's start, with the time that it slept.
pub fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which can't fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Readable from a moment on. Unlike a wait with a timeout it goes on while the machine sleeps.
pub struct Alarm(File);

impl Alarm {
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the new descriptor is ours.
        unsafe { check(libc::timerfd_create(libc::CLOCK_BOOTTIME, flags)).map(|fd| Self(File::from_raw_fd(fd))) }
    }

    /// By `since_boot`; none: never. Whatever was set before is void.
    pub fn set(&self, at: Option<Duration>) {
        // Zero would be never.
        let at = at.map_or(Duration::ZERO, |at| at.max(Duration::from_nanos(1)));
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(at.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: at.subsec_nanos().into(),
        };
        let timer = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: `timer` outlives the call, which only fails for what is no timer, or no time.
        unsafe { libc::timerfd_settime(self.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &timer, std::ptr::null_mut()) };
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What a child's end looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

pub enum Reaped {
    Child(Pid, Ended),
    /// There are children, and none has ended.
    Alive,
    /// There are no children; for a subreaper: nothing below it is left.
    Nobody,
}

pub fn reap() -> Reaped {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) } {
        0 => Reaped::Alive,
        pid if pid > 0 && libc::WIFSIGNALED(status) => Reaped::Child(pid, Ended::Signal(libc::WTERMSIG(status))),
        pid if pid > 0 => Reaped::Child(pid, Ended::Code(libc::WEXITSTATUS(status))),
        _ => Reaped::Nobody,
    }
}

/// To a process group whose leader is our unreaped child, so that its number can't be another's.
pub fn signal_group(leader: Pid, signal: libc::c_int) {
    // SAFETY: takes no pointers.
    unsafe { libc::kill(-leader, signal) };
}

/// Holds on to one process, whatever becomes of its number.
pub fn pidfd(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: the new descriptor is ours.
    unsafe {
        let fd = check_long(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

pub fn signal(pidfd: &OwnedFd, signal: libc::c_int) {
    // SAFETY: a null siginfo is allowed.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
}
