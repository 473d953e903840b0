//! Nothing is seen before it is on the disk; a disk that fails takes nothing with it, and may come back.

use std::{path::Path, sync::Arc};

use futures::future::join_all;
use model::Revision;
use tokio::task::JoinSet;

use super::medium::{Fault, Medium};
use crate::{
    Cluster, Embedded, Error, HistoryQuery, LogEntry, OpenError, SessionOpen, Store, Transaction, WatchItem,
    conformance::{Coordinated, Reader, create, current, put, resource},
    embedded::disk,
};

/// A store on that medium, which holds a database already or is empty.
pub(super) fn open_on(medium: &Medium, dir: &Path) -> Embedded {
    try_open_on(medium, dir).unwrap()
}

pub(super) fn try_open_on(medium: &Medium, dir: &Path) -> Result<Embedded, OpenError> {
    let backend = medium.clone();
    let opener = move || disk::builder().create_with_backend(backend.clone());
    if redb::StorageBackend::len(medium).unwrap() == 0 {
        disk::initialize(&opener().unwrap(), &Cluster::random()).unwrap();
    }
    Embedded::open_with(dir, super::super::prepare(dir).unwrap(), Box::new(opener))
}

pub(super) fn creating(name: &str) -> Transaction {
    let entry = LogEntry {
        root_uid: format!("uid-{name}"),
        step_id: "step".into(),
        bytes: name.to_owned().into(),
        slot: String::new(),
    };
    Transaction { writes: vec![put(resource(name), Revision::ZERO)], log: vec![entry], ..Transaction::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_seen_before_it_is_on_the_disk() {
    let (dir, medium) = (tempfile::tempdir().unwrap(), Medium::default());
    let store = Arc::new(open_on(&medium, dir.path()));
    create(&*store, "before").await;
    let mut reader = Reader::with_snapshot(&*store).await;
    let head = store.head().await.unwrap();
    let stalled = medium.stall();
    let (writer, other) = (store.clone(), store.clone());
    let first = tokio::spawn(async move { writer.commit(creating("web")).await });
    let second = tokio::spawn(async move { other.commit(creating("web")).await });
    // Both are in the queue or in a group by now or later; in no case may anything show.
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert_eq!(current(&*store, "web").await, None);
        assert_eq!(store.head().await, Ok(head));
        assert_eq!(store.history(HistoryQuery::default()).await, Ok(vec![]));
    }
    assert!(!first.is_finished() && !second.is_finished(), "not even a refusal is told");
    drop(stalled);
    let outcomes = [first.await.unwrap(), second.await.unwrap()];
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    let revision = outcomes.into_iter().find_map(Result::ok).unwrap();
    assert_eq!(current(&*store, "web").await.map(|o| o.revision), Some(revision));
    assert_eq!(reader.group().await.to, revision);
    assert_eq!(store.history(HistoryQuery::default()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_clearly_and_works_again_once_there_is_space() {
    let (dir, medium) = (tempfile::tempdir().unwrap(), Medium::default());
    let store = open_on(&medium, dir.path());
    let before = create(&store, "before").await;
    let mut reader = Reader::with_snapshot(&store).await;
    medium.fault(Fault::Full);
    for round in 0..3 {
        let refused = store.commit(creating("web")).await;
        match (round, &refused) {
            // Right after the failure the full disk can't be opened anew to see whether it happened.
            (0, Err(Error::OutcomeUnknown(message))) | (_, Err(Error::Unavailable(message))) => {
                assert!(message.contains("no storage space"), "{message}");
            }
            _ => panic!("round {round}: {refused:?}"),
        }
    }
    assert_eq!(current(&store, "web").await, None);
    assert_eq!(store.head().await.unwrap().revision, before);
    assert_eq!(current(&store, "before").await.map(|o| o.revision), Some(before), "it can still be read");

    medium.fault(Fault::None);
    let after = store.commit(creating("web")).await.expect("there is space again");
    assert_eq!(reader.group().await.to, after);
    assert_eq!(store.history(HistoryQuery::default()).await.unwrap().len(), 1);
    drop(store);
    let again = open_on(&medium, dir.path());
    assert_eq!(current(&again, "web").await.map(|o| o.revision), Some(after));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_acknowledges_nothing_and_readers_agree_with_the_disk() {
    let (dir, medium) = (tempfile::tempdir().unwrap(), Medium::default());
    let store = open_on(&medium, dir.path());
    create(&store, "before").await;
    medium.fault(Fault::NoSync);
    for name in ["a", "b"] {
        let refused = store.commit(creating(name)).await;
        assert!(matches!(refused, Err(Error::Unavailable(_) | Error::OutcomeUnknown(_))), "{refused:?}");
    }
    medium.fault(Fault::None);
    create(&store, "after").await;
    let seen = store.list(crate::List::default()).await.unwrap();
    drop(store);
    let again = open_on(&medium, dir.path());
    assert_eq!(again.list(crate::List::default()).await.unwrap().objects, seen.objects);
    assert_eq!(again.head().await.unwrap().revision, seen.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_outlive_a_disk_that_is_gone() {
    let (dir, medium) = (tempfile::tempdir().unwrap(), Medium::default());
    let store = open_on(&medium, dir.path());
    medium.fault(Fault::Gone);
    assert!(store.commit(creating("web")).await.is_err());
    let (role, name, server) = ("controller".into(), "a".into(), "s1".into());
    let open = SessionOpen {
        session: "a".into(),
        role,
        name,
        server,
        server_address: String::new(),
        ttl: crate::conformance::PATIENCE,
        machine_id: String::new(),
    };
    assert_eq!(store.open_session(open).await, Ok(1));
    assert_eq!(store.end_session("a", Some(1)).await, Ok(true));
    Coordinated::open(&store).await.until_gone("a").await;
    let refused = store.history(HistoryQuery::default()).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_at_any_write_loses_nothing_acknowledged() {
    for seed in 0..24 {
        let (dir, medium) = (tempfile::tempdir().unwrap(), Medium::default());
        let store = Arc::new(open_on(&medium, dir.path()));
        let mut tasks = JoinSet::new();
        for writer in 0..4 {
            let store = store.clone();
            tasks.spawn(async move {
                for n in 0..=seed {
                    create(&*store, &format!("web-{writer}-{n}")).await;
                }
            });
        }
        // Some are acknowledged by now, others are at some point of their way to the disk.
        tasks.join_next().await.unwrap().unwrap();
        let acknowledged = store.list(crate::List::default()).await.unwrap();
        let left = medium.after_power_cut(seed);
        tasks.join_all().await;
        drop(store);

        let dir = tempfile::tempdir().unwrap();
        let again = open_on(&left, dir.path());
        let found = again.list(crate::List::default()).await.unwrap();
        let lost: Vec<_> = acknowledged.objects.iter().filter(|object| !found.objects.contains(object)).collect();
        assert_eq!(lost, [] as [&model::Object; 0], "seed {seed}");
        let head = again.head().await.unwrap();
        assert_eq!(head.commits, found.objects.len() as u64, "seed {seed}: whole commits, and each once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_writers_share_a_sync() {
    let (dir, medium) = (tempfile::tempdir().unwrap(), Medium::default());
    let store = open_on(&medium, dir.path());
    let mut reader = Reader::with_snapshot(&store).await;
    // All queue up behind one that waits for its sync.
    let stalled = medium.stall();
    let before = medium.syncs();
    let names: Vec<String> = (0..100).map(|n| format!("web-{n}")).collect();
    let commits = join_all(names.iter().map(|name| store.commit(creating(name))));
    let release = async {
        // Commits are polled first, and so all submitted, before this lets the first of them go.
        drop(stalled);
    };
    let (outcomes, ()) = tokio::join!(commits, release);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let syncs = medium.syncs() - before;
    assert!(syncs < 20, "{syncs} syncs for 100 commits");
    reader.until(store.head().await.unwrap().revision).await;
    assert_eq!(reader.world.len(), 100);
    let alone = medium.syncs();
    create(&store, "alone").await;
    assert!(medium.syncs() > alone, "a lone one has its own");
    assert!(matches!(reader.item().await, WatchItem::Changes(group) if group.changes.len() == 1));
}
