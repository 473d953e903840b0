//! What the commands of health checks are known by, should their keepers be killed: a mark in their environment, another one
//! for each.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::reap::{self, Traces};

/// Of the variable that is in the environment of a check's keeper, of its command and all that comes of it:
/// `<uid of the instance>.<agent>.<number>`.
pub const VARIABLE: &str = "DRIFTLESS_CHECK";

/// The checks of one agent.
pub struct Checks {
    agent: String,
    asked: AtomicU64,
}

impl Default for Checks {
    fn default() -> Self {
        Self { agent: uuid::Uuid::new_v4().simple().to_string(), asked: AtomicU64::new(0) }
    }
}

impl Checks {
    /// Of one more.
    pub fn mark(&self, uid: &str) -> String {
        format!("{uid}.{}.{}", self.agent, self.asked.fetch_add(1, Ordering::Relaxed))
    }

    fn kill_older(&self, instances: &HashSet<Arc<str>>) {
        let is_older = |entry: &[u8]| {
            let mark = read(entry);
            mark.is_some_and(|(uid, agent)| agent != self.agent && instances.contains(uid))
        };
        match reap::kill_all(&Traces::marked(is_older)) {
            Some(0) => {}
            Some(processes) => tracing::warn!(processes, "health checks that an agent before had left are killed"),
            None => {
                tracing::warn!("not all that health checks may have left could be killed; the next agent tries again")
            }
        }
    }
}

/// Kills what agents before this one left of checks of these instances, where their keepers couldn't. Nothing waits for it,
/// neither the start of this agent nor its end; it holds nothing that the next one needs.
pub fn kill_older(checks: Arc<Checks>, instances: HashSet<Arc<str>>) {
    let kill = move || checks.kill_older(&instances);
    if let Err(error) = thread::Builder::new().name("old-checks".into()).spawn(kill) {
        tracing::warn!(%error, "what health checks may have left isn't looked for; the next agent tries again");
    }
}

fn read(entry: &[u8]) -> Option<(&str, &str)> {
    let (uid, rest) = std::str::from_utf8(entry).ok()?.strip_prefix(VARIABLE)?.strip_prefix('=')?.split_once('.')?;
    Some((uid, rest.split_once('.')?.0))
}

/// Kills what one check's keeper left when it was killed itself. What doesn't end hangs in the kernel; the check isn't
/// answered before its time is up then.
pub fn kill(mark: &str) {
    let is_mark = |entry: &[u8]| entry.strip_prefix(VARIABLE.as_bytes()) == Some(format!("={mark}").as_bytes());
    reap::kill_all(&Traces::marked(is_mark));
}
