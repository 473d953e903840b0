//! Control groups: one of version 2 for each run, born into it and killed whole by the kernel; and limits, by whichever
//! version has the controller.
//!
//! A group is used for one run only: a kernel may hold it against the next one that its members were killed once.

use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{driver::Reached, template::Limits};

/// Where groups are made; nowhere, where they can't be.
#[derive(Clone, Debug, Default)]
pub struct Root {
    unified: Option<PathBuf>,
    /// By controller: its folder, and of which version it is.
    controllers: BTreeMap<&'static str, (PathBuf, Version)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// The file of version 1 by which each of them limits.
const FILES: [&str; 3] = ["memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max"];
/// Microseconds in which a quota of CPU time may be used up.
const PERIOD: u64 = 100_000;

impl Root {
    pub fn none() -> Self {
        Self::default()
    }

    /// Below the mounts, beside what runs there: a group below the agent's own would go with the agent's unit. (On hosts
    /// with version 1 the mount of version 2 has no controllers, but kills all the same.)
    pub fn find() -> Self {
        let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
        // Others may be mounted at what is no UTF-8.
        let text = String::from_utf8_lossy(&text);
        let mounts: Vec<Mount<'_>> = text.lines().filter_map(Mount::read).collect();
        let made = |mount: &Mount<'_>| Some(mount.point.join("driftless")).filter(|root| is_usable(root));
        let unified = mounts.iter().find(|m| m.kind == "cgroup2").and_then(made);
        let mut controllers = BTreeMap::new();
        for (name, file) in CONTROLLERS.into_iter().zip(FILES) {
            let split = mounts.iter().find(|m| m.kind == "cgroup" && m.options.split(',').any(|o| o == name));
            if let Some(root) = unified.as_ref().filter(|root| delegate(root, name)) {
                controllers.insert(name, (root.clone(), Version::Two));
            } else if let Some(root) = split.and_then(made).filter(|root| root.join(file).exists()) {
                controllers.insert(name, (root, Version::One));
            }
        }
        Self { unified: unified.filter(|root| root.join("cgroup.kill").exists()), controllers }
    }

    /// The one that kills.
    pub fn group(&self, uid: &str, run: u64) -> Option<PathBuf> {
        self.unified.as_ref().map(|root| root.join(leaf(uid, run)))
    }

    /// Makes what the run needs; the one that kills comes first.
    pub fn make(&self, uid: &str, run: u64, limits: &Limits) -> io::Result<Vec<PathBuf>> {
        let mut groups: Vec<PathBuf> = self.group(uid, run).into_iter().collect();
        for (root, version, file, value) in self.settings(limits) {
            let group = root.join(leaf(uid, run));
            make(&group)?;
            fs::write(group.join(file), value)?;
            if version == Version::Two && file == "memory.max" {
                // What is left of an instance whose part was killed is of no use.
                fs::write(group.join("memory.oom.group"), "1")?;
            }
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups.first().map_or(Ok(()), |first| make(first))?;
        Ok(groups)
    }

    fn settings(&self, limits: &Limits) -> Vec<(&PathBuf, Version, &'static str, String)> {
        let quota = limits.cpu_millis.map(|millis| (millis.saturating_mul(PERIOD) / 1000).max(1000));
        let by_version = [
            (
                "memory",
                "memory.limit_in_bytes",
                "memory.max",
                limits.memory_bytes.map(|n| (n.to_string(), n.to_string())),
            ),
            ("cpu", "cpu.cfs_quota_us", "cpu.max", quota.map(|n| (n.to_string(), format!("{n} {PERIOD}")))),
            ("pids", "pids.max", "pids.max", limits.pids.map(|n| (n.to_string(), n.to_string()))),
        ];
        let mut settings = Vec::new();
        for (name, one, two, value) in by_version {
            if let (Some((first, second)), Some((root, version))) = (value, self.controllers.get(name)) {
                let (file, value) = if *version == Version::One { (one, first) } else { (two, second) };
                settings.push((root, *version, file, value));
            }
        }
        // After the limit of memory, which that of both together may not be below.
        if let (Some(bytes), Some((root, version))) = (limits.memory_bytes, self.controllers.get("memory")) {
            let file = swap_file(*version);
            let value = if *version == Version::One { bytes } else { 0 };
            settings.extend(root.join(file).exists().then(|| (root, *version, file, value.to_string())));
        }
        settings
    }

    /// How often the run came up against its limits.
    pub fn reached(&self, uid: &str, run: u64) -> Reached {
        let count = |controller: &str, one: &str, two: &str, name: &str| {
            let (root, version) = self.controllers.get(controller)?;
            let file = if *version == Version::One { one } else { two };
            let text = fs::read_to_string(root.join(leaf(uid, run)).join(file)).ok()?;
            text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().parse().ok())
        };
        Reached {
            pids: count("pids", "pids.events", "pids.events", "max ").unwrap_or(0),
            memory: count("memory", "memory.oom_control", "memory.events", "oom_kill ").unwrap_or(0),
        }
    }

    /// Which of the limits nothing here can enforce.
    pub fn unenforced(&self, limits: &Limits) -> Option<String> {
        self.unenforced_with(limits, has_swap())
    }

    fn unenforced_with(&self, limits: &Limits, has_swap: bool) -> Option<String> {
        let wanted = [
            ("memory", limits.memory_bytes.is_some()),
            ("cpu", limits.cpu_millis.is_some()),
            ("pids", limits.pids.is_some()),
        ];
        let missing: Vec<&str> =
            wanted.iter().filter(|(name, set)| *set && !self.controllers.contains_key(name)).map(|(n, _)| *n).collect();
        let message = || {
            format!("this node can't enforce limits of {}: no control group can be made for them", missing.join(", "))
        };
        if !missing.is_empty() {
            return Some(message());
        }
        let (root, version) = self.controllers.get("memory").filter(|_| limits.memory_bytes.is_some())?;
        let swaps = !root.join(swap_file(*version)).exists() && has_swap;
        swaps.then(|| {
            "this node can't keep it from swap beyond its limit of memory: its kernel doesn't count that".into()
        })
    }

    /// Only empty groups go, with those that the run made below them.
    pub fn remove(&self, uid: &str, run: u64) {
        let groups = self.roots().flat_map(|root| with_below(root.join(leaf(uid, run))));
        groups.for_each(|group| drop(fs::remove_dir(group)));
    }

    /// Those of all runs of that instance, also of such as nothing else tells of any more.
    pub fn remove_all(&self, uid: &str) {
        let entries = self.roots().filter_map(|root| fs::read_dir(root).ok()).flatten().flatten();
        let groups = entries.filter(|entry| is_leaf_of(uid, &entry.file_name())).flat_map(|e| with_below(e.path()));
        groups.for_each(|group| drop(fs::remove_dir(group)));
    }

    fn roots(&self) -> impl Iterator<Item = &PathBuf> {
        self.unified.iter().chain(self.controllers.values().map(|(root, _)| root))
    }
}

/// Of that instance's name, for some run.
fn is_leaf_of(uid: &str, name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(uid)?.strip_prefix('-'));
    rest.is_some_and(|run| run.parse::<u64>().is_ok())
}

/// A group and all below it, which come first. What isn't there has none.
fn with_below(group: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(&group).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut groups: Vec<PathBuf> = below.flat_map(|entry| with_below(entry.path())).collect();
    groups.push(group);
    groups
}

/// The processes in a group and below it.
pub fn members(group: &Path) -> HashSet<i32> {
    let lists = with_below(group.into()).into_iter().map(|group| group.join("cgroup.procs"));
    let texts = lists.filter_map(|list| fs::read_to_string(list).ok());
    texts.flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>()).collect()
}

/// What limits swap: of version 1 together with memory, of version 2 alone. Kernels may have neither.
fn swap_file(version: Version) -> &'static str {
    if version == Version::One { "memory.memsw.limit_in_bytes" } else { "memory.swap.max" }
}

/// The first line of that file is a title.
fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

fn leaf(uid: &str, run: u64) -> String {
    format!("{uid}-{run}")
}

/// Whether groups can be made there: a folder that an earlier agent left says nothing, the mount may be read-only by now.
fn is_usable(root: &Path) -> bool {
    // Those of agents that were killed at this; one of an agent that is at it now has told it already what it wanted to know.
    let old = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_trial = |path: &PathBuf| path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"trial-"));
    old.filter(is_trial).for_each(|path| drop(fs::remove_dir(path)));
    let trial = root.join(format!("trial-{}", std::process::id()));
    let made = fs::create_dir_all(root).and_then(|()| make(&trial));
    // What can't be removed is empty, and harms nothing.
    let _ = fs::remove_dir(&trial);
    made.is_ok()
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Lets the groups below `root` use a controller of version 2.
fn delegate(root: &Path, controller: &str) -> bool {
    let enable = |group: &Path| fs::write(group.join("cgroup.subtree_control"), format!("+{controller}")).is_ok();
    root.parent().is_some_and(enable) && enable(root)
}

/// A line of mountinfo (proc(5)).
struct Mount<'a> {
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (mount, source) = line.split_once(" - ")?;
        let mut source = source.split(' ');
        let kind = source.next()?;
        Some(Self { point: mount.split(' ').nth(4)?.into(), kind, options: source.next_back().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests;
