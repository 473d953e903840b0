//! The thread that writes: takes what waits as one group, applies it, makes it durable, publishes it, answers.
//!
//! It never answers for what isn't on the disk. Where the disk fails, what was staged is dropped, and the database is
//! opened anew before the next write; only where even that fails right after a commit is the outcome unknown.

use std::sync::{Arc, PoisonError};

use tokio::sync::mpsc;

use super::{
    Opener, Slot,
    disk::{Disk, WriteError},
    queue::{Apply, Job},
    unavailable,
};
use crate::{
    Error, Result,
    local::Published,
    state::{Draft, Staged},
};

/// Operations in one group.
const GROUP_MAX: usize = 256;
/// Bytes in one group; the last operation may exceed it.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;

pub(super) struct Writer {
    published: Arc<Published>,
    jobs: mpsc::Receiver<Job>,
    slot: Slot,
    opener: Opener,
    /// Written when the disk failed, so that nobody knows yet whether it is there.
    in_doubt: Option<Staged>,
}

impl Writer {
    pub fn new(published: Arc<Published>, jobs: mpsc::Receiver<Job>, slot: Slot, opener: Opener) -> Self {
        Self { published, jobs, slot, opener, in_doubt: None }
    }

    pub fn run(mut self) {
        let mut next = self.jobs.blocking_recv();
        while let Some(job) = next {
            next = match job {
                Job::Call(first) => self.run_group(first),
                Job::Trim { up_to, limit, reply } => {
                    let trimmed = self.recover().and_then(|()| {
                        self.on_disk(|disk| disk.trim(up_to, limit)).inspect_err(|_| self.take_disk_away())
                    });
                    // Whoever asked may have gone.
                    let _ = reply.send(trimmed);
                    None
                }
            }
            .or_else(|| self.jobs.blocking_recv());
        }
        self.take_disk_away();
    }

    /// Runs that operation and all that wait behind it. Returns the job that ended the group, if any.
    fn run_group(&mut self, first: Box<dyn Apply>) -> Option<Job> {
        let (mut group, mut next) = (vec![first], None);
        let mut bytes = group[0].bytes();
        while group.len() < GROUP_MAX && bytes < GROUP_BYTES_MAX && next.is_none() {
            match self.jobs.try_recv() {
                Ok(Job::Call(call)) => {
                    bytes += call.bytes();
                    group.push(call);
                }
                Ok(other) => next = Some(other),
                Err(_) => break,
            }
        }
        let failure = self.apply(&mut group).err();
        group.into_iter().for_each(|call| call.answer(failure.as_ref()));
        next
    }

    fn apply(&mut self, group: &mut [Box<dyn Apply>]) -> Result<()> {
        let recovered = self.recover();
        let staged = {
            let state = self.published.read();
            let mut staged = Staged::on(&state);
            group.iter_mut().for_each(|call| call.apply(&mut Draft::new(&state, &mut staged)));
            staged
        };
        // Sessions live on while the disk doesn't.
        match staged.is_durable() {
            true => recovered.and_then(|()| self.write(staged)),
            false => {
                self.published.publish(staged);
                Ok(())
            }
        }
    }

    /// Publishes it if it is on the disk.
    fn write(&mut self, staged: Staged) -> Result<()> {
        let written = match &*self.slot.read().unwrap_or_else(PoisonError::into_inner) {
            Some(disk) => disk.write(&staged),
            None => Err(WriteError::NotDone(redb::Error::DatabaseClosed)),
        };
        match written {
            Ok(()) => {
                self.published.publish(staged);
                Ok(())
            }
            Err(WriteError::NotDone(error)) => {
                self.take_disk_away();
                Err(unavailable(&error))
            }
            Err(WriteError::InDoubt(error)) => {
                self.take_disk_away();
                self.resolve(staged, &error)
            }
        }
    }

    /// The commit itself failed: asks the database, opened anew, whether it happened.
    fn resolve(&mut self, staged: Staged, error: &redb::Error) -> Result<()> {
        let before = self.published.read().head();
        self.in_doubt = Some(staged);
        match self.recover() {
            Ok(()) if self.published.read().head() == before => Err(unavailable(error)),
            // It can be read, but after a failed sync nobody knows what a power cut would leave of it.
            Ok(()) => Err(Error::OutcomeUnknown(format!("the disk failed: {error}"))),
            Err(again) => Err(Error::OutcomeUnknown(format!("the disk failed: {error}; then {again}"))),
        }
    }

    /// Opens the database anew if it failed, and settles what was in doubt.
    fn recover(&mut self) -> Result<()> {
        if self.slot.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let opened = (self.opener)().map_err(redb::Error::from).and_then(Disk::reopen);
        let (disk, head) = opened.map_err(|e| unavailable(&e))?;
        if let Some(staged) = self.in_doubt.take_if(|staged| staged.head == head) {
            self.published.publish(staged);
        }
        self.in_doubt = None;
        let published = self.published.read().head();
        if published != head {
            let message = format!("the disk is at revision {}, readers are at {}", head.revision, published.revision);
            return Err(Error::Corrupt(message));
        }
        *self.slot.write().unwrap_or_else(PoisonError::into_inner) = Some(disk);
        tracing::info!(revision = %head.revision, "the disk works again");
        Ok(())
    }

    fn on_disk<T>(&self, run: impl FnOnce(&Disk) -> Result<T, redb::Error>) -> Result<T> {
        match &*self.slot.read().unwrap_or_else(PoisonError::into_inner) {
            Some(disk) => run(disk).map_err(|e| unavailable(&e)),
            None => Err(unavailable(&redb::Error::DatabaseClosed)),
        }
    }

    /// Waits for those who still read the history.
    fn take_disk_away(&self) {
        drop(self.slot.write().unwrap_or_else(PoisonError::into_inner).take());
    }
}
