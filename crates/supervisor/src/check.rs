//! One command of a health check: ends within its time, leaves nothing behind, and ends with the agent that asked.
//!
//! Standard input is a pipe from the agent: its end means that nobody waits for the answer any more. What the command
//! writes goes to standard output, where the agent reads the first part of it.

use std::{ffi::OsStr, fs::File, io, os::fd::AsRawFd, process::ExitCode, time::Instant};

use crate::{
    arguments::Check,
    spawn::{self, Program},
    sys::{self, Ended, Pid, Reaped, Signals},
    tree,
};

/// What `timeout(1)` says when time is up.
const TIMED_OUT: u8 = 124;
/// What shells say of a command that can't be run.
const CANNOT_RUN: u8 = 126;

pub fn check(options: &Check) -> io::Result<ExitCode> {
    let signals = Signals::block()?;
    let deadline = Instant::now() + options.timeout;
    let _ = sys::new_session();
    sys::become_subreaper()?;
    let output = File::from(sys::keep(1)?);
    let mut env = spawn::read_env(&options.env)?;
    // What we have of the agent ourselves is for all that comes of the command, too.
    env.extend(std::env::vars_os().map(|(name, value)| [name, value].join(OsStr::new("="))));
    let program =
        Program { command: &options.command, env, cwd: &options.cwd, cgroups: &options.cgroups, output: &output };
    let started = spawn::spawn(&program).and_then(|born| {
        let pid = born.pid;
        born.go().map(|()| pid)
    });
    let code = match started {
        Ok(child) => wait(child, deadline, &signals),
        Err(cannot) => {
            println!("{}", io::Error::from_raw_os_error(cannot.errno));
            CANNOT_RUN
        }
    };
    tree::kill_all(&[], &signals, |_, _| {});
    Ok(ExitCode::from(code))
}

fn wait(child: Pid, deadline: Instant, signals: &Signals) -> u8 {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let [_, agent_gone] = sys::poll([Some(signals.as_raw_fd()), Some(0)], Some(left));
        while let Some((signal, _)) = signals.next() {
            if signal != libc::SIGCHLD {
                return TIMED_OUT;
            }
        }
        while let Reaped::Child(pid, ended) = sys::reap() {
            match ended {
                _ if pid != child => {}
                Ended::Code(code) => return u8::try_from(code).unwrap_or(u8::MAX),
                Ended::Signal(signal) => return 128 + u8::try_from(signal).unwrap_or(0),
            }
        }
        if agent_gone || left.is_zero() {
            return TIMED_OUT;
        }
    }
}
