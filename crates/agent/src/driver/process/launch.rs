//! Starts a supervisor and hears from it that the program runs.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    Config,
    folder::{self, Folder},
};
use crate::{
    driver::Launch,
    template::{Restart, Template, expand, port_variable},
};

/// A supervisor that hasn't said anything by then is left to itself, and looked at later.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A supervisor that was started.
pub struct Launched {
    pub supervisor: Child,
    pub pidfd: OwnedFd,
    pub said: Said,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    Started(i64),
    CannotStart { errno: i32, at: String },
    Nothing,
}

pub fn launch(config: &Config, folder: &Folder, launch: &Launch, lock: File) -> io::Result<Launched> {
    let Launch { id, template, memory, .. } = launch;
    let run = memory.run;
    let dir = folder.run(run);
    let sync = template.restart != Restart::Always;
    let env = environment(config, launch);
    folder::write(&dir, "env", &encode_env(&env), false)?;
    let groups = config.cgroups.make(&id.uid, run, &template.limits)?;
    let work = folder.work();
    let (answer, said) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut command = Command::new(&config.supervisor);
    command.arg("run").arg("--dir").arg(&dir).arg("--cwd").arg(template.working_dir.as_ref().unwrap_or(&work));
    command.arg("--grace-ms").arg(template.stop_grace.as_millis().to_string());
    command.arg("--log-bytes").arg(config.log_bytes.to_string());
    command.arg("--log-files").arg(config.log_files.to_string());
    command.args(sync.then_some("--sync"));
    if let Some(until) = launch.contact_until {
        command.arg("--contact-until-ms").arg(until.millis().to_string());
    }
    command.args(groups.iter().flat_map(|group| ["--cgroup".as_ref(), group.as_os_str()]));
    command.arg("--").args(template.command.iter().map(|part| expand(part, &env)));
    command.env_clear().current_dir("/").stdin(lock).stdout(said).stderr(Stdio::null());
    let supervisor = command.spawn()?;
    // The command holds our end of the pipe: without it, the end of the supervisor is the end of the answer.
    drop(command);
    // It's our child and not waited for yet, so the number is its own.
    let pid = Pid::from_raw(i32::try_from(supervisor.id()).unwrap_or(0)).ok_or_else(|| io::Error::other("no pid"))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(Launched { supervisor, pidfd, said: hear(answer) })
}

fn hear(answer: OwnedFd) -> Said {
    let deadline = Instant::now() + ANSWER_MAX;
    let mut answer = File::from(answer);
    let mut said = String::new();
    let mut buffer = [0; 128];
    if fcntl_setfl(&answer, OFlags::NONBLOCK).is_err() {
        return Said::Nothing;
    }
    while !said.ends_with('\n') {
        match answer.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => said.push_str(&String::from_utf8_lossy(&buffer[..n])),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                let Ok(timeout) = Timespec::try_from(left) else { break };
                if poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&timeout)) != Ok(1) {
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    read_answer(&said)
}

fn read_answer(line: &str) -> Said {
    let words: Vec<&str> = line.split_whitespace().collect();
    let read = match words[..] {
        ["started", pid] => pid.parse().ok().map(Said::Started),
        ["failed", errno, at] => errno.parse().ok().map(|errno| Said::CannotStart { errno, at: at.into() }),
        _ => None,
    };
    read.unwrap_or(Said::Nothing)
}

/// The node's, then the template's, then ours.
fn environment(config: &Config, launch: &Launch) -> BTreeMap<String, String> {
    let Launch { id, template, memory, .. } = launch;
    let mut env: BTreeMap<String, String> = config.env.iter().cloned().collect();
    env.extend(template.env.clone());
    let port = |name: &str| memory.ports.get(name).map(u16::to_string);
    for named in &template.ports {
        env.extend(port(&named.name).map(|port| (port_variable(&named.name), port)));
    }
    env.extend(template.ports.first().and_then(|first| port(&first.name)).map(|port| ("PORT".into(), port)));
    env.insert("DRIFTLESS_INSTANCE".into(), id.key.name().into());
    env.insert("DRIFTLESS_NODE".into(), config.node.clone());
    let mark = mark(&id.uid, memory.run);
    env.extend(mark.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())));
    env
}

/// In the environment of every process of a run.
fn mark(uid: &str, run: u64) -> String {
    format!("DRIFTLESS_RUN={uid}.{run}")
}

/// Whether an entry of an environment is that of some run of that instance.
pub fn is_mark(uid: &str, entry: &[u8]) -> bool {
    let rest = entry.strip_prefix(b"DRIFTLESS_RUN=").and_then(|rest| rest.strip_prefix(uid.as_bytes()));
    rest.is_some_and(|rest| rest.starts_with(b"."))
}

fn encode_env(env: &BTreeMap<String, String>) -> Vec<u8> {
    env.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect()
}

/// In words that a user understands.
pub fn cannot_start(template: &Template, work: &Path, errno: i32, at: &str) -> String {
    let program = template.command.first().map_or("", String::as_str);
    let error = io::Error::from_raw_os_error(errno);
    let error = error.to_string();
    let error = error.split(" (os error").next().unwrap_or_default();
    let dir = template.working_dir.as_deref().unwrap_or(work).display();
    match (at, rustix::io::Errno::from_raw_os_error(errno)) {
        ("exec", rustix::io::Errno::NOENT) => {
            format!("command not found: {program}: {error}; check spec.template.command")
        }
        ("exec", rustix::io::Errno::ACCESS) => {
            format!("command can't be run: {program}: {error}; is it an executable file? check spec.template.command")
        }
        ("exec", _) => format!("command can't be run: {program}: {error}; check spec.template.command"),
        ("contact", _) => "not started: no server was heard for too long".into(),
        ("cwd", _) => format!("can't start in {dir}: {error}; check spec.template.workingDir"),
        (at, _) => format!("can't start {program}: {at}: {error}"),
    }
}
