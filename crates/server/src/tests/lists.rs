use model::{Filter, Key, Revision};
use store::{Api, Error, List, Page, Store};

use super::fixtures::*;
use crate::Server;

async fn page(server: &Server, at: Option<Revision>, after: Option<Key>) -> Page {
    let list = List { filter: Filter::kind("Service"), limit: 3, at, after, ..List::default() };
    server.list(list).await.expect("it's kept")
}

#[tokio::test]
async fn all_pages_show_one_revision_while_writes_go_on() {
    let server = start().await;
    for n in 0..8 {
        declare(&server, &format!("r{n}")).await;
    }
    let first = page(&server, None, None).await;
    let mut objects = first.objects;
    let mut more = first.more;
    let mut turn = 0;
    while more {
        // One that comes, one that changes, one that goes; before, in and after the pages to come.
        declare(&server, &format!("r{turn}x")).await;
        server.apply(&caller(), request([declared("r7", &spec(turn + 2))])).await.unwrap();
        remove(&server, &format!("r{}", 5 + turn)).await;
        turn += 1;
        let after = objects.last().map(|object| object.key.clone());
        let next = page(&server, Some(first.revision), after).await;
        assert_eq!(next.revision, first.revision);
        more = next.more;
        objects.extend(next.objects);
    }
    let names: Vec<&str> = objects.iter().map(|object| object.key.name()).collect();
    assert_eq!(names, ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"]);
    assert!(objects.iter().all(|object| object.revision <= first.revision));
    assert_eq!(turn, 2, "there were pages in between");
}

/// Removes a service's record as its controller would.
async fn remove(server: &Server, name: &str) {
    let resource = get(server, &Key::new("Service", "default", name)).await;
    let metadata = metadata(&resource);
    let fence = claim_as(server, &model::shard_claim(metadata.shard), &format!("s-{name}")).await;
    let write =
        store::Write::Remove { key: Key::of(&metadata), uid: metadata.uid, revision: Revision(metadata.revision) };
    server.commit(step(fence, vec![write])).await.unwrap();
}

#[tokio::test]
async fn a_revision_that_is_not_kept_is_said_to_be_so() {
    let server = start().await;
    let old = Revision(metadata(&declare(&server, "one").await).revision);
    let two = declare(&server, "two").await;
    get(&server, &Key::of(&metadata(&two))).await;
    let list = List { at: Some(old), ..List::default() };
    assert_eq!(server.list(list).await.unwrap_err(), Error::Compacted(old.0));
}

#[tokio::test]
async fn reads_through_another_server_see_what_was_acknowledged() {
    let backend = std::sync::Arc::new(store::Memory::default());
    let (one, two) = (over(backend.clone()).await, over(backend).await);
    for n in 0..50 {
        let declared = declare(&one, &format!("r{n}")).await;
        assert_eq!(get(&two, &Key::of(&metadata(&declared))).await, declared);
    }
    let filter = Filter::kind("Service").with_labels("!missing").unwrap();
    let page = two.list(List { filter, ..List::default() }).await.unwrap();
    assert_eq!((page.objects.len(), page.more), (50, false));
}
