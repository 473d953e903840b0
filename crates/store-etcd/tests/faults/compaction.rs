//! Compaction by us and by others: what it takes away is listed anew, and deletes aren't lost with it.

use std::{sync::Arc, time::Duration};

use driftless_store_etcd::testing::{
    Etcd,
    grpc_proxy::{Between, GrpcProxy, Hold},
};
use model::Revision;
use store::{
    Change, List, Store, WatchItem, WatchOptions,
    conformance::{Reader, shown},
};

use crate::{
    proxy::Proxy,
    support::{key, open, remove, write},
};

#[tokio::test]
async fn an_open_watch_that_compaction_overtook_is_told_what_changed() {
    let etcd = Etcd::start().await;
    let mut proxy = Proxy::start(&etcd.endpoints()[0]);
    let options = etcd.options();
    let mut through = options.clone();
    through.endpoints = vec![proxy.endpoint.clone()];
    let (watcher, writer) = (open(through), open(options));
    let kept = write(&writer, "kept", Revision::ZERO).await.expect("it's free");
    let gone = write(&writer, "gone", Revision::ZERO).await.expect("it's free");
    let made_anew = write(&writer, "made-anew", Revision::ZERO).await.expect("it's free");
    let mut reader = Reader::with_snapshot(&*watcher).await;

    proxy.cut();
    let kept = write(&writer, "kept", kept).await.expect("nobody else writes");
    remove(&writer, "gone", gone).await.expect("it's there");
    remove(&writer, "made-anew", made_anew).await.expect("it's there");
    let mut other = store::conformance::resource("made-anew");
    other.metadata.as_mut().expect("it has one").uid = "another".into();
    let writes = vec![store::conformance::put(other, Revision::ZERO)];
    let anew = writer.commit(store::Transaction { writes, ..Default::default() }).await.expect("it's free again");
    let last = write(&writer, "new", Revision::ZERO).await.expect("it's free");
    writer.compact(last).await.expect("etcd compacts");
    proxy.mend();

    let group = reader.group().await;
    assert!(group.coalesced);
    assert_eq!(group.to, last);
    let said: Vec<String> = group.changes.iter().map(said).collect();
    let deleted = |name: &str| format!("-{name} uid-{name}@{last}");
    assert_eq!(
        said,
        [
            format!("+kept@{kept}"),
            deleted("made-anew"),
            format!("+made-anew@{anew}"),
            format!("+new@{last}"),
            deleted("gone"),
        ]
    );
    assert_eq!((watcher.counts().relists_compacted, watcher.counts().lies()), (1, 0));
    let after = write(&writer, "after", Revision::ZERO).await.expect("it's free");
    reader.until(after).await;
}

fn said(change: &Change) -> String {
    match change {
        Change::Put(object) => format!("+{}@{}", object.key.name(), object.revision),
        Change::Deleted { key, uid, revision, .. } => format!("-{} {uid}@{revision}", key.name()),
    }
}

/// Somebody's `--auto-compaction-retention`, in a store that only sessions write to.
#[tokio::test]
async fn compaction_beyond_the_last_commit_costs_nothing() {
    let etcd = Etcd::start().await;
    let store = open(etcd.options());
    let a = write(&store, "a", Revision::ZERO).await.expect("it's free");
    let mut reader = Reader::with_snapshot(&*store).await;
    let last = write(&store, "b", Revision::ZERO).await.expect("it's free");
    reader.until(last).await;
    let mut client = etcd.client(0).await.expect("etcd is there");
    for n in 0..3 {
        client.put("of-others", n.to_string(), None).await.expect("it's written");
    }
    let others = client.get("of-others", None).await.expect("it's read").kvs()[0].mod_revision();
    client.compact(others, None).await.expect("etcd compacts");

    let page = List { at: Some(last), ..List::default() };
    assert_eq!(shown(&store.list(page).await.expect("it's as of now").objects).len(), 2);
    assert!(matches!(
        store.list(List { at: Some(a), ..List::default() }).await,
        Err(store::Error::Compacted(at)) if at == a.0
    ));
    let resume = Some(reader.token());
    let mut resumed = Reader::open(&*store, WatchOptions { resume, min_revision: last, ..Default::default() }).await;
    assert!(matches!(resumed.item().await, WatchItem::Bookmark(_)), "no snapshot: nothing changed");
    let after = write(&store, "c", Revision::ZERO).await.expect("it's free");
    resumed.until(after).await;
    reader.until(after).await;
    assert_eq!(store.counts().relists_compacted, 0);
}

#[tokio::test]
async fn a_mark_moves_watches_on_without_a_change() {
    let etcd = Etcd::start().await;
    let store = open(etcd.options());
    let made = write(&store, "a", Revision::ZERO).await.expect("it's free");
    let mut reader = Reader::with_snapshot(&*store).await;
    let mark = store.mark().await.expect("it's written");
    reader.until(mark).await;
    store.compact(mark).await.expect("etcd compacts");
    store.compact(made).await.expect("what is compacted already is no error");
    assert_eq!(store.get(&key("a")).await.expect("it's read").map(|o| o.revision), Some(made));
}

/// etcd takes long over much. Its other watches and calls mustn't suffer.
#[tokio::test]
async fn a_member_that_compacts_for_long_is_not_passed_over() {
    let etcd = Etcd::start().await;
    let proxy = GrpcProxy::start(&etcd.endpoints()[0], Arc::new(Passer)).await;
    let mut options = etcd.options();
    options.endpoints = vec![proxy.address.to_string(), etcd.endpoints()[0].clone()];
    let store = open(options);
    let made = write(&store, "a", Revision::ZERO).await.expect("it's free");
    proxy.hold.send_replace(Hold::Answers("/Compact"));
    let mut compacting = Box::pin(store.compact(made));
    // Longer than other calls may take.
    let answered = tokio::time::timeout(Duration::from_millis(1500), &mut compacting).await;
    assert!(answered.is_err(), "it's still at it: {answered:?}");
    proxy.hold.send_replace(Hold::Nothing);
    compacting.await.expect("etcd compacts");
    assert_eq!(store.counts().failovers, 0);
}

/// Changes nothing.
pub struct Passer;

impl Between for Passer {}
