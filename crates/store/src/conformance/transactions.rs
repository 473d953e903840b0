//! Commits: what is expected, what is bounded, what is counted.

use futures::future::join_all;
use model::{Key, Revision};
use prost::Message;
use tokio::task::JoinSet;

use super::{
    Setup, create, current,
    fixtures::{key, remove, writes},
    put, resource,
};
use crate::{Error, Expect, LogEntry, PUTS_MAX, Result, Store, TRANSACTION_BYTES_MAX, Transaction, Write};

/// It fails with a conflict on that key.
#[track_caller]
fn assert_conflict(outcome: Result<Revision>, on: &Key) {
    match outcome {
        Err(Error::Conflict { key, .. }) if key == *on => {}
        other => panic!("a conflict on {on} was due, not {other:?}"),
    }
}

pub async fn a_created_resource_is_read_back(setup: Setup) {
    let store = &*setup.store;
    assert_eq!(current(store, "web").await, None);
    let revision = create(store, "web").await;
    assert!(revision > Revision::ZERO);
    let object = current(store, "web").await.expect("it was created");
    assert_eq!((object.key.clone(), object.revision), (key("web"), revision));
    let mut expected = resource("web");
    expected.metadata.as_mut().expect("it has one").revision = revision.0;
    assert_eq!(object.resource(), Ok(expected));
}

pub async fn a_create_expects_absence(setup: Setup) {
    let store = &*setup.store;
    let revision = create(store, "web").await;
    assert_conflict(store.commit(writes([put(resource("web"), Revision::ZERO)])).await, &key("web"));
    assert_eq!(current(store, "web").await.map(|o| o.revision), Some(revision));
}

pub async fn a_replacement_expects_the_revision_it_replaces(setup: Setup) {
    let store = &*setup.store;
    let first = create(store, "web").await;
    let second = store.commit(writes([put(resource("web"), first)])).await.expect("it is at that revision");
    assert!(second > first);
    assert_conflict(store.commit(writes([put(resource("web"), first)])).await, &key("web"));
    assert_conflict(store.commit(writes([put(resource("absent"), first)])).await, &key("absent"));
    assert_eq!(current(store, "web").await.map(|o| o.revision), Some(second));
}

pub async fn a_replacement_expects_the_uid(setup: Setup) {
    let store = &*setup.store;
    let revision = create(store, "web").await;
    let mut impostor = resource("web");
    impostor.metadata.as_mut().expect("it has one").uid = "another".into();
    assert_conflict(store.commit(writes([put(impostor, revision)])).await, &key("web"));
    assert_eq!(current(store, "web").await.map(|o| o.revision), Some(revision));
}

pub async fn a_removal_expects_revision_and_uid(setup: Setup) {
    let store = &*setup.store;
    let first = create(store, "web").await;
    let second = store.commit(writes([put(resource("web"), first)])).await.expect("it is at that revision");
    let impostor = Write::Remove { key: key("web"), uid: "another".into(), revision: second };
    assert_conflict(store.commit(writes([impostor])).await, &key("web"));
    assert_conflict(store.commit(writes([remove("web", first)])).await, &key("web"));
    assert_conflict(store.commit(writes([remove("absent", first)])).await, &key("absent"));
    assert_conflict(store.commit(writes([remove("absent", Revision::ZERO)])).await, &key("absent"));
    assert!(store.commit(writes([remove("web", second)])).await.expect("it is as expected") > second);
    assert_eq!(current(store, "web").await, None);
}

pub async fn a_removed_name_can_be_taken_anew(setup: Setup) {
    let store = &*setup.store;
    let first = create(store, "web").await;
    let gone = store.commit(writes([remove("web", first)])).await.expect("it is as expected");
    let again = create(store, "web").await;
    assert!(again > gone);
    assert_conflict(store.commit(writes([put(resource("web"), first)])).await, &key("web"));
}

pub async fn a_conflict_names_the_key_and_writes_nothing(setup: Setup) {
    let store = &*setup.store;
    let taken = create(store, "taken").await;
    let head = store.head().await.expect("head is read");
    let both = writes([
        put(resource("free"), Revision::ZERO),
        put(resource("taken"), Revision::ZERO),
        put(resource("late"), Revision::ZERO),
    ]);
    assert_conflict(store.commit(both).await, &key("taken"));
    assert_eq!(current(store, "free").await, None);
    assert_eq!(current(store, "late").await, None);
    assert_eq!(current(store, "taken").await.map(|o| o.revision), Some(taken));
    assert_eq!(store.head().await, Ok(head), "a refused commit doesn't count");
}

pub async fn other_keys_can_be_expected(setup: Setup) {
    let store = &*setup.store;
    let at = create(store, "parent").await;
    let child = |name: &str, key: Key, revision: Revision| Transaction {
        expects: vec![Expect { key, revision }],
        ..writes([put(resource(name), Revision::ZERO)])
    };
    store.commit(child("a", key("parent"), at)).await.expect("the parent is there");
    store.commit(child("b", key("absent"), Revision::ZERO)).await.expect("absence is as expected");
    assert_conflict(store.commit(child("c", key("parent"), Revision::ZERO)).await, &key("parent"));
    assert_conflict(store.commit(child("c", key("absent"), at)).await, &key("absent"));
    let moved = store.commit(writes([put(resource("parent"), at)])).await.expect("it is at that revision");
    assert_conflict(store.commit(child("c", key("parent"), at)).await, &key("parent"));
    assert_eq!(current(store, "c").await, None);
    store.commit(child("c", key("parent"), moved)).await.expect("the parent is at its new revision");
}

pub async fn another_incarnation_is_refused(setup: Setup) {
    let store = &*setup.store;
    let of = |incarnation: &str, name: &str| Transaction {
        incarnation: incarnation.into(),
        ..writes([put(resource(name), Revision::ZERO)])
    };
    let refused = store.commit(of("another", "web")).await;
    assert!(matches!(refused, Err(Error::WrongIncarnation(_))), "{refused:?}");
    assert_eq!(current(store, "web").await, None);
    let incarnation = store.cluster().await.expect("the cluster is known").incarnation;
    store.commit(of(&incarnation, "web")).await.expect("this is it");
}

pub async fn a_key_is_written_once_in_a_transaction(setup: Setup) {
    let store = &*setup.store;
    let twice = writes([put(resource("web"), Revision::ZERO), put(resource("web"), Revision::ZERO)]);
    let refused = store.commit(twice).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(current(store, "web").await, None);
}

pub async fn a_name_that_is_no_key_is_refused(setup: Setup) {
    let store = &*setup.store;
    for name in ["", "a/b"] {
        let refused = store.commit(writes([put(resource(name), Revision::ZERO)])).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{name:?}: {refused:?}");
    }
    assert_eq!(store.head().await.expect("head is read").commits, 0);
}

pub async fn too_many_puts_are_refused(setup: Setup) {
    let store = &*setup.store;
    let of = |services: usize| {
        let names = (0..services).map(|n| put(resource(&format!("web-{n}")), Revision::ZERO));
        let entry =
            LogEntry { root_uid: "root".into(), step_id: "step".into(), bytes: "said".into(), slot: String::new() };
        Transaction { log: vec![entry], ..writes(names) }
    };
    // Beside the services: one entry, and head.
    let refused = store.commit(of(PUTS_MAX - 1)).await;
    assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    assert_eq!(current(store, "web-0").await, None);
    let revision = store.commit(of(PUTS_MAX - 2)).await.expect("it's within the bound");
    assert_eq!(current(store, "web-117").await.map(|o| o.revision), Some(revision));
}

pub async fn too_many_bytes_are_refused(setup: Setup) {
    let store = &*setup.store;
    let of = |bytes: usize| {
        let mut large = resource("large");
        large.spec.as_mut().expect("it has one").value = vec![7; bytes];
        writes([put(large, Revision::ZERO)])
    };
    let refused = store.commit(of(TRANSACTION_BYTES_MAX)).await;
    assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    assert_eq!(current(store, "large").await, None);
    store.commit(of(TRANSACTION_BYTES_MAX - 1024)).await.expect("it's within the bound");
    let stored = current(store, "large").await.expect("it was written").resource().expect("it decodes");
    assert_eq!(stored.spec.map(|spec| spec.value.len()), Some(TRANSACTION_BYTES_MAX - 1024));
}

pub async fn revisions_grow_and_head_counts_commits(setup: Setup) {
    let store = &*setup.store;
    let mut before = store.head().await.expect("head is read");
    assert_eq!(before.commits, 0);
    for n in 0..10 {
        let revision = create(store, &format!("web-{n}")).await;
        let head = store.head().await.expect("head is read");
        assert_eq!((head.revision, head.commits), (revision, before.commits + 1));
        assert!(head.revision > before.revision);
        before = head;
    }
    let (a, b) = (put(resource("a"), Revision::ZERO), put(resource("b"), Revision::ZERO));
    store.commit(writes([a, b])).await.expect("both are free");
    assert_eq!(store.head().await.expect("head is read").commits, before.commits + 1, "one transaction, one commit");
}

pub async fn a_read_after_a_commit_sees_it(setup: Setup) {
    let mut tasks = JoinSet::new();
    for n in 0..16 {
        let store = setup.store.clone();
        tasks.spawn(async move {
            let name = format!("web-{n}");
            let revision = create(&*store, &name).await;
            assert!(store.head().await.expect("head is read").revision >= revision);
            assert_eq!(current(&*store, &name).await.map(|o| o.revision), Some(revision));
            let page = store.list(crate::List::default()).await.expect("it lists");
            assert!(page.revision >= revision && page.objects.iter().any(|o| o.key == key(&name)));
        });
    }
    tasks.join_all().await;
}

/// Reads, adds one, and writes over what it read, until that succeeds.
async fn increment(store: &dyn Store) -> Revision {
    loop {
        let object = current(store, "counter").await.expect("it exists");
        let mut resource = object.resource().expect("it decodes");
        let spec = resource.spec.as_mut().expect("it has one");
        let count = u64::decode(spec.value.as_slice()).expect("a number");
        spec.value = (count + 1).encode_to_vec();
        match store.commit(writes([put(resource, object.revision)])).await {
            Ok(revision) => return revision,
            conflict => assert_conflict(conflict, &key("counter")),
        }
    }
}

pub async fn of_concurrent_writers_one_wins_each_revision(setup: Setup) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 10;
    let mut counter = resource("counter");
    counter.spec.as_mut().expect("it has one").value = 0_u64.encode_to_vec();
    setup.store.commit(writes([put(counter, Revision::ZERO)])).await.expect("it's free");
    let mut tasks = JoinSet::new();
    for _ in 0..WRITERS {
        let store = setup.store.clone();
        tasks.spawn(async move {
            for _ in 0..EACH {
                increment(&*store).await;
            }
        });
    }
    tasks.join_all().await;
    let counted = current(&*setup.store, "counter").await.expect("it exists").resource().expect("it decodes");
    let counted = u64::decode(counted.spec.expect("it has one").value.as_slice());
    assert_eq!(counted, Ok(WRITERS * EACH), "no increment was lost");
}

pub async fn concurrent_commits_each_have_their_own_revision(setup: Setup) {
    let names: Vec<String> = (0..64).map(|n| format!("web-{n}")).collect();
    let mut revisions = join_all(names.iter().map(|name| create(&*setup.store, name))).await;
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), 64);
    let head = setup.store.head().await.expect("head is read");
    assert_eq!((head.commits, Some(&head.revision)), (64, revisions.last()));
}
