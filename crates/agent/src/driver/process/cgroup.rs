//! A control group of version 2 for each run: born into it, nothing leaves it, and the kernel kills it whole.
//!
//! A group is used for one run only: a kernel may hold it against the next one that its members were killed once.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where groups are made; none where they can't be.
#[derive(Clone, Debug)]
pub struct Root(Option<PathBuf>);

impl Root {
    pub fn none() -> Self {
        Self(None)
    }

    /// Below the mount of version 2, beside what runs there: a group below the agent's own would go with the agent's
    /// unit. (On hosts with version 1 that mount has no controllers, but kills all the same.)
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let root = mounts.lines().find_map(mount_point).map(|mount| mount.join("driftless"));
        Self(root.filter(|root| fs::create_dir_all(root).is_ok() && root.join("cgroup.kill").exists()))
    }

    pub fn group(&self, uid: &str, run: u64) -> Option<PathBuf> {
        self.0.as_ref().map(|root| root.join(format!("{uid}-{run}")))
    }
}

/// Of a line of mountinfo (proc(5)) that mounts version 2.
fn mount_point(line: &str) -> Option<PathBuf> {
    let (mount, source) = line.split_once(" - ")?;
    source.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
}

pub fn make(group: &Path) -> bool {
    fs::create_dir(group).is_ok() || group.is_dir()
}

/// Only an empty group goes.
pub fn remove(group: &Path) {
    let _ = fs::remove_dir(group);
}
