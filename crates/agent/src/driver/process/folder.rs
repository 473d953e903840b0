//! What stands on disk for the node and for each instance, and in which file.
//!
//! ```text
//! <data>/node.json                            the node's memory
//! <data>/agent.lock                           held by the one agent that works here
//! <data>/instances/<namespace>_<name>_<uid>/
//!     instance.pb                             the resource as it was last started
//!     memory.json                             driver::Memory
//!     lock                                    held by whoever keeps a run
//!     stop                                    there while it is stopped for good
//!     work/                                   where the program starts
//!     runs/<n>/{env,supervisor,child,exit,log,log.1,..,times,times.1,..,ready}   of this run and the one before
//! <data>/removed/<id>/                        was an instance's folder, and is being removed
//! <data>/logs/<namespace>_<name>_<uid>/       logs of an instance that is gone
//! ```
//! What stands here holds environments, so secrets: nobody but the agent's user reads its files, or lists a folder. Only the
//! way to `work/` may be walked by others, for programs that give up their rights once they run.
//!
//! Files are replaced whole. They are not synced to the disk unless a promise needs it: most of what they say is void
//! after a restart of the machine anyway.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use api::v1;
use prost::Message;
use rustix::fs::FlockOperation;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    assigned,
    driver::{Id, Memory},
};

/// Runs whose records and logs are kept: this one, and the one before.
pub const RUNS_KEPT: u64 = 2;

/// How long a lock may still be taken by nobody who means it: a process that was being started meanwhile holds, until it
/// runs its program, what this one held when it was born.
const LOCK_MAX: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The folder of one instance.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn of(data: &Path, id: &Id) -> Self {
        Self(data.join("instances").join(Self::name(id)))
    }

    pub fn name(id: &Id) -> String {
        format!("{}_{}_{}", id.key.namespace(), id.key.name(), id.uid)
    }

    pub fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    pub fn run(&self, run: u64) -> PathBuf {
        self.0.join("runs").join(run.to_string())
    }

    /// `sync`: it's there after a loss of power, too, and the instance's own folder with it.
    pub fn make(&self, run: u64, sync: bool) -> io::Result<()> {
        let dir = self.run(run);
        private(&dir)?;
        match fs::create_dir(self.work()) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        // The run's, the instance's, and that of all of them each hold the name of the next one.
        let above = dir.ancestors().skip(1).take(if sync { 3 } else { 0 });
        above.into_iter().try_for_each(|dir| File::open(dir)?.sync_all())
    }

    /// Of a machine that lost power it may be empty, which would be read as well.
    pub fn resource(&self) -> io::Result<v1::Resource> {
        let bytes = fs::read(self.0.join("instance.pb"))?;
        let resource = v1::Resource::decode(bytes.as_slice()).map_err(|e| invalid(&e.to_string()))?;
        let own = |m: &v1::Metadata| self.parts() == Some([&m.namespace, &m.name, &m.uid].map(String::as_str));
        if resource.metadata.as_ref().is_some_and(own) { Ok(resource) } else { Err(invalid("it isn't this folder's")) }
    }

    /// What the folder's name says: enough to end what runs, and to find the record that a server has.
    pub fn unread(&self) -> Option<v1::Resource> {
        let [namespace, name, uid] = self.parts()?.map(str::to_owned);
        Some(assigned::unread(namespace, name, uid))
    }

    /// Namespace, name and uid: none of them has an underscore.
    fn parts(&self) -> Option<[&str; 3]> {
        let parts: Vec<&str> = self.0.file_name()?.to_str()?.split('_').collect();
        parts.try_into().ok()
    }

    /// Without the status, which isn't ours to keep.
    pub fn save_resource(&self, resource: &v1::Resource, sync: bool) -> io::Result<()> {
        let kept = v1::Resource { metadata: resource.metadata.clone(), spec: resource.spec.clone(), status: None };
        write(&self.0, "instance.pb", &kept.encode_to_vec(), sync)
    }

    pub fn memory(&self) -> io::Result<Memory> {
        read_json(&self.0.join("memory.json"))
    }

    pub fn save_memory(&self, memory: &Memory, sync: bool) -> io::Result<()> {
        write_json(&self.0, "memory.json", memory, sync)
    }

    /// None: somebody holds it, so a run is kept, or just being born.
    pub fn lock(&self) -> io::Result<Option<File>> {
        lock(&self.0.join("lock"))
    }

    /// The same, for who knows that no run is kept.
    pub fn lock_soon(&self) -> io::Result<Option<File>> {
        lock_within(&self.0.join("lock"), LOCK_MAX)
    }

    /// The newest run there are records of; for when the memory can't be read.
    pub fn newest_run(&self) -> u64 {
        self.runs().into_iter().max().unwrap_or(0)
    }

    /// Nothing ever ran in it. What can't be looked at is no proof of that.
    pub fn is_new(&self) -> bool {
        match fs::read_dir(self.0.join("runs")) {
            Ok(mut entries) => entries.next().is_none(),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        }
    }

    pub fn runs(&self) -> Vec<u64> {
        let entries = fs::read_dir(self.0.join("runs")).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
    }

    /// Drops records and logs of old runs; returns which.
    pub fn prune(&self, newest: u64) -> Vec<u64> {
        let old: Vec<u64> = self.runs().into_iter().filter(|run| run + RUNS_KEPT <= newest).collect();
        for run in &old {
            // What can't be removed now is tried again after the next start.
            let _ = fs::remove_dir_all(self.run(*run));
        }
        old
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

pub fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

pub fn lock_within(path: &Path, patience: Duration) -> io::Result<Option<File>> {
    let deadline = Instant::now() + patience;
    loop {
        match lock(path)? {
            None if Instant::now() < deadline => thread::sleep(LOCK_PAUSE),
            locked => return Ok(locked),
        }
    }
}

/// An empty file that is there or isn't.
pub fn mark(dir: &Path, name: &str, there: bool, sync: bool) -> io::Result<()> {
    let file = dir.join(name);
    let done = if there { File::create(file).map(drop) } else { fs::remove_file(file) };
    match done {
        // It isn't there, and nor may be its folder.
        Err(e) if !there && e.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) if sync => File::open(dir)?.sync_all(),
        done => done,
    }
}

/// With all that is in it, and gone in one step: one who is killed meanwhile leaves no folder that tells but half of it. What
/// can't be removed (somebody has mounted something there) doesn't come back; it's tried again by the next agent.
pub fn remove_at_once(dir: &Path, removed: &Path) -> io::Result<()> {
    private(removed)?;
    let target = removed.join(uuid::Uuid::new_v4().simple().to_string());
    match fs::rename(dir, &target) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        renamed => {
            renamed?;
            remove_or_warn(&target);
        }
    }
    Ok(())
}

pub fn remove_or_warn(dir: &Path) {
    if let Err(e) = remove(dir) {
        tracing::warn!(folder = %dir.display(), error = %e, "can't be removed now; tried again when the agent starts again");
    }
}

/// With all that is in it. Gone by somebody else's hand is gone.
pub fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Made if need be, with what is above it, for the agent's user alone.
pub fn private(dir: &Path) -> io::Result<()> {
    made(dir, 0o700)
}

/// The same, but others may go through it to a name that they know.
pub fn passage(dir: &Path) -> io::Result<()> {
    made(dir, 0o711)
}

fn made(dir: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(dir)
}

/// Whole or not at all.
pub fn write(dir: &Path, name: &str, bytes: &[u8], sync: bool) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.new"));
    // What an agent left that was killed here may be one of those that everybody could read.
    match fs::remove_file(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    if sync {
        file.sync_data()?;
    }
    fs::rename(temporary, dir.join(name))?;
    if sync {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let bytes = fs::read(path)?;
    serde_json::from_slice(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

pub fn write_json<T: Serialize>(dir: &Path, name: &str, value: &T, sync: bool) -> io::Result<()> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::other)?;
    write(dir, name, &bytes, sync)
}
