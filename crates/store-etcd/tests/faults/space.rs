//! Space that runs out: etcd's own quota, and the disk below it. Errors say what to do, reads go on where etcd does, and
//! nothing acknowledged is lost.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use driftless_store_etcd::{
    EtcdStore,
    testing::{Etcd, Setup},
};
use model::Revision;
use store::{
    Error, Result, Store, Transaction,
    conformance::{Reader, put, resource},
};

use crate::{
    promises,
    support::{key, open, status, until, write, write_until_done},
};

pub const QUOTA_BYTES: usize = 16 * 1024 * 1024;
const BIG_BYTES: usize = 500 * 1024;
/// etcd sets 64 MiB aside for each of its logs.
const DISK: &str = "256m";

/// Writes a big service over that revision. One whose answer was merely late on a busy machine is written all the same.
pub async fn write_big(store: &EtcdStore, over: Revision) -> Result<Revision> {
    let mut big = resource("big");
    big.spec.as_mut().expect("it has one").value = vec![b'x'; BIG_BYTES];
    let written = store.commit(Transaction { writes: vec![put(big, over)], ..Transaction::default() }).await;
    if let Err(Error::OutcomeUnknown(_)) = &written
        && let Ok(Some(now)) = store.get(&key("big")).await
        && now.revision > over
    {
        return Ok(now.revision);
    }
    written
}

#[tokio::test]
async fn a_used_up_quota_is_said_and_survived() {
    let quota = format!("--quota-backend-bytes={QUOTA_BYTES}");
    let etcd = Etcd::start_with(1, Setup { args: vec![quota], ..Setup::default() }).await;
    let mut options = etcd.options();
    options.quota_bytes = QUOTA_BYTES as u64;
    let store = open(options);
    let small = write(&store, "small", Revision::ZERO).await.expect("it's free");
    let mut reader = Reader::with_snapshot(&*store).await;
    let mut last = Revision::ZERO;
    let refused = loop {
        match write_big(&store, last).await {
            Ok(revision) => last = revision,
            Err(error) => break error,
        }
        assert!(last.0 < 2 * (QUOTA_BYTES / BIG_BYTES) as i64, "the quota never ends");
    };
    assert!(matches!(&refused, Error::Unavailable(why) if why.contains("NOSPACE")), "{refused}");
    assert!(matches!(write(&store, "more", Revision::ZERO).await, Err(Error::Unavailable(_))));
    reader.until(last).await;
    assert_eq!(store.get(&key("small")).await.expect("reads go on").map(|o| o.revision), Some(small));
    let told = status(&store, 1).await;
    assert_eq!(told.alarms, ["NOSPACE"]);
    assert!(told.members[0].used_percent() >= 90, "{told:?}");

    store.compact(last).await.expect("compaction goes on");
    store.defragment().await.expect("it gives the space back");
    store.disarm_no_space().await.expect("the alarm is silenced");
    let after = write(&store, "more", Revision::ZERO).await.expect("there is space again");
    reader.until(after).await;
    let told = status(&store, 1).await;
    assert_eq!(told.alarms, [""; 0]);
    assert!(told.members[0].used_percent() < 50, "{told:?}");
    promises::are_kept_by(&etcd).await;
}

/// A small disk of its own.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={DISK}"), "tmpfs"]).arg(dir.path()));
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes until nothing fits any more.
    fn fill(&self) {
        let mut filler = File::options().create(true).append(true).open(self.filler()).expect("a file can be made");
        for size in [1 << 20, 1 << 12, 1] {
            let block = vec![0; size];
            while filler.write_all(&block).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.filler()).expect("the filler is there");
    }

    fn filler(&self) -> std::path::PathBuf {
        self.path().join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(self.path()));
    }
}

fn run(command: &mut Command) {
    let status = command.status().expect("mount and umount are there");
    assert!(status.success(), "{command:?}: {status}; this test needs the right to mount a tmpfs (root)");
}

#[tokio::test]
async fn a_full_disk_is_said_and_survived() {
    let disk = Disk::mount();
    let setup = Setup { data_dir: Some(disk.path().into()), fsync: true, ..Setup::default() };
    let mut etcd = Etcd::start_with(1, setup).await;
    let store = open(etcd.options());
    let mut acknowledged = vec![("first".to_owned(), write(&store, "first", Revision::ZERO).await.expect("it's free"))];
    let mut reader = Reader::with_snapshot(&*store).await;

    disk.fill();
    let mut big = Revision::ZERO;
    let refused = loop {
        match write_big(&store, big).await {
            Ok(revision) => big = revision,
            Err(error) => break error,
        }
        disk.fill(); // etcd sets its next log aside when it can.
    };
    assert!(matches!(refused, Error::Unavailable(_) | Error::OutcomeUnknown(_)), "{refused}");
    let refused = write(&store, "refused", Revision::ZERO).await.expect_err("the disk is full");
    assert!(matches!(refused, Error::Unavailable(_) | Error::OutcomeUnknown(_)), "{refused}");

    disk.empty();
    etcd.restart(0).await;
    until("etcd answers", || async { store.head().await.is_ok() }).await;
    acknowledged.push(("after".to_owned(), write_until_done(&store, "after").await));
    for (name, revision) in acknowledged {
        let found = store.get(&key(&name)).await.expect("it's read").map(|o| o.revision);
        assert_eq!(found, Some(revision), "{name}");
        reader.until(revision).await;
    }
    let found = store.get(&key("big")).await.expect("it's read").map(|o| o.revision).unwrap_or_default();
    assert!(found >= big, "what was acknowledged at {big} is at {found}");
    promises::are_kept_by(&etcd).await;
}
