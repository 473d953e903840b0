//! The durable backend for one process: the same state machine as `Memory`, with a database below it that says which
//! operations happened.
//!
//! One thread writes. It takes all operations that are waiting as one group, applies them to a draft, writes what they
//! changed in one database transaction, and publishes the group once that is on the disk. So whatever a reader, a
//! watcher or a caller was told survives a SIGKILL; and many writers share one fsync, while a lone one waits for
//! nobody. History is kept on the disk alone; sessions are kept in memory alone and end with the process.

mod disk;
mod lock;
mod queue;
mod writer;

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    thread::{self, JoinHandle},
};

use model::Revision;
use tokio::sync::{mpsc, oneshot};

use crate::{
    Cluster, Error, HistoryQuery, LogRecord, Result,
    local::{Engine, Local, Published, closed},
    state::Draft,
};
use disk::Disk;
use queue::{Call, Job};
use writer::Writer;

pub type Embedded = Local<Durable>;

/// Operations that wait for the writer; more than that wait for a place.
const QUEUE_MAX: usize = 256;
/// History entries forgotten in one group, so that a large trim doesn't hold up the writers.
const TRIM_MAX: usize = 1000;

/// Why a directory can't be opened as a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory {} is in use by another process{}; stop it, or choose another directory",
        dir.display(), pid.as_ref().map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse { dir: PathBuf, pid: Option<u32> },
    #[error("the data in {} is of format {found:?}, and this version knows only {:?}; use the version that wrote it",
        dir.display(), disk::FORMAT)]
    UnknownFormat { dir: PathBuf, found: String },
    #[error("the data in {} can't be right: {message}", dir.display())]
    Corrupt { dir: PathBuf, message: String },
    #[error("the data directory {} can't be used", dir.display())]
    Io { dir: PathBuf, source: io::Error },
    #[error("the database in {} can't be opened", dir.display())]
    Database { dir: PathBuf, source: Box<redb::Error> },
}

/// The disk, as long as it works. Shared with those who read the history.
pub(crate) type Slot = Arc<RwLock<Option<Disk>>>;
/// Opens the database, again after a failure.
pub(crate) type Opener = Box<dyn Fn() -> Result<redb::Database, redb::DatabaseError> + Send>;

/// Publishes operations once they are on the disk.
pub struct Durable {
    /// None: closed.
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    slot: Slot,
}

impl Embedded {
    /// Opens the store in that directory, or makes one there, of the cluster that is proposed. Blocks while it reads.
    pub fn open(dir: impl AsRef<Path>, proposal: Cluster) -> Result<Self, OpenError> {
        let dir = dir.as_ref();
        let path = dir.join(disk::FILE);
        let lock = prepare(dir)?;
        if !path.exists() {
            disk::create(dir, &proposal)?;
        }
        Self::open_with(dir, lock, Box::new(move || disk::builder().create(&path)))
    }

    /// After a restore from a backup, with nobody using it: makes what is in that directory a store of another incarnation.
    /// So whatever was read or promised in the lost history is refused. Blocks while it reads.
    pub fn replace_incarnation(dir: impl AsRef<Path>) -> Result<Cluster, OpenError> {
        let dir = dir.as_ref();
        let path = dir.join(disk::FILE);
        fs::metadata(&path).map_err(|source| OpenError::Io { dir: dir.into(), source })?;
        let _lock = lock::acquire(dir)?;
        let failed = |e: redb::Error| OpenError::Database { dir: dir.into(), source: Box::new(e) };
        let database = disk::builder().open(&path).map_err(|e| failed(e.into()))?;
        let (disk, state) = Disk::load(database, dir)?;
        let cluster = Cluster { shards: state.cluster().shards, ..Cluster::random() };
        disk.replace_incarnation(&cluster.incarnation).map_err(failed)?;
        Ok(cluster)
    }

    fn open_with(dir: &Path, lock: fs::File, opener: Opener) -> Result<Self, OpenError> {
        let database = opener().map_err(|e| OpenError::Database { dir: dir.into(), source: Box::new(e.into()) })?;
        let (disk, state) = Disk::load(database, dir)?;
        let published = Arc::new(Published::new(state));
        let slot: Slot = Arc::new(RwLock::new(Some(disk)));
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let writer = Writer::new(published.clone(), jobs, slot.clone(), opener);
        let name = "store-writer".to_owned();
        let closes = Closes(published.clone());
        let spawned = thread::Builder::new().name(name).spawn(move || {
            let (_held_while_writing, _closes) = (lock, closes);
            writer.run();
        });
        let thread = spawned.map_err(|source| OpenError::Io { dir: dir.into(), source })?;
        let durable = Durable { queue: Mutex::new(Some(queue)), writer: Mutex::new(Some(thread)), slot };
        Ok(Self::over(published, durable))
    }

    /// Finishes what was submitted, and lets go of the directory. Later calls are refused.
    pub async fn close(&self) {
        self.published.close();
        self.end_no_more_sessions();
        let thread = self.engine.shut();
        let joined = tokio::task::spawn_blocking(move || thread.map(JoinHandle::join)).await;
        if !matches!(joined, Ok(None | Some(Ok(())))) {
            tracing::error!("the store's writer had panicked");
        }
    }
}

/// Without its writer a store is closed, also where the writer panicked: it would answer reads, and look alive.
struct Closes(Arc<Published>);

impl Drop for Closes {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("the store's writer panicked, which is a defect; the store is closed");
            self.0.broke();
        }
        self.0.close();
    }
}

/// The directory, made if need be, and its lock. What is declared may hold secrets: nobody but the server's user reads it.
fn prepare(dir: &Path) -> Result<fs::File, OpenError> {
    let make = || {
        dir.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
    };
    make().map_err(|source| OpenError::Io { dir: dir.into(), source })?;
    lock::acquire(dir)
}

impl Durable {
    fn shut(&self) -> Option<JoinHandle<()>> {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn submit<T>(&self, job: Job, reply: oneshot::Receiver<Result<T>>) -> Result<T> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        queue.ok_or_else(closed)?.send(job).await.map_err(|_| closed())?;
        reply.await.map_err(|_| Error::OutcomeUnknown("the store's writer stopped meanwhile".into()))?
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        if let Some(Err(_)) = self.shut().map(JoinHandle::join) {
            tracing::error!("the store's writer had panicked");
        }
    }
}

impl Engine for Durable {
    async fn execute<T, F>(&self, bytes: usize, operation: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Draft<'_>) -> Result<T> + Send + 'static,
    {
        let (call, reply) = Call::new(bytes, operation);
        self.submit(Job::Call(Box::new(call)), reply).await
    }

    async fn history(&self, query: HistoryQuery, up_to: Revision) -> Result<Vec<LogRecord>> {
        let slot = self.slot.clone();
        let read = move || match &*slot.read().unwrap_or_else(PoisonError::into_inner) {
            Some(disk) => disk.history(&query, up_to).map_err(|e| unavailable(&e)),
            None => Err(Error::Unavailable("the disk failed; it is tried again with the next write".into())),
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|_| Error::Unavailable("reading the history was given up".into()))?
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        let mut trimmed = 0;
        loop {
            let (reply, answer) = oneshot::channel();
            let more = self.submit(Job::Trim { up_to, limit: TRIM_MAX, reply }, answer).await?;
            trimmed += more;
            if more < TRIM_MAX {
                return Ok(trimmed);
            }
        }
    }
}

fn unavailable(error: &redb::Error) -> Error {
    Error::Unavailable(format!("the disk failed: {error}"))
}

#[cfg(test)]
mod tests;
