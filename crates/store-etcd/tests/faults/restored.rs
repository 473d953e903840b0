//! A store that became another: replaced by a restore that was announced by a new incarnation, or by one that wasn't.

use std::{path::Path, process::Command};

use driftless_store_etcd::{
    Options,
    testing::{Etcd, Setup},
};
use futures::StreamExt;
use model::Revision;
use store::{
    Error, Store, Transaction, WatchItem, WatchOptions,
    conformance::{Reader, put, resource},
};

use crate::{
    proxy::Proxy,
    support::{PATIENCE, open, session, until, write, write_until_done},
};

#[tokio::test]
async fn a_new_incarnation_refuses_old_writers_and_starts_watches_over() {
    let etcd = Etcd::start().await;
    let mut proxy = Proxy::start(&etcd.endpoints()[0]);
    let options = etcd.options();
    let restorer = open(options.clone());
    let store = open(Options { endpoints: vec![proxy.endpoint.clone()], ..options });
    let before = store.cluster().await.expect("it's made");
    write(&store, "a", Revision::ZERO).await.expect("it's free");
    let mut watch = store.watch(WatchOptions::default()).await.expect("it opens");
    while !matches!(watch.next().await, Some(Ok(WatchItem::SnapshotEnd { .. }))) {}

    proxy.cut();
    let now = restorer.replace_incarnation().await.expect("it's replaced");
    proxy.mend();
    let again = loop {
        match watch.next().await.expect("it goes on").expect("it's well") {
            WatchItem::SnapshotStart { incarnation, .. } => break incarnation,
            WatchItem::Changes(_) | WatchItem::Bookmark(_) => {}
            other => panic!("a snapshot should start, not {other:?}"),
        }
    };
    assert_eq!(again, now.incarnation);
    assert_eq!(before.shards, now.shards);

    let writes = vec![put(resource("b"), Revision::ZERO)];
    let old = Transaction { incarnation: before.incarnation, writes, ..Transaction::default() };
    assert_eq!(store.commit(old).await, Err(Error::WrongIncarnation(now.incarnation)));
    write(&store, "b", Revision::ZERO).await.expect("nobody wrote it");
}

#[tokio::test]
async fn who_did_not_hear_of_it_is_refused_once_and_everybody_is_dead() {
    let etcd = Etcd::start().await;
    let options = etcd.options();
    let (store, restorer) = (open(options.clone()), open(options));
    store.open_session(session("s1")).await.expect("it opens");
    write(&store, "a", Revision::ZERO).await.expect("it's free");
    let now = restorer.replace_incarnation().await.expect("it's replaced");
    let refused = write(&store, "b", Revision::ZERO).await;
    assert!(matches!(refused, Err(Error::WrongIncarnation(_))), "{refused:?}");
    assert_eq!(store.cluster().await, Ok(now));
    write(&store, "b", Revision::ZERO).await.expect("nobody wrote it");
    assert_eq!(store.beat("s1", None).await, Err(Error::SessionEnded("s1".into())));
}

#[tokio::test]
async fn a_restore_that_nobody_announced_ends_the_watch() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let data = dir.path().join("data");
    let setup = Setup { data_dir: Some(data.clone()), fsync: true, ..Setup::default() };
    let mut etcd = Etcd::start_with(1, setup).await;
    let store = open(etcd.options());
    let kept = write(&store, "kept", Revision::ZERO).await.expect("it's free");
    etcd.members[0].kill();
    copy(&data, &dir.path().join("backup"));
    etcd.restart(0).await;
    write_until_done(&store, "lost").await;
    let mut watch = store.watch(WatchOptions::default()).await.expect("it opens");
    while !matches!(watch.next().await, Some(Ok(WatchItem::SnapshotEnd { .. }))) {}

    etcd.members[0].kill();
    std::fs::remove_dir_all(&data).expect("the data is there");
    copy(&dir.path().join("backup"), &data);
    etcd.restart(0).await;
    let error = loop {
        match watch.next().await.expect("it says why it ends") {
            Ok(WatchItem::Bookmark(_)) => {}
            Ok(item) => panic!("nothing happened since, but it says {item:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::Corrupt(why) if why.contains("restored")), "{error}");
    let reader = Reader::with_snapshot(&*store).await;
    assert_eq!(reader.at, kept);
}

/// Of an etcd that lost everything: its revisions begin anew, far below what was seen.
#[tokio::test]
async fn who_follows_members_and_claims_is_told_those_of_an_emptied_store() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let data = dir.path().join("data");
    let setup = Setup { data_dir: Some(data.clone()), fsync: true, ..Setup::default() };
    let mut etcd = Etcd::start_with(1, setup).await;
    let store = open(etcd.options());
    let before = store.cluster().await.expect("it's made");
    for n in 0..20 {
        write(&store, &format!("w{n}"), Revision::ZERO).await.expect("it's free");
    }
    store.open_session(session("old")).await.expect("it opens");
    let mut states = store.coordination().await.expect("it opens");
    let mut shows = async |session: &str| {
        let shown = async {
            loop {
                let state = states.next().await.expect("it never ends").expect("it never fails");
                let members: Vec<&str> = state.members.iter().map(|member| member.session.as_str()).collect();
                if members == [session] {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, shown).await.unwrap_or_else(|_| panic!("{session} doesn't show"));
    };
    shows("old").await;

    etcd.members[0].kill();
    std::fs::remove_dir_all(&data).expect("the data is there");
    etcd.restart(0).await;
    until("a session can be opened", || async { store.open_session(session("new")).await.is_ok() }).await;
    shows("new").await;
    assert_ne!(store.cluster().await.expect("it's made").incarnation, before.incarnation);
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().expect("cp is there");
    assert!(status.success());
}
