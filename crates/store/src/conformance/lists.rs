//! Lists: order, pages, filters.

use model::{Filter, Key, Object, Revision};

use super::{
    Setup, create, current,
    fixtures::{names, writes},
    put, resource, shown,
};
use crate::{Error, List, Store};

/// All pages of so many rows.
async fn pages(store: &dyn Store, limit: usize) -> Vec<Vec<Object>> {
    let (mut pages, mut after, mut at) = (Vec::new(), None, None);
    loop {
        let page = store.list(List { after, at, limit, ..List::default() }).await.expect("nothing changes meanwhile");
        assert!(at.is_none_or(|at| at == page.revision), "all pages show one revision");
        at = Some(page.revision);
        after = page.objects.last().map(|o| o.key.clone());
        pages.push(page.objects);
        if !page.more {
            return pages;
        }
    }
}

pub async fn pages_are_in_key_order_and_complete(setup: Setup) {
    let store = &*setup.store;
    for name in ["d", "b-1", "a", "b", "c"] {
        create(store, name).await;
    }
    let mut node = resource("n1");
    let metadata = node.metadata.as_mut().expect("it has one");
    (metadata.kind, metadata.namespace) = ("Node".into(), String::new());
    store.commit(writes([put(node, Revision::ZERO)])).await.expect("it's free");

    let all = store.list(List::default()).await.expect("it lists");
    assert_eq!(names(&all.objects), ["n1", "a", "b", "b-1", "c", "d"]);
    assert!(!all.more);
    assert_eq!(all.revision, store.head().await.expect("head is read").revision);
    for limit in 1..=7 {
        let pages = pages(store, limit).await;
        assert!(pages.iter().all(|page| page.len() <= limit));
        assert_eq!(shown(&pages.concat()), shown(&all.objects), "in pages of {limit}");
    }
}

/// Three services and a child of another kind.
async fn populate(store: &dyn Store) {
    for (name, namespace, shard, tier) in [("a", "one", 1, "web"), ("b", "one", 2, "db"), ("c", "two", 1, "web")] {
        let mut service = resource(name);
        let metadata = service.metadata.as_mut().expect("it has one");
        (metadata.namespace, metadata.shard) = (namespace.into(), shard);
        metadata.labels.insert("tier".into(), tier.into());
        store.commit(writes([put(service, Revision::ZERO)])).await.expect("it's free");
    }
    let mut child = resource("a-0");
    let metadata = child.metadata.as_mut().expect("it has one");
    (metadata.kind, metadata.namespace, metadata.shard) = ("Instance".into(), "one".into(), 1);
    metadata.owner = Some(api::v1::OwnerReference { uid: "uid-a".into(), ..Default::default() });
    store.commit(writes([put(child, Revision::ZERO)])).await.expect("it's free");
}

pub async fn filters_are_applied(setup: Setup) {
    let store = &*setup.store;
    populate(store).await;
    let labels = |selector: &str| Filter::default().with_labels(selector).expect("a selector");
    let with = |set: fn(&mut Filter)| {
        let mut filter = Filter::default();
        set(&mut filter);
        filter
    };
    let cases = [
        (Filter::default(), vec!["a-0", "a", "b", "c"]),
        (Filter::kind("Service"), vec!["a", "b", "c"]),
        (Filter::kind("Serv"), vec![]),
        (with(|f| f.kinds = vec!["Service".into(), "Instance".into()]), vec!["a-0", "a", "b", "c"]),
        (with(|f| f.namespace = "one".into()), vec!["a-0", "a", "b"]),
        (with(|f| f.name = "b".into()), vec!["b"]),
        (with(|f| f.owner_uid = "uid-a".into()), vec!["a-0"]),
        (with(|f| f.shards = Some(vec![1, 5])), vec!["a-0", "a", "c"]),
        (with(|f| f.shards = Some(vec![])), vec![]),
        (labels("tier=web"), vec!["a", "c"]),
        (labels("tier!=web"), vec!["a-0", "b"]),
        (labels("tier in (db,cache)"), vec!["b"]),
        (labels("!tier"), vec!["a-0"]),
    ];
    for (filter, expected) in cases {
        let page = store.list(List { filter: filter.clone(), ..List::default() }).await.expect("it lists");
        assert_eq!(names(&page.objects), expected, "{filter:?}");
    }
    let after = Some(Key::new("Service", "one", "a"));
    let page = store.list(List { filter: Filter::kind("Service"), after, limit: 1, ..List::default() }).await;
    let page = page.expect("it lists");
    assert_eq!((names(&page.objects), page.more), (vec!["b"], true));
}

pub async fn an_older_revision_is_as_it_was_or_compacted(setup: Setup) {
    let store = &*setup.store;
    let first = create(store, "a").await;
    create(store, "b").await;
    store.commit(writes([put(resource("a"), first)])).await.expect("it is at that revision");
    let then = store.list(List { at: Some(first), ..List::default() }).await;
    match then {
        Ok(page) => assert_eq!((names(&page.objects), page.objects[0].revision), (vec!["a"], first)),
        Err(error) => assert_eq!(error, Error::Compacted(first.0)),
    }
    setup.compact().await;
    let then = store.list(List { at: Some(first), ..List::default() }).await;
    assert_eq!(then.map(|page| shown(&page.objects)), Err(Error::Compacted(first.0)));
}

pub async fn the_bytes_are_those_written(setup: Setup) {
    let store = &*setup.store;
    let revision = create(store, "web").await;
    let expected = Object { key: super::fixtures::key("web"), revision, bytes: Object::encode(resource("web")) };
    assert_eq!(current(store, "web").await, Some(expected.clone()));
    let page = store.list(List { min_revision: revision, ..List::default() }).await.expect("it lists");
    assert_eq!(page.objects, [expected]);
}
