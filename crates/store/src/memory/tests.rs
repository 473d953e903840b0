use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use model::Revision;
use tokio::time::Instant;

use crate::{
    Memory, SessionOpen, Store, Transaction, WatchItem, WatchOptions,
    conformance::{Reader, Setup, create, put, resource},
};

pub(crate) fn conformance_setup() -> Setup {
    let store = Arc::new(Memory::default());
    let compacted = store.clone();
    let compact = move || {
        compacted.compact();
        std::future::ready(())
    };
    Setup::new(store, Duration::from_secs(1), compact)
}

#[tokio::test]
async fn a_watch_that_lags_too_far_gets_a_fresh_snapshot_on_the_same_stream() {
    let store = Memory::default();
    let mut reader = Reader::with_snapshot(&store).await;
    let mut resource = resource("web");
    // More than the ring's bytes, in the fewest commits.
    resource.spec.as_mut().unwrap().value = vec![7; 900_000];
    let mut at = Revision::ZERO;
    for _ in 0..12 {
        let writes = vec![put(resource.clone(), at)];
        at = store.commit(Transaction { writes, ..Transaction::default() }).await.unwrap();
    }
    let objects = reader.snapshot().await;
    assert_eq!(objects.iter().map(|o| o.revision).collect::<Vec<_>>(), [at]);
    let later = create(&store, "later").await;
    assert_eq!(reader.group().await.to, later);
}

#[tokio::test]
async fn a_token_from_beyond_the_head_gets_a_snapshot() {
    let store = Memory::default();
    create(&store, "web").await;
    let mut token = Reader::with_snapshot(&store).await.token();
    token.revision = Revision(1000);
    let options = WatchOptions { resume: Some(token), ..WatchOptions::default() };
    let mut watch = store.watch(options).await.unwrap();
    let first = watch.next().await.unwrap().unwrap();
    assert!(matches!(first, WatchItem::SnapshotStart { revision: Revision(1), .. }), "{first:?}");
}

#[tokio::test]
async fn a_large_snapshot_comes_in_parts() {
    let store = Memory::default();
    for n in 0..12 {
        let writes = (0..100).map(|m| put(resource(&format!("web-{n}-{m}")), Revision::ZERO)).collect();
        store.commit(Transaction { writes, ..Transaction::default() }).await.unwrap();
    }
    let mut reader = Reader::open(&store, WatchOptions::default()).await;
    let mut parts = Vec::new();
    loop {
        match reader.item().await {
            WatchItem::Snapshot(objects) => parts.push(objects.len()),
            WatchItem::SnapshotEnd { .. } => break,
            _ => {}
        }
    }
    assert_eq!(parts, [500, 500, 200]);
}

#[tokio::test(start_paused = true)]
async fn sessions_live_by_the_paused_clock() {
    let store = Memory::default();
    let hour = Duration::from_secs(3600);
    let (role, name, server) = (String::new(), String::new(), String::new());
    let open = SessionOpen {
        session: "a".into(),
        role,
        name,
        server,
        server_address: String::new(),
        ttl: hour,
        machine_id: String::new(),
    };
    store.open_session(open).await.unwrap();
    let started = Instant::now();
    tokio::time::sleep(hour / 2).await;
    store.beat("a", None).await.unwrap();
    let mut shown = store.coordination().await.unwrap();
    while !shown.next().await.unwrap().unwrap().members.is_empty() {}
    assert_eq!(started.elapsed().as_secs(), (hour + hour / 2).as_secs());
}

#[tokio::test]
async fn a_dropped_store_ends_its_streams() {
    let store = Memory::default();
    let mut watch = store.watch(WatchOptions::default()).await.unwrap();
    let mut coordination = store.coordination().await.unwrap();
    drop(store);
    assert!(watch.next().await.unwrap().is_err());
    assert!(watch.next().await.is_none());
    assert!(coordination.next().await.unwrap().is_err());
    assert!(coordination.next().await.is_none());
}
