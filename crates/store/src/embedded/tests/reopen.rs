//! What a new process finds, and what it refuses.

use std::{fs, os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use futures::StreamExt;
use model::{Epoch, Fence, Revision};
use tokio::time::timeout;

use super::open;
use crate::{
    ClaimChange, Cluster, Embedded, Error, HistoryQuery, LogEntry, OpenError, SessionOpen, Store, Transaction,
    WatchOptions,
    conformance::{Coordinated, Reader, create, put, resource, shown},
    local::Engine,
};

/// What is declared may hold secrets.
#[tokio::test]
async fn its_folder_is_made_for_the_servers_user_alone() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("data/store");
    let _store = open(&dir);
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
}

fn session(id: &str) -> SessionOpen {
    let (role, name, server) = ("controller".into(), "a".into(), "s1".into());
    SessionOpen {
        session: id.into(),
        role,
        name,
        server,
        server_address: String::new(),
        ttl: crate::conformance::PATIENCE,
        machine_id: String::new(),
    }
}

fn take(from: (&str, u64), to: &str) -> ClaimChange {
    ClaimChange {
        name: "leader".into(),
        expected_owner: from.0.into(),
        expected_epoch: Epoch(from.1),
        owner: to.into(),
        owner_must_be_dead: true,
    }
}

#[tokio::test]
async fn everything_but_sessions_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let cluster = first.cluster().await.unwrap();
    first.open_session(session("a")).await.unwrap();
    let claim = first.change_claim(take(("", 0), "a")).await.unwrap();
    let web = create(&first, "web").await;
    let entry = LogEntry { root_uid: "root".into(), step_id: "step".into(), bytes: "said".into(), slot: String::new() };
    first.commit(Transaction { log: vec![entry.clone()], ..Transaction::default() }).await.unwrap();
    let head = first.head().await.unwrap();
    first.close().await;

    let second = open(dir.path());
    assert_eq!(second.cluster().await, Ok(cluster), "the first one's proposal stands");
    assert_eq!(second.head().await, Ok(head));
    let page = second.list(crate::List::default()).await.unwrap();
    assert_eq!(shown(&page.objects), [format!("Service/default/web@{web}")]);
    let history = second.history(HistoryQuery::default()).await.unwrap();
    assert_eq!(history.iter().map(|r| (r.revision, &r.entry)).collect::<Vec<_>>(), [(head.revision, &entry)]);

    let coordination = Coordinated::open(&second).await.next().await;
    assert_eq!((coordination.members.len(), &coordination.claims[..]), (0, &[claim][..]));
    second.open_session(session("b")).await.unwrap();
    let fence = Some(Fence::Claim { claim: "leader".into(), epoch: Epoch(1), session: "a".into() });
    second.commit(Transaction { fence, ..Transaction::default() }).await.expect("the claim itself stays");
    assert_eq!(second.change_claim(take(("a", 1), "b")).await.unwrap().epoch, 2, "its owner died with the process");
}

#[tokio::test]
async fn a_restored_one_refuses_what_was_meant_for_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let before = first.cluster().await.unwrap();
    let web = create(&first, "web").await;
    assert!(matches!(Embedded::replace_incarnation(dir.path()), Err(OpenError::InUse { .. })));
    first.close().await;

    let now = Embedded::replace_incarnation(dir.path()).expect("nobody uses it");
    assert_eq!(now.shards, before.shards);
    let second = open(dir.path());
    assert_eq!(second.cluster().await, Ok(now.clone()));
    let late = |incarnation: &str| {
        let writes = vec![put(resource("web"), web)];
        second.commit(Transaction { incarnation: incarnation.into(), writes, ..Transaction::default() })
    };
    assert_eq!(late(&before.incarnation).await, Err(Error::WrongIncarnation(now.incarnation.clone())));
    late(&now.incarnation).await.expect("it's as it was");
    let nothing = Embedded::replace_incarnation(dir.path().join("nothing"));
    assert!(matches!(nothing, Err(OpenError::Io { .. })), "{nothing:?}: and none is made");
}

#[tokio::test]
async fn a_watch_resumes_from_the_head_or_gets_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let mut old = Reader::with_snapshot(&first).await;
    let (too_old, a) = (old.token(), create(&first, "a").await);
    old.until(a).await;
    let newest = old.token();
    first.close().await;

    let second = open(dir.path());
    let resuming = |token| WatchOptions { resume: Some(token), ..WatchOptions::default() };
    let mut from_head = Reader::open(&second, resuming(newest)).await;
    let mut from_before = Reader::open(&second, resuming(too_old)).await;
    let b = create(&second, "b").await;
    assert_eq!(from_head.group().await.to, b);
    assert_eq!(from_before.snapshot().await.len(), 2);
}

#[tokio::test]
async fn one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let refused = crate::Embedded::open(dir.path(), Cluster::random()).map(|_| ()).unwrap_err();
    let OpenError::InUse { dir: named, pid } = &refused else { panic!("{refused:?}") };
    assert_eq!((named.as_path(), *pid), (dir.path(), Some(std::process::id())));
    assert!(refused.to_string().contains(&dir.path().display().to_string()), "{refused}");
    create(&first, "web").await;
    drop(first);
    open(dir.path());
}

#[tokio::test]
async fn a_closed_store_ends_its_streams_and_refuses_calls() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()));
    let mut watch = store.watch(WatchOptions::default()).await.unwrap();
    store.close().await;
    let items: Vec<_> = watch.by_ref().collect().await;
    assert!(matches!(items.last(), Some(Err(Error::Unavailable(_)))), "{items:?}");
    let refused = store.commit(Transaction::default()).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    store.close().await;
}

#[test]
fn an_unknown_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let database = redb::Database::open(dir.path().join(super::super::disk::FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, &str>::new("meta");
    transaction.open_table(meta).unwrap().insert("format", "99").unwrap();
    transaction.commit().unwrap();
    drop(database);
    let refused = crate::Embedded::open(dir.path(), Cluster::random()).map(|_| ()).unwrap_err();
    assert!(matches!(&refused, OpenError::UnknownFormat { found, .. } if found == "99"), "{refused:?}");
    assert!(refused.to_string().contains("\"99\""), "{refused}");
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(super::super::disk::FILE), vec![7; 10_000]).unwrap();
    let refused = crate::Embedded::open(dir.path(), Cluster::random()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, OpenError::Database { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_crash_while_it_was_made_leaves_nothing_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("state.redb.new"), b"half a database").unwrap();
    let store = open(dir.path());
    let revision =
        store.commit(Transaction { writes: vec![put(resource("web"), Revision::ZERO)], ..Default::default() });
    assert_eq!(revision.await, Ok(Revision(1)));
}

#[tokio::test]
async fn a_store_whose_writer_panicked_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut states = store.coordination().await.unwrap();
    states.next().await.unwrap().unwrap();
    let died = store.engine.execute(0, |_draft| -> crate::Result<()> { panic!("defective") }).await;
    assert!(matches!(died, Err(Error::OutcomeUnknown(_))), "{died:?}");
    assert!(states.next().await.unwrap().is_err(), "whoever listens is told");
    assert!(store.head().await.is_err(), "whoever asks whether it's there, too");
    let broken = timeout(Duration::from_secs(60), store.broken()).await;
    assert_eq!(broken.as_deref(), Ok("writer"), "and whoever must do something about it");
    drop(store);
    let again = open(dir.path());
    create(&again, "web").await;
}
