//! Watches over the wire.

use model::{Filter, Revision};
use store::{
    Change, Group, Store, Transaction, WatchItem, WatchOptions,
    conformance::{Reader, create, put, resource},
};
use tokio::sync::watch;

use crate::setup::{next, one, past_snapshot};

#[tokio::test]
async fn objects_arrive_with_the_bytes_that_are_stored() {
    let (double, _server, remote) = one().await;
    create(&double.memory, "before").await;
    let mut items = remote.watch(WatchOptions::default()).await.unwrap();
    assert!(matches!(next(&mut items).await, WatchItem::SnapshotStart { partial: None, .. }));
    let WatchItem::Snapshot(objects) = next(&mut items).await else { panic!("a snapshot's part follows") };
    assert_eq!(objects, double.memory.list(store::List::default()).await.unwrap().objects);
    past_snapshot(&mut items).await;

    let revision = create(&double.memory, "after").await;
    let WatchItem::Changes(group) = next(&mut items).await else { panic!("changes follow") };
    let stored = double.memory.get(&model::Key::new("Service", "default", "after")).await.unwrap().unwrap();
    assert_eq!((group.to, group.changes), (revision, vec![Change::Put(stored)]));
}

#[tokio::test]
async fn shards_change_on_the_open_stream() {
    let (_double, _server, remote) = one().await;
    let (shards, receiver) = watch::channel(Some(vec![1].into()));
    let filter = Filter { shards: Some(vec![1]), ..Filter::default() };
    let mut items = remote.watch(WatchOptions { filter, shards: Some(receiver), ..Default::default() }).await.unwrap();
    past_snapshot(&mut items).await;

    for set in [Some(vec![1, 2]), None, Some(vec![])] {
        shards.send_replace(set.clone().map(Into::into));
        let WatchItem::SnapshotStart { partial, .. } = next(&mut items).await else { panic!("the change is told") };
        assert_eq!(partial, set);
    }
}

#[tokio::test]
async fn a_watch_outlives_its_request_side() {
    let (double, _server, remote) = one().await;
    let (shards, receiver) = watch::channel(None);
    let mut items = remote.watch(WatchOptions { shards: Some(receiver), ..Default::default() }).await.unwrap();
    past_snapshot(&mut items).await;
    // Closes it.
    drop(shards);
    for name in ["a", "b", "c"] {
        create(&double.memory, name).await;
        assert!(matches!(next(&mut items).await, WatchItem::Changes(_)));
    }
}

#[tokio::test]
async fn a_token_resumes() {
    let (double, _server, remote) = one().await;
    create(&double.memory, "a").await;
    let resume = {
        let cluster = remote.cluster().await.unwrap();
        let revision = remote.head().await.unwrap().revision;
        Some(store::ResumeToken { incarnation: cluster.incarnation, revision })
    };
    create(&double.memory, "b").await;
    let mut items = remote.watch(WatchOptions { resume, ..Default::default() }).await.unwrap();
    let WatchItem::Changes(group) = next(&mut items).await else { panic!("no snapshot, but what is missing") };
    assert_eq!(group.changes[0].key().name(), "b");
}

#[tokio::test]
async fn a_large_snapshot_comes_in_parts() {
    let (double, _server, remote) = one().await;
    for index in 0..8 {
        let mut big = resource(&format!("big-{index}"));
        big.spec.get_or_insert_default().value = vec![7; 900 * 1024];
        let writes = vec![put(big, Revision::ZERO)];
        double.memory.commit(Transaction { writes, ..Default::default() }).await.unwrap();
    }
    let mut items = remote.watch(WatchOptions::default()).await.unwrap();
    assert!(matches!(next(&mut items).await, WatchItem::SnapshotStart { .. }));
    let mut parts = Vec::new();
    loop {
        match next(&mut items).await {
            WatchItem::Snapshot(objects) => parts.push(objects.len()),
            WatchItem::SnapshotEnd { .. } => break,
            other => panic!("{other:?} within a snapshot"),
        }
    }
    assert_eq!(parts.iter().sum::<usize>(), 8);
    assert!(parts.iter().all(|objects| *objects <= 2), "{parts:?}");
}

/// Its flow control must hold up nothing but itself.
#[tokio::test]
async fn a_watch_that_nobody_reads_holds_up_no_call() {
    let (double, _server, remote) = one().await;
    let mut stalled = Vec::new();
    for _ in 0..4 {
        stalled.push(remote.watch(WatchOptions::default()).await.unwrap());
    }
    let mut revision = Revision::ZERO;
    for _ in 0..20 {
        let mut big = resource("big");
        big.spec.get_or_insert_default().value = vec![7; 900 * 1024];
        let writes = vec![put(big, revision)];
        revision = double.memory.commit(Transaction { writes, ..Default::default() }).await.unwrap();
    }
    assert_eq!(remote.head().await.unwrap().revision, revision);
    // And when somebody reads, it converges.
    for mut items in stalled {
        while !matches!(next(&mut items).await,
            WatchItem::Changes(Group { to: seen, .. }) | WatchItem::SnapshotEnd { revision: seen } if seen == revision)
        {
        }
    }
}

#[tokio::test]
async fn a_bad_selector_is_refused() {
    let (_double, server, _remote) = one().await;
    let mut client =
        wire::rpc::resource_service_client::ResourceServiceClient::connect(format!("http://{}", server.address))
            .await
            .unwrap();
    let filter = api::v1::Filter { labels: "a in b".into(), ..Default::default() };
    let request = api::v1::WatchRequest { filter: Some(filter), ..Default::default() };
    let refused = client.watch(futures::stream::iter([request])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("label selector"), "{refused}");
}

#[tokio::test]
async fn watchers_converge_under_load() {
    let (double, _server, remote) = one().await;
    let mut reader =
        Reader::open(&remote, WatchOptions { filter: Filter::kind("Service"), ..Default::default() }).await;
    reader.snapshot().await;
    let mut last = Revision::ZERO;
    for index in 0..500 {
        last = create(&double.memory, &format!("s{index}")).await;
    }
    reader.until(last).await;
    let stored = double.memory.list(store::List::default()).await.unwrap().objects;
    assert_eq!(reader.world.into_values().collect::<Vec<_>>(), stored);
}
