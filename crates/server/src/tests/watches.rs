use std::{sync::Arc, time::Duration};

use api::v1;
use model::{Digest, Filter, Revision};
use store::{Api, Change, ResumeToken, Store, WatchItem, WatchOptions};
use tokio::time::Instant;

use super::fixtures::*;
use crate::{Config, Server, watch::LAG_GROUPS_MAX};

#[tokio::test]
async fn a_watch_starts_with_everything_and_goes_on_with_changes() {
    let server = start().await;
    let first = declare(&server, "one").await;
    let filter = Filter::kind("Service");
    let mut watch = Watch::open(server.as_ref(), WatchOptions { filter, ..Default::default() }).await;
    let (objects, revision) = watch.snapshot().await;
    assert_eq!(objects.iter().map(|o| o.key.name()).collect::<Vec<_>>(), ["one"]);
    assert_eq!(revision, Revision(metadata(&first).revision));
    let second = declare(&server, "two").await;
    let group = watch.group().await;
    assert_eq!((group.from, group.to), (revision, Revision(metadata(&second).revision)));
    let [Change::Put(object)] = group.changes.as_slice() else { panic!("one change: {group:?}") };
    assert_eq!(object.resource().unwrap(), second);
}

#[tokio::test]
async fn a_watch_resumes_where_it_was() {
    let server = start().await;
    let first = metadata(&declare(&server, "one").await).revision;
    let second = declare(&server, "two").await;
    let incarnation = server.cluster().await.unwrap().incarnation;
    let resume = Some(ResumeToken { incarnation, revision: Revision(first) });
    let mut watch = Watch::open(server.as_ref(), WatchOptions { resume, ..Default::default() }).await;
    let WatchItem::Changes(group) = watch.next().await else { panic!("no snapshot") };
    assert_eq!((group.from, group.to), (Revision(first), Revision(metadata(&second).revision)));
}

#[tokio::test]
async fn a_draining_server_ends_its_watches_and_refuses_calls() {
    let server = start().await;
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    watch.snapshot().await;
    server.drain();
    let WatchItem::End { reason, .. } = watch.next().await else { panic!("it should end") };
    assert_eq!(reason, "DRAINING");
    assert!(watch.ended().await);
    assert!(message(server.get(&web()).await).contains("DRAINING"));
}

fn by_shards(shards: &[u32]) -> Filter {
    Filter { shards: Some(shards.to_vec()), ..Filter::default() }
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_sees_nothing_of_a_commit_is_told_soon_that_it_missed_nothing() {
    let server = start().await;
    let mut watch = Watch::open(server.as_ref(), WatchOptions { filter: by_shards(&[]), ..Default::default() }).await;
    watch.snapshot().await;
    let revision = Revision(metadata(&declare(&server, "web").await).revision);
    let began = Instant::now();
    let WatchItem::Bookmark(bookmark) = watch.next().await else { panic!("its filter sees no service") };
    assert_eq!((bookmark.revision, bookmark.digests.len()), (revision, 0));
    assert!(began.elapsed() < Duration::from_millis(20), "{:?}", began.elapsed());
    assert_eq!(bookmark.time.millis(), NOW * 1_000, "bookmarks carry the server's clock");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_at_least_every_five_seconds_with_digests() {
    let server = start().await;
    let shard = metadata(&declare(&server, "web").await).shard;
    let other = (shard + 1) % 128;
    let filter = by_shards(&[shard, other]);
    let mut watch = Watch::open(server.as_ref(), WatchOptions { filter, ..Default::default() }).await;
    let (objects, revision) = watch.snapshot().await;
    let began = Instant::now();
    let WatchItem::Bookmark(bookmark) = watch.next().await else { panic!("nothing happened") };
    assert!(began.elapsed() <= Duration::from_millis(5_100), "{:?}", began.elapsed());
    assert_eq!(bookmark.revision, revision);
    let digest = |shard, kind| bookmark.digests.iter().find(|d| (d.shard, d.kind.as_str()) == (shard, kind)).unwrap();
    let service = objects.iter().find(|object| object.key.kind() == "Service").unwrap();
    let uid = metadata(&service.resource().unwrap()).uid;
    let mut expected = Digest::default();
    expected.add(Digest::term(&service.key, &uid, service.revision, &service.bytes));
    assert_eq!(digest(shard, "Service").digest, expected);
    assert_eq!(digest(other, "Service").digest, Digest::default(), "what is empty is named too");
    assert_eq!(digest(0, "Placement").digest.count, 1, "global kinds are all in shard 0");
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_asked_for_is_told_at_once() {
    let server = start().await;
    let min_revision = Revision(metadata(&declare(&server, "web").await).revision);
    let filter = Filter { node: "n1".into(), ..Filter::default() };
    let mut watch = Watch::open(server.as_ref(), WatchOptions { filter, min_revision, ..Default::default() }).await;
    watch.snapshot().await;
    let began = Instant::now();
    let WatchItem::Bookmark(bookmark) = watch.next().await else { panic!("it was asked for") };
    assert!(bookmark.revision >= min_revision);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn what_leaves_a_filter_is_told_as_gone_and_comes_back_whole() {
    let server = start().await;
    let filter = Filter::default().with_labels("app=web").unwrap();
    let mut watch = Watch::open(server.as_ref(), WatchOptions { filter, ..Default::default() }).await;
    watch.snapshot().await;
    let labelled = |value: &str| {
        let mut resource = declared("web", &spec(1));
        resource.metadata.as_mut().unwrap().labels.insert("app".into(), value.into());
        request([resource])
    };
    for value in ["web", "other", "web"] {
        server.apply(&caller(), labelled(value)).await.unwrap();
    }
    let [Change::Put(_)] = watch.group().await.changes[..] else { panic!("it came") };
    let gone = watch.group().await;
    let [Change::Deleted { left: true, revision, .. }] = gone.changes[..] else { panic!("it left: {gone:?}") };
    assert_eq!(revision, gone.to);
    let [Change::Put(_)] = watch.group().await.changes[..] else { panic!("it came back") };
}

#[tokio::test]
async fn shards_that_are_added_bring_their_own_snapshot() {
    let server = start().await;
    let shard = metadata(&declare(&server, "web").await).shard;
    let wanted = tokio::sync::watch::Sender::new(Some(Arc::new(Vec::new())));
    let options = WatchOptions { filter: by_shards(&[]), shards: Some(wanted.subscribe()), ..Default::default() };
    let mut watch = Watch::open(server.as_ref(), options).await;
    let (objects, _) = watch.snapshot().await;
    assert_eq!(objects.iter().map(|o| o.key.kind()).collect::<Vec<_>>(), ["Placement"], "global kinds always match");
    wanted.send_replace(Some(Arc::new(vec![shard])));
    let WatchItem::SnapshotStart { partial, .. } = watch.next().await else { panic!("a partial snapshot") };
    assert_eq!(partial, Some(vec![shard]));
    let WatchItem::Snapshot(objects) = watch.next().await else { panic!("it holds the service") };
    assert_eq!(objects.iter().map(|o| o.key.clone()).collect::<Vec<_>>(), [web()], "and no global kinds again");
    let WatchItem::SnapshotEnd { .. } = watch.next().await else { panic!("it ends") };
    declare(&server, "web").await;
    server.apply(&caller(), request([declared("web", &spec(2))])).await.unwrap();
    assert_eq!(watch.group().await.changes.len(), 1, "from then on its changes are told");
}

#[tokio::test]
async fn a_slow_watcher_gets_the_newest_state_in_one_group() {
    let server = start().await;
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    let (_, revision) = watch.snapshot().await;
    let mut last = v1::Resource::default();
    for replicas in 1..=i32::try_from(LAG_GROUPS_MAX + 10).unwrap() {
        let response = server.apply(&caller(), request([declared("web", &spec(replicas))])).await.unwrap();
        last = response.results.into_iter().next().unwrap().resource.unwrap();
    }
    assert_eq!(get(&server, &web()).await, last);
    let group = watch.group().await;
    assert_eq!((group.from, group.to, group.coalesced), (revision, Revision(metadata(&last).revision), true));
    let [Change::Put(object)] = group.changes.as_slice() else { panic!("one key changed") };
    assert_eq!(object.resource().unwrap(), last);
    assert!(server.counters().coalesced.get() > 0);
}

#[tokio::test]
async fn a_token_older_than_what_is_kept_is_answered_by_a_snapshot() {
    let config = Config { ring_groups_max: 4, ..config("s1") };
    let server = Server::start(config, Arc::new(store::Memory::default())).await.unwrap();
    server.ready().await;
    let incarnation = server.cluster().await.unwrap().incarnation;
    let revision = Revision(metadata(&declare(&server, "web").await).revision);
    for replicas in 2..10 {
        server.apply(&caller(), request([declared("web", &spec(replicas))])).await.unwrap();
    }
    let resume = Some(ResumeToken { incarnation, revision });
    let mut watch = Watch::open(&server, WatchOptions { resume, ..Default::default() }).await;
    let (objects, at) = watch.snapshot().await;
    assert!(objects.iter().any(|object| object.key == web()) && at > revision);
}
