use model::{Filter, Revision};
use store::{Change, ResumeToken, Store, WatchItem, WatchOptions};

use super::fixtures::*;

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
