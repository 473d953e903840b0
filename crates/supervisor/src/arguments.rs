//! The command line, which only the agent writes.

use std::{ffi::OsString, path::PathBuf, time::Duration};

/// Keeps a run, or runs one command of a health check.
#[derive(Debug)]
pub enum Mode {
    Run(Run),
    Check(Check),
}

/// `run --dir D --cwd D [--cgroup D]... [--grace-ms N] [--log-bytes N] [--log-files N] [--sync]
/// [--contact-until-ms N] -- COMMAND...`
#[derive(Debug)]
pub struct Run {
    /// Where this run's records and logs go; holds the file `env`.
    pub dir: PathBuf,
    /// Where the child starts.
    pub cwd: PathBuf,
    /// Control groups that the child joins. One of version 2 comes first where there is one: it kills the whole tree.
    pub cgroups: Vec<PathBuf>,
    pub grace: Duration,
    /// It's stopped then, unless the agent tells a later time: since the machine's start, with the time that it slept.
    pub contact_until: Option<Duration>,
    /// A log file is rotated once it is larger.
    pub log_bytes: u64,
    /// How many log files are kept, the current one among them.
    pub log_files: u32,
    /// Records survive a loss of power: for what must not run twice.
    pub sync: bool,
    pub command: Vec<OsString>,
}

/// `check --cwd D --env FILE [--cgroup D]... --timeout-ms N -- COMMAND...`
#[derive(Debug)]
pub struct Check {
    pub cwd: PathBuf,
    pub env: PathBuf,
    pub cgroups: Vec<PathBuf>,
    pub timeout: Duration,
    pub command: Vec<OsString>,
}

impl Mode {
    pub fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mode = arguments.next().ok_or("say 'run' or 'check'")?;
        let mut flags = Flags::default();
        while let Some(flag) = arguments.next() {
            match flag.to_str().unwrap_or_default() {
                "--" => break,
                "--sync" => flags.sync = true,
                name => {
                    let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
                    flags.set(name, value)?;
                }
            }
        }
        flags.command = arguments.collect();
        if flags.command.is_empty() {
            return Err("no command after --".into());
        }
        match mode.to_str() {
            Some("run") => flags.run().map(Self::Run),
            Some("check") => flags.check().map(Self::Check),
            _ => Err(format!("{mode:?} is neither 'run' nor 'check'")),
        }
    }
}

#[derive(Default)]
struct Flags {
    dir: Option<PathBuf>,
    cwd: Option<PathBuf>,
    env: Option<PathBuf>,
    cgroups: Vec<PathBuf>,
    grace: Option<u64>,
    timeout: Option<u64>,
    log_bytes: Option<u64>,
    log_files: Option<u64>,
    contact_until: Option<u64>,
    sync: bool,
    command: Vec<OsString>,
}

impl Flags {
    fn set(&mut self, name: &str, value: OsString) -> Result<(), String> {
        let number = || value.to_str().and_then(|v| v.parse().ok()).ok_or_else(|| format!("{name}: no number"));
        match name {
            "--dir" => self.dir = Some(value.into()),
            "--cwd" => self.cwd = Some(value.into()),
            "--env" => self.env = Some(value.into()),
            "--cgroup" => self.cgroups.push(value.into()),
            "--grace-ms" => self.grace = Some(number()?),
            "--timeout-ms" => self.timeout = Some(number()?),
            "--log-bytes" => self.log_bytes = Some(number()?),
            "--contact-until-ms" => self.contact_until = Some(number()?),
            "--log-files" => self.log_files = Some(number()?),
            _ => return Err(format!("unknown flag {name:?}")),
        }
        Ok(())
    }

    fn run(self) -> Result<Run, String> {
        Ok(Run {
            dir: self.dir.ok_or("--dir is missing")?,
            cwd: self.cwd.ok_or("--cwd is missing")?,
            cgroups: self.cgroups,
            grace: Duration::from_millis(self.grace.unwrap_or(10_000)),
            contact_until: self.contact_until.map(Duration::from_millis),
            log_bytes: self.log_bytes.unwrap_or(10 << 20),
            log_files: u32::try_from(self.log_files.unwrap_or(3)).map_err(|_| "--log-files: too large")?,
            sync: self.sync,
            command: self.command,
        })
    }

    fn check(self) -> Result<Check, String> {
        Ok(Check {
            cwd: self.cwd.ok_or("--cwd is missing")?,
            env: self.env.ok_or("--env is missing")?,
            cgroups: self.cgroups,
            timeout: Duration::from_millis(self.timeout.ok_or("--timeout-ms is missing")?),
            command: self.command,
        })
    }
}
