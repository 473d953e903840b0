//! What runs of an instance, as the kernel and the records on disk know it: nobody is asked who might be wrong.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{cluster::Instance, processes::Process};

/// A process of a run, whatever session, group or parent it moved to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// `<instance uid>.<run>`.
    pub run: String,
    pub process: Process,
}

/// All that have this entry in their environment, given by an instance's template.
pub fn members(variable: &str) -> BTreeSet<Member> {
    let pids = fs::read_dir("/proc").expect("/proc").filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| member(pid, variable)).collect()
}

fn member(pid: i32, variable: &str) -> Option<Member> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let entries: Vec<&[u8]> = environment.split(|b| *b == 0).collect();
    let run = entries.iter().find_map(|e| e.strip_prefix(b"DRIFTLESS_RUN="))?;
    let ours = entries.contains(&variable.as_bytes());
    Some(Member { run: String::from_utf8_lossy(run).into_owned(), process: Process::find(pid)? }).filter(|_| ours)
}

/// The one that keeps a run of an instance below that node's data.
pub fn supervisor(node: &Path, instance: &Instance, run: u64) -> Option<Process> {
    let folder = format!("default_{}_{}", instance.name, instance.uid);
    let record = fs::read_to_string(node.join("instances").join(folder).join(format!("runs/{run}/supervisor"))).ok()?;
    let pid = record.lines().find_map(|line| line.strip_prefix("pid "))?;
    Process::find(pid.parse().ok()?)
}
