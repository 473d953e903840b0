//! What the store should be told of an instance: a pure function of what was seen. No moving values, such as ages: an
//! equal status isn't sent again.

use std::collections::BTreeMap;

use api::v1;
use model::condition;

use crate::{
    driver::{Exit, How, Memory, Reached},
    plan::{self, Backoff, Run, Seen, Want},
};

/// Beside what `plan` sees.
pub struct Facts<'a> {
    pub generation: i64,
    pub want: Want,
    pub seen: &'a Seen,
    pub memory: &'a Memory,
    pub pid: i64,
    /// A startup check hasn't passed yet.
    pub starting_up: bool,
    /// Limits that this node can't enforce, in words.
    pub unenforced: Option<&'a str>,
    /// How often the present run came up against its limits, by its magnitude.
    pub reached: Reached,
    /// What is wrong, as the last failing check or the node's trouble says it.
    pub trouble: Option<&'a str>,
}

pub fn status(facts: &Facts<'_>, backoff: &Backoff) -> v1::InstanceStatus {
    let Facts { seen, memory, .. } = facts;
    let running = matches!(seen.run, Run::Running { .. } | Run::Unknown);
    let phase = phase(facts);
    let last = match &seen.run {
        Run::Exited(exit) => Some(exit),
        _ => memory.last_exit.as_ref(),
    };
    v1::InstanceStatus {
        observed_generation: facts.generation,
        conditions: conditions(facts, phase, backoff),
        phase: phase.into(),
        ready: phase == "Running" && seen.ready,
        pid: if running { facts.pid } else { 0 },
        ports: memory.ports.iter().map(|(name, port)| (name.clone(), i32::from(*port))).collect::<BTreeMap<_, _>>(),
        restarts: i32::try_from(memory.restarts).unwrap_or(i32::MAX),
        last_exit: last.map(exit_message),
        started_time: (running && memory.run > 0).then(|| memory.started.into()),
        // Not the agent's to say.
        evict: None,
        failures: i32::try_from(seen.failures).unwrap_or(i32::MAX),
    }
}

fn phase(facts: &Facts<'_>) -> &'static str {
    let stop = matches!(facts.want, Want::Stop | Want::Forget | Want::Stray { stop: true });
    match &facts.seen.run {
        Run::Never if facts.trouble.is_some() => "BackOff",
        Run::Never if stop => "Stopping",
        Run::Never => "Pending",
        Run::Running { .. } | Run::Unknown if stop => "Stopping",
        Run::Running { stopping: Some(_) } => "Stopping",
        Run::Running { .. } | Run::Unknown if facts.starting_up => "Starting",
        Run::Running { .. } | Run::Unknown => "Running",
        Run::Broken => "BackOff",
        Run::Exited(exit) if plan::finished(facts.seen.restart, exit) && exit.is_success() => "Finished",
        Run::Exited(exit) if plan::finished(facts.seen.restart, exit) => "Failed",
        Run::Exited(_) if stop => "Stopping",
        Run::Exited(_) => "BackOff",
    }
}

fn conditions(facts: &Facts<'_>, phase: &str, backoff: &Backoff) -> Vec<v1::Condition> {
    let seen = facts.seen;
    let trouble = facts.trouble.unwrap_or_default();
    let mut conditions = Vec::new();
    match &seen.run {
        Run::Running { .. } => conditions.push(condition("Started", Some(true), "Running", "")),
        Run::Exited(Exit { how: How::CannotStart(why), .. }) => {
            conditions.push(condition("Started", Some(false), "CannotStart", why));
        }
        Run::Exited(Exit { unwell: Some(why), .. }) => {
            conditions.push(condition("Healthy", Some(false), "CheckFailed", why));
        }
        Run::Never if facts.trouble.is_some() => {
            conditions.push(condition("Started", Some(false), "NodeTrouble", trouble));
        }
        _ => {}
    }
    if matches!(seen.run, Run::Running { .. }) && (seen.dead || !seen.ready) && facts.trouble.is_some() {
        conditions.push(condition("Healthy", Some(false), "CheckFailing", trouble));
    }
    if let Some(unenforced) = facts.unenforced {
        conditions.push(condition("Limited", Some(false), "NotEnforced", unenforced));
    }
    if matches!(seen.run, Run::Running { .. }) {
        conditions.extend(reached(facts.reached));
    }
    conditions.push(match (&seen.run, phase) {
        (_, "Running") if seen.ready => condition("Ready", Some(true), "Running", ""),
        (_, "Running") => condition("Ready", Some(false), "CheckFailing", trouble),
        (_, "Starting") => condition("Ready", Some(false), "StartingUp", trouble),
        (Run::Exited(exit), "BackOff") => {
            let again = backoff.restart_at(seen, exit);
            let message = format!("{}; starts again at {again}{}", describe(exit), last_words(exit));
            condition("Ready", Some(false), "BackOff", message)
        }
        (Run::Exited(exit), "Failed") => condition("Ready", Some(false), "Failed", describe(exit) + &last_words(exit)),
        (_, "Finished") => condition("Ready", Some(false), "Finished", "it ended by itself, with code 0"),
        (_, "Stopping") => condition("Ready", Some(false), "Stopping", ""),
        (_, phase) => condition("Ready", Some(false), reason(phase), trouble),
    });
    conditions.into_iter().map(|condition| v1::Condition { message: cut(condition.message), ..condition }).collect()
}

/// Of one message. What a template says, or a check is answered, may be of any length, and a report holds many of these.
const MESSAGE_CHARS_MAX: usize = 2048;

fn cut(message: String) -> String {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((at, _)) => format!("{}...", &message[..at]),
        None => message,
    }
}

/// None where it kept within them all the time.
fn reached(Reached { pids, memory }: Reached) -> Option<v1::Condition> {
    let processes = |n: u64| if n == 1 { "a process".to_owned() } else { format!("{n} or more processes") };
    let forks = || {
        let few = processes(pids);
        format!("it was refused {few}, having as many as spec.template.resources.limits.pids allows")
    };
    let kills = || {
        let few = processes(memory);
        format!("it lost {few}, killed for more memory than spec.template.resources.limits.memory allows")
    };
    let (reason, message) = match (pids, memory) {
        (0, 0) => return None,
        (_, 0) => ("PidsLimit", forks()),
        (0, _) => ("MemoryLimit", kills()),
        (_, _) => ("PidsAndMemoryLimit", format!("{}; {}", forks(), kills())),
    };
    Some(condition("LimitsReached", Some(true), reason, message))
}

fn reason(phase: &str) -> &'static str {
    if phase == "BackOff" { "BackOff" } else { "Pending" }
}

/// In words, for people.
fn describe(exit: &Exit) -> String {
    let mut how = describe_how(&exit.how);
    if exit.lost_some {
        how += ", having lost a process that needed more memory than spec.template.resources.limits.memory allows";
    }
    match &exit.unwell {
        Some(why) => format!("{why}; stopped for that, {how}"),
        None => how,
    }
}

/// Of `Exit::log_tail`, in a condition, which has to stay readable in one line.
const WORDS_LINES: usize = 3;
const WORDS_LINE_CHARS: usize = 160;

fn last_words(exit: &Exit) -> String {
    let lines: Vec<&str> = exit.log_tail.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(WORDS_LINES)..];
    let cut = |line: &&str| line.chars().filter(|c| !c.is_control()).take(WORDS_LINE_CHARS).collect::<String>();
    match last.iter().map(cut).collect::<Vec<String>>() {
        none if none.is_empty() => String::new(),
        last => format!("; it wrote last: {}", last.join(" / ")),
    }
}

fn describe_how(how: &How) -> String {
    match how {
        How::Code(code) => format!("it exited with code {code}"),
        How::Signal(signal) => format!("it was ended by signal {signal}"),
        How::CannotStart(why) => why.clone(),
        How::OutOfMemory => "it needed more memory than its limit; raise spec.template.resources.limits.memory".into(),
        How::CutOff => "it was stopped since no server was heard for too long".into(),
        How::SupervisorLost => "its supervisor vanished, so its processes were killed".into(),
        How::MachineRestarted => "the machine restarted below it".into(),
    }
}

const SIGKILL: i32 = 9;

fn exit_message(exit: &Exit) -> v1::Exit {
    let reason = match &exit.how {
        How::Code(_) | How::Signal(_) if exit.unwell.is_some() => "Unhealthy",
        How::Code(0) => "Completed",
        How::Code(_) => "Error",
        How::Signal(_) => "Killed",
        How::CannotStart(_) => "CannotStart",
        How::OutOfMemory => "OutOfMemory",
        How::CutOff => "CutOff",
        How::SupervisorLost => "SupervisorLost",
        How::MachineRestarted => "MachineRestarted",
    };
    v1::Exit {
        code: if let How::Code(code) = exit.how { Some(code) } else { None },
        signal: match exit.how {
            How::Signal(signal) => Some(signal),
            How::OutOfMemory => Some(SIGKILL),
            _ => None,
        },
        time: Some(exit.time.into()),
        reason: reason.into(),
        log_tail: exit.log_tail.clone(),
    }
}
