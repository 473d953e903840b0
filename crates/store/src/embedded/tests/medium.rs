//! A disk that lives in memory, fails on command, and can be asked what a power cut would leave of it.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use redb::StorageBackend;

#[derive(Clone, Debug, Default)]
pub struct Medium {
    shared: Arc<(Mutex<Inner>, Condvar)>,
}

pub struct Stalled(Medium);

impl Drop for Stalled {
    fn drop(&mut self) {
        self.0.inner().stalled = false;
        self.0.shared.1.notify_all();
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// As it is read.
    bytes: Vec<u8>,
    /// As of the last sync.
    synced: Vec<u8>,
    /// Writes since then, in order; any of them may be lost.
    unsynced: Vec<(usize, Vec<u8>)>,
    fault: Fault,
    stalled: bool,
    syncs: usize,
    /// Whatever changes the disk, from now until its user is killed; none: it isn't.
    steps_left: Option<usize>,
}

impl Inner {
    /// Before each step that changes something: whether its user still lives.
    fn step(&mut self) -> io::Result<()> {
        match &mut self.steps_left {
            Some(0) => Err(failed(io::ErrorKind::NotConnected)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Writes fail for want of space.
    Full,
    /// Writes succeed, but syncs fail.
    NoSync,
    /// Nothing works.
    Gone,
}

impl Medium {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.0.lock().expect("no test panics while it holds it")
    }

    pub fn fault(&self, fault: Fault) {
        self.inner().fault = fault;
    }

    /// Syncs wait until the guard is dropped, also by a test that fails.
    pub fn stall(&self) -> Stalled {
        self.inner().stalled = true;
        Stalled(self.clone())
    }

    pub fn syncs(&self) -> usize {
        self.inner().syncs
    }

    /// Its user is killed right after that many more writes, syncs and changes of its length.
    pub fn kill_after(&self, steps: usize) {
        self.inner().steps_left = Some(steps);
    }

    pub fn was_killed(&self) -> bool {
        self.inner().steps_left == Some(0)
    }

    /// What its next user finds where only the one before died: all that was written, synced or not.
    pub fn after_kill(&self) -> Self {
        let bytes = self.inner().bytes.clone();
        let inner = Inner { synced: bytes.clone(), bytes, ..Inner::default() };
        Self { shared: Arc::new((Mutex::new(inner), Condvar::new())) }
    }

    /// What a power cut might leave right now: all that was synced, and some of what wasn't.
    pub fn after_power_cut(&self, seed: u64) -> Self {
        let inner = self.inner();
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = inner.synced.clone();
        for (offset, data) in inner.unsynced.iter().filter(|_| random.random_bool(0.5)) {
            let end = offset + data.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[*offset..end].copy_from_slice(data);
        }
        let inner = Inner { synced: bytes.clone(), bytes, ..Inner::default() };
        Self { shared: Arc::new((Mutex::new(inner), Condvar::new())) }
    }
}

fn failed(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.inner();
        let start = offset as usize;
        let found = inner.bytes.get(start..start + out.len()).ok_or_else(|| failed(io::ErrorKind::UnexpectedEof))?;
        match inner.fault {
            Fault::Gone => Err(failed(io::ErrorKind::NotConnected)),
            _ => {
                out.copy_from_slice(found);
                Ok(())
            }
        }
    }

    /// Like a sparse file, it grows even where there's no space to write to.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step()?;
        inner.bytes.resize(len as usize, 0);
        inner.synced.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.shared.1.wait_while(self.inner(), |inner| inner.stalled).expect("nobody panicked");
        if matches!(inner.fault, Fault::NoSync | Fault::Gone) {
            return Err(failed(io::ErrorKind::Other));
        }
        inner.step()?;
        inner.synced = inner.bytes.clone();
        inner.unsynced.clear();
        inner.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.inner();
        match inner.fault {
            Fault::Full => return Err(failed(io::ErrorKind::StorageFull)),
            Fault::Gone => return Err(failed(io::ErrorKind::NotConnected)),
            Fault::None | Fault::NoSync => {}
        }
        inner.step()?;
        let start = offset as usize;
        inner.bytes[start..start + data.len()].copy_from_slice(data);
        inner.unsynced.push((start, data.to_vec()));
        Ok(())
    }
}
