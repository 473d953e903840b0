//! Starts the child: in its own session and control groups, known on disk before its program runs.

use std::{
    ffi::{CString, OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use crate::sys::{self, Pid};

/// Used where the environment names no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// clone3's flag from linux/sched.h (5.7 and newer); the child is born in the group, which is far cheaper than moving it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

pub struct Program<'a> {
    pub command: &'a [OsString],
    pub env: Vec<OsString>,
    pub cwd: &'a Path,
    pub cgroups: &'a [PathBuf],
    /// Standard output and error.
    pub output: &'a File,
}

/// Why it could not be started: the error, and at what.
#[derive(Debug)]
pub struct CannotStart {
    pub errno: i32,
    pub at: &'static str,
}

/// The child, waiting until `go`.
pub struct Born {
    pub pid: Pid,
    go: File,
    failure: File,
}

/// The child's first byte.
const ALIVE: u8 = 0xff;
const STAGES: [&str; 4] = ["setup", "cgroup", "cwd", "exec"];

/// A kernel may kill a child that is born into a group of which something was ever killed (seen on 6.18, which compares
/// the parent's counter of kills with the group's): then it is made again, and moves there by itself.
pub fn spawn(program: &Program<'_>) -> Result<Born, CannotStart> {
    let file = find(&program.command[0], &program.env).map_err(|errno| CannotStart { errno, at: "exec" })?;
    let exec = Exec::new(&file, program).map_err(setup)?;
    let (group, joined) = open_group(program.cgroups);
    if let Some(born) = birth(program, &exec, group.as_ref(), &joined)? {
        return Ok(born);
    }
    let killed = CannotStart { errno: libc::ECHILD, at: "setup" };
    birth(program, &exec, None, program.cgroups)?.ok_or(killed)
}

fn setup(error: io::Error) -> CannotStart {
    CannotStart { errno: error.raw_os_error().unwrap_or(libc::EIO), at: "setup" }
}

/// None: it died before it did anything.
fn birth(
    program: &Program<'_>,
    exec: &Exec,
    group: Option<&File>,
    joined: &[PathBuf],
) -> Result<Option<Born>, CannotStart> {
    let (wait, go) = sys::pipe().map_err(setup)?;
    let (mut failure, fail) = sys::pipe().map_err(setup)?;
    // SAFETY: this process has one thread, so the child may allocate; it leaves only by exec or _exit.
    let pid = unsafe { fork(group) }.map_err(setup)?;
    if pid == 0 {
        drop(go);
        let _ = (&fail).write_all(&[ALIVE]);
        let (stage, error) = become_child(program, exec, wait, joined);
        let mut message = vec![stage];
        message.extend(error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
        let _ = (&fail).write_all(&message);
        // SAFETY: ends the child at once, without running what belongs to the parent.
        unsafe { libc::_exit(127) }
    }
    drop(fail);
    let alive = failure.read_exact(&mut [0]).is_ok();
    Ok(alive.then_some(Born { pid, go, failure }))
}

impl Born {
    /// Lets it run its program. On an error it has ended, or is about to.
    pub fn go(mut self) -> Result<(), CannotStart> {
        // A child that was killed meanwhile shows by its end.
        let _ = self.go.write_all(&[1]);
        drop(self.go);
        let mut message = Vec::new();
        let _ = self.failure.read_to_end(&mut message);
        match message[..] {
            [stage, a, b, c, d] => Err(CannotStart {
                errno: i32::from_ne_bytes([a, b, c, d]),
                at: STAGES.get(usize::from(stage)).copied().unwrap_or("setup"),
            }),
            _ => Ok(()),
        }
    }
}

/// Only returns where something failed: at which stage, and how.
fn become_child(program: &Program<'_>, exec: &Exec, mut wait: File, joined: &[PathBuf]) -> (u8, io::Error) {
    let prepare = || -> io::Result<()> {
        sys::new_session()?;
        sys::default_signals();
        sys::redirect(&File::open("/dev/null")?, 0)?;
        sys::redirect(program.output, 1)?;
        sys::redirect(program.output, 2)
    };
    if let Err(e) = prepare() {
        return (0, e);
    }
    for group in joined {
        if let Err(e) = fs::write(group.join("cgroup.procs"), "0") {
            return (1, e);
        }
    }
    if let Err(e) = std::env::set_current_dir(program.cwd) {
        return (2, e);
    }
    // The end of the file means that the supervisor died before it wrote down who we are.
    match wait.read_exact(&mut [0]) {
        Ok(()) => (3, exec.run()),
        Err(e) => (0, e),
    }
}

/// The first group is entered at birth where it is of version 2; the others by a write.
fn open_group(cgroups: &[PathBuf]) -> (Option<File>, Vec<PathBuf>) {
    let first = cgroups.first().filter(|c| c.join("cgroup.kill").exists()).and_then(|c| File::open(c).ok());
    let rest = cgroups.iter().skip(usize::from(first.is_some())).cloned().collect();
    (first, rest)
}

/// # Safety
/// As fork: the child of a process with threads may do little.
unsafe fn fork(group: Option<&File>) -> io::Result<Pid> {
    if let Some(group) = group {
        // SAFETY: all fields are numbers; zero is their default.
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        arguments.flags = CLONE_INTO_CGROUP;
        arguments.exit_signal = libc::SIGCHLD as u64;
        arguments.cgroup = group.as_raw_fd() as u64;
        // SAFETY: no stack and no shared memory are asked for, so this returns twice, like fork.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &arguments, size_of::<libc::clone_args>()) };
        if pid >= 0 {
            return Ok(pid as Pid);
        }
    }
    // SAFETY: the caller's.
    match unsafe { libc::fork() } {
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

/// Looks a program up as a shell does. Done here, since execvp would search by our own PATH.
fn find(name: &OsStr, env: &[OsString]) -> Result<PathBuf, i32> {
    if name.is_empty() {
        return Err(libc::ENOENT);
    }
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = env.iter().find_map(|e| e.as_bytes().strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH.as_bytes());
    let candidates = path.split(|b| *b == b':').map(|dir| Path::new(OsStr::from_bytes(dir)).join(name));
    let mut found = candidates.filter(|file| file.is_file()).peekable();
    let first = found.peek().cloned();
    let executable = |file: &PathBuf| {
        use std::os::unix::fs::PermissionsExt;
        file.metadata().is_ok_and(|m| m.permissions().mode() & 0o111 != 0)
    };
    found.find(executable).or(first).ok_or(libc::ENOENT)
}

/// Arguments for execve, allocated before the fork.
struct Exec {
    file: CString,
    arguments: Vec<CString>,
    env: Vec<CString>,
}

impl Exec {
    fn new(file: &Path, program: &Program<'_>) -> io::Result<Self> {
        let text = |s: &OsStr| CString::new(s.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
        Ok(Self {
            file: text(file.as_os_str())?,
            arguments: program.command.iter().map(|a| text(a)).collect::<io::Result<_>>()?,
            env: program.env.iter().map(|e| text(e)).collect::<io::Result<_>>()?,
        })
    }

    fn run(&self) -> io::Error {
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (arguments, env) = (pointers(&self.arguments), pointers(&self.env));
        // SAFETY: both arrays end with a null and point into strings that live as long as self.
        unsafe { libc::execve(self.file.as_ptr(), arguments.as_ptr(), env.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// `NAME=value` entries, each ended by a zero byte.
pub fn read_env(file: &Path) -> io::Result<Vec<OsString>> {
    let bytes = fs::read(file)?;
    Ok(bytes.split(|b| *b == 0).filter(|e| !e.is_empty()).map(|e| OsString::from_vec(e.into())).collect())
}
