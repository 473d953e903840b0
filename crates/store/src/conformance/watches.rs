//! Watches: complete, in order, resumable.

use model::{Filter, Revision};
use tokio::task::JoinSet;

use super::{
    Reader, Setup, create, current,
    fixtures::{key, names, remove, writes},
    put, resource, shown,
};
use crate::{Change, List, ResumeToken, WatchItem, WatchOptions};

pub async fn a_snapshot_comes_first_then_changes_in_order(setup: Setup) {
    let store = &*setup.store;
    let mut on_nothing = Reader::open(store, WatchOptions::default()).await;
    assert_eq!(on_nothing.snapshot().await, []);
    let a = create(store, "a").await;
    let b = create(store, "b").await;
    let mut later = Reader::open(store, WatchOptions::default()).await;
    assert_eq!(shown(&later.snapshot().await), [format!("Service/default/a@{a}"), format!("Service/default/b@{b}")]);
    assert!(later.at >= b);
    let a2 = store.commit(writes([put(resource("a"), a)])).await.expect("it is at that revision");
    for (reader, revisions) in [(&mut on_nothing, vec![a, b, a2]), (&mut later, vec![a2])] {
        for revision in revisions {
            let group = reader.group().await;
            assert_eq!((group.to, group.changes.len(), group.coalesced), (revision, 1, false));
        }
    }
    let stored = current(store, "a").await.expect("it exists");
    assert_eq!(on_nothing.world.get(&key("a")), Some(&stored), "a watch carries what a read would");
}

pub async fn a_transaction_arrives_together(setup: Setup) {
    let store = &*setup.store;
    let old = create(store, "old").await;
    let mut reader = Reader::with_snapshot(store).await;
    let names: Vec<String> = (0..50).map(|n| format!("web-{n:02}")).collect();
    let created = names.iter().map(|name| put(resource(name), Revision::ZERO));
    let revision = store.commit(writes(created.chain([remove("old", old)]))).await.expect("all is as expected");
    let group = reader.group().await;
    assert_eq!((group.to, group.changes.len()), (revision, 51));
    assert!(reader.world.keys().map(|k| k.name()).eq(names.iter().map(String::as_str)));
}

pub async fn a_deletion_carries_uid_and_revision(setup: Setup) {
    let store = &*setup.store;
    let created = create(store, "web").await;
    let mut reader = Reader::with_snapshot(store).await;
    let revision = store.commit(writes([remove("web", created)])).await.expect("it is as expected");
    let deleted = Change::Deleted { key: key("web"), uid: "uid-web".into(), revision, left: false };
    assert_eq!(reader.group().await.changes, [deleted]);
    let again = create(store, "web").await;
    assert!(matches!(&reader.group().await.changes[..], [Change::Put(o)] if o.revision == again));
}

pub async fn head_is_gapless_and_announces_its_writes(setup: Setup) {
    let store = &*setup.store;
    // The reader itself checks counts and gaps of every group that it's told.
    let mut reader = Reader::with_snapshot(store).await;
    for n in 0..5 {
        create(store, &format!("web-{n}")).await;
    }
    let both = [put(resource("a"), Revision::ZERO), put(resource("b"), Revision::ZERO)];
    let last = store.commit(writes(both)).await.expect("both are free");
    let mut heads = Vec::new();
    while reader.at < last {
        match reader.item().await {
            WatchItem::Changes(group) => heads.extend(group.head),
            other => assert!(matches!(other, WatchItem::Bookmark(_)), "{other:?}"),
        }
    }
    assert_eq!(
        heads.iter().map(|h| (h.commits, h.writes)).collect::<Vec<_>>(),
        [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2)]
    );
    assert_eq!(store.head().await.expect("head is read").commits, 6);
}

pub async fn a_resumed_watch_loses_and_repeats_nothing(setup: Setup) {
    let store = &*setup.store;
    create(store, "before").await;
    let mut first = Reader::with_snapshot(store).await;
    let seen = create(store, "seen").await;
    first.until(seen).await;
    let token = first.token();
    drop(first);
    let missed = create(store, "missed").await;
    let gone = store.commit(writes([remove("missed", missed)])).await.expect("it is as expected");

    let mut resumed = Reader::open(store, WatchOptions { resume: Some(token), ..WatchOptions::default() }).await;
    let created = resumed.group().await;
    assert!(matches!(&created.changes[..], [Change::Put(o)] if o.key == key("missed") && o.revision == missed));
    let deleted = resumed.group().await;
    assert!(matches!(&deleted.changes[..], [Change::Deleted { revision, .. }] if *revision == gone));
    let later = create(store, "later").await;
    assert_eq!(resumed.group().await.to, later);
}

pub async fn a_token_that_is_too_old_gets_a_snapshot(setup: Setup) {
    let store = &*setup.store;
    create(store, "a").await;
    let mut first = Reader::with_snapshot(store).await;
    let token = first.token();
    let b = create(store, "b").await;
    first.until(b).await;
    let c = create(store, "c").await;
    setup.compact().await;
    let mut resumed = Reader::open(store, WatchOptions { resume: Some(token), ..WatchOptions::default() }).await;
    assert_eq!(names(&resumed.snapshot().await), ["a", "b", "c"]);
    assert!(resumed.at >= c);
    let d = create(store, "d").await;
    assert_eq!(resumed.group().await.to, d);
    first.until(d).await;
    assert_eq!(first.world, resumed.world, "an open watch goes on, by changes or by a snapshot");
}

pub async fn a_token_of_another_incarnation_gets_a_snapshot(setup: Setup) {
    let store = &*setup.store;
    let a = create(store, "a").await;
    let resume = Some(ResumeToken { incarnation: "another".into(), revision: a });
    let mut reader = Reader::open(store, WatchOptions { resume, ..WatchOptions::default() }).await;
    assert_eq!(names(&reader.snapshot().await), ["a"]);
    let b = create(store, "b").await;
    assert_eq!(reader.group().await.to, b);
}

/// Reads until a bookmark comes, and returns its revision.
async fn bookmark(reader: &mut Reader) -> Revision {
    loop {
        if let WatchItem::Bookmark(bookmark) = reader.item().await {
            return bookmark.revision;
        }
    }
}

pub async fn a_bookmark_follows_the_revision_asked_for(setup: Setup) {
    let store = &*setup.store;
    let a = create(store, "a").await;
    let options = WatchOptions { min_revision: a, ..WatchOptions::default() };
    let mut with_snapshot = Reader::open(store, options.clone()).await;
    assert!(bookmark(&mut with_snapshot).await >= a);
    let mut resumed = Reader::open(store, WatchOptions { resume: Some(with_snapshot.token()), ..options }).await;
    assert!(bookmark(&mut resumed).await >= a, "nothing has to change for it");

    // One that isn't reached yet, and whose commit this filter can't see.
    let filter = Filter::kind("Node");
    let options = WatchOptions { filter, min_revision: Revision(a.0 + 1), ..WatchOptions::default() };
    let mut ahead = Reader::open(store, options).await;
    assert_eq!(ahead.snapshot().await, []);
    let b = create(store, "b").await;
    // One of those that come every few seconds may be from before.
    while bookmark(&mut ahead).await < b {}
}

pub async fn a_filtered_watch_sees_what_matches_and_what_left(setup: Setup) {
    let store = &*setup.store;
    create(store, "other").await;
    let filter = Filter::default().with_labels("app=web").expect("a selector");
    let mut reader = Reader::open(store, WatchOptions { filter, ..WatchOptions::default() }).await;
    assert_eq!(reader.snapshot().await, []);
    let web = create(store, "web").await;
    create(store, "another").await;
    assert!(matches!(&reader.group().await.changes[..], [Change::Put(o)] if o.revision == web));

    let mut renamed = resource("web");
    renamed.metadata.as_mut().expect("it has one").labels.insert("app".into(), "else".into());
    let left = store.commit(writes([put(renamed, web)])).await.expect("it is at that revision");
    let gone = Change::Deleted { key: key("web"), uid: "uid-web".into(), revision: left, left: true };
    assert_eq!(reader.group().await.changes, [gone]);
    let back = store.commit(writes([put(resource("web"), left)])).await.expect("it is at that revision");
    assert!(matches!(&reader.group().await.changes[..], [Change::Put(o)] if o.revision == back));
}

pub async fn watchers_converge_with_the_store_under_load(setup: Setup) {
    const WRITERS: usize = 4;
    let mut readers = vec![Reader::with_snapshot(&*setup.store).await, Reader::with_snapshot(&*setup.store).await];
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let store = setup.store.clone();
        tasks.spawn(async move {
            for round in 0..25 {
                let name = format!("web-{writer}-{}", round % 5);
                let write = match current(&*store, &name).await {
                    None => put(resource(&name), Revision::ZERO),
                    Some(object) if round % 3 == 0 => remove(&name, object.revision),
                    Some(object) => put(resource(&name), object.revision),
                };
                store.commit(writes([write])).await.expect("nobody else writes it");
            }
        });
    }
    // One more opens in the middle of it.
    readers.push(Reader::open(&*setup.store, WatchOptions::default()).await);
    tasks.join_all().await;
    let page = setup.store.list(List::default()).await.expect("it lists");
    for mut reader in readers {
        reader.until(page.revision).await;
        assert_eq!(reader.world.into_values().collect::<Vec<_>>(), page.objects);
    }
}
