use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::pending};
use model::Revision;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    Error, Faults, Faulty, Memory, Store, Transaction, WatchItem, WatchOptions, WatchStream,
    conformance::{create, current, put, resource},
};

/// Without faults it is a store like the one it wraps.
mod conforms {
    use super::*;
    use crate::conformance::Setup;

    fn setup() -> Setup {
        let memory = Arc::new(Memory::default());
        let faulty = Arc::new(Faulty::new(memory.clone() as Arc<dyn Store>, Faults::new()));
        let compact = move || {
            memory.compact();
            std::future::ready(())
        };
        Setup::new(faulty, Duration::from_secs(1), compact)
    }

    crate::conformance!(async { setup() });
}

/// A faulty store, the one below, and the handle.
fn faulty() -> (Arc<Faulty<Memory>>, Arc<Memory>, Faults) {
    let (memory, faults) = (Arc::new(Memory::default()), Faults::new());
    (Arc::new(Faulty::new(memory.clone(), faults.clone())), memory, faults)
}

fn creating(name: &str) -> Transaction {
    Transaction { writes: vec![put(resource(name), Revision::ZERO)], ..Transaction::default() }
}

/// A watch after its snapshot of nothing.
async fn watch(store: &dyn Store) -> WatchStream {
    let mut watch = store.watch(WatchOptions::default()).await.unwrap();
    while !matches!(watch.next().await, Some(Ok(WatchItem::SnapshotEnd { .. }))) {}
    watch
}

/// The names in the groups that are there by now.
fn told(watch: &mut WatchStream) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(Some(Ok(WatchItem::Changes(group)))) = watch.next().now_or_never() {
        names.extend(group.changes.iter().map(|change| change.key().name().to_owned()));
    }
    names
}

#[tokio::test]
async fn an_acknowledgement_is_lost_after_the_commit() {
    let (store, memory, faults) = faulty();
    faults.lose_acknowledgements(1);
    assert!(matches!(store.commit(creating("a")).await, Err(Error::OutcomeUnknown(_))));
    assert!(current(&*memory, "a").await.is_some());
    // A refused commit has nothing to lose, so the count is for those that succeed.
    faults.lose_acknowledgements(1);
    assert!(matches!(store.commit(creating("a")).await, Err(Error::Conflict { .. })));
    assert!(matches!(store.commit(creating("b")).await, Err(Error::OutcomeUnknown(_))));
    create(&*store, "c").await;
    assert_eq!((faults.counts().commits, faults.counts().acknowledgements_lost), (4, 2));
}

#[tokio::test]
async fn a_refused_commit_does_nothing() {
    let (store, memory, faults) = faulty();
    faults.refuse_commits(2);
    for _ in 0..2 {
        assert!(matches!(store.commit(creating("a")).await, Err(Error::Unavailable(_))));
        assert_eq!(current(&*memory, "a").await, None);
    }
    create(&*store, "a").await;
    assert_eq!(faults.counts().refused, 2);
}

#[tokio::test]
async fn every_third_commit_meets_a_conflict() {
    let (store, memory, faults) = faulty();
    faults.conflict_every(Some(3));
    for n in 1..=9 {
        let outcome = store.commit(creating(&format!("web-{n}"))).await;
        let conflict = matches!(outcome, Err(Error::Conflict { key, .. }) if key.name() == format!("web-{n}"));
        assert_eq!(conflict, n % 3 == 0, "commit {n}");
    }
    assert_eq!((memory.head().await.unwrap().commits, faults.counts().conflicts), (6, 3));
}

#[tokio::test]
async fn a_writer_can_die_before_or_after_its_commit() {
    let (store, memory, faults) = faulty();
    faults.on_before_commit(|number, _| if number == 1 { pending().boxed() } else { async {}.boxed() });
    faults.on_after_commit(|number, outcome| {
        assert!(outcome.is_ok());
        if number == 2 { pending().boxed() } else { async {}.boxed() }
    });
    assert!(store.commit(creating("before")).now_or_never().is_none());
    assert_eq!(current(&*memory, "before").await, None);
    assert!(store.commit(creating("after")).now_or_never().is_none());
    assert!(current(&*memory, "after").await.is_some());
    create(&*store, "alive").await;
}

#[tokio::test]
async fn a_held_write_arrives_late() {
    let (store, memory, faults) = faulty();
    let (release, held) = oneshot::channel::<()>();
    let held = Mutex::new(Some(held));
    faults.on_before_commit(move |_, _| match held.lock().unwrap().take() {
        Some(held) => held.map(|_| ()).boxed(),
        None => async {}.boxed(),
    });
    let zombie = tokio::spawn(async move { store.commit(creating("web")).await });
    // Whether it is held yet or not, this one comes first.
    create(&*memory, "web").await;
    release.send(()).unwrap();
    assert!(matches!(zombie.await.unwrap(), Err(Error::Conflict { .. })));
}

#[tokio::test]
async fn changes_are_lost_by_predicate_or_all() {
    let (store, _, faults) = faulty();
    let mut watch = watch(&*store).await;
    faults.lose_changes(|change| change.key().name() == "b");
    let both = vec![put(resource("b"), Revision::ZERO), put(resource("c"), Revision::ZERO)];
    create(&*store, "a").await;
    store.commit(Transaction { writes: both, ..Transaction::default() }).await.unwrap();
    assert_eq!(told(&mut watch), ["a", "c"]);
    faults.lose_all_changes();
    create(&*store, "d").await;
    assert_eq!(told(&mut watch), [""; 0]);
    faults.heal();
    create(&*store, "e").await;
    assert_eq!(told(&mut watch), ["e"], "what was lost stays lost");
    assert_eq!(faults.counts().changes_lost, 2);
}

#[tokio::test]
async fn bookmarks_are_lost() {
    let (store, _, faults) = faulty();
    let revision = create(&*store, "a").await;
    faults.lose_bookmarks(true);
    let options = WatchOptions { min_revision: revision, ..WatchOptions::default() };
    let mut watch = store.watch(options).await.unwrap();
    let mut items = Vec::new();
    while let Some(item) = watch.next().now_or_never() {
        items.push(item.unwrap().unwrap());
    }
    assert!(matches!(items.last(), Some(WatchItem::SnapshotEnd { .. })), "{items:?}");
    assert_eq!(faults.counts().bookmarks_lost, 1);
}

#[tokio::test]
async fn groups_are_repeated_and_altered() {
    let (store, _, faults) = faulty();
    let mut watch = watch(&*store).await;
    faults.repeat_groups(true);
    create(&*store, "a").await;
    assert_eq!(told(&mut watch), ["a", "a"]);
    faults.repeat_groups(false);
    faults.alter_changes(|object| (object.key.name() == "c").then(|| "nonsense".into()));
    create(&*store, "b").await;
    create(&*store, "c").await;
    let mut bytes = Vec::new();
    while let Some(Some(Ok(WatchItem::Changes(group)))) = watch.next().now_or_never() {
        bytes.extend(group.changes.into_iter().map(|change| match change {
            crate::Change::Put(object) => object.bytes,
            deleted => panic!("{deleted:?}"),
        }));
    }
    assert_eq!(bytes, [current(&*store, "b").await.unwrap().bytes, "nonsense".into()]);
    assert_eq!((faults.counts().groups_repeated, faults.counts().changes_altered), (1, 1));
}

#[tokio::test]
async fn a_stalled_watch_goes_on_where_it_was() {
    let (store, _, faults) = faulty();
    let mut watch = watch(&*store).await;
    faults.stall_watches(true);
    create(&*store, "a").await;
    create(&*store, "b").await;
    assert_eq!(told(&mut watch), [""; 0]);
    faults.stall_watches(false);
    let first = watch.next().await.unwrap().unwrap();
    assert!(matches!(first, WatchItem::Changes(group) if group.changes[0].key().name() == "a"));
    assert_eq!(told(&mut watch), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_watch_is_late() {
    let (store, _, faults) = faulty();
    let mut watch = watch(&*store).await;
    faults.delay_watches(Duration::from_secs(3));
    let started = Instant::now();
    create(&*store, "a").await;
    assert!(watch.next().await.unwrap().is_ok());
    assert_eq!(started.elapsed().as_secs(), 3);
}

#[tokio::test]
async fn a_cut_connection_fails_calls_and_ends_streams() {
    let (store, _, faults) = faulty();
    let mut watch = watch(&*store).await;
    let mut coordination = store.coordination().await.unwrap();
    coordination.next().await.unwrap().unwrap();
    faults.cut(true);
    assert!(watch.next().await.unwrap().is_err());
    assert!(watch.next().await.is_none());
    assert!(coordination.next().await.unwrap().is_err());
    assert!(coordination.next().await.is_none());
    assert!(matches!(store.commit(creating("a")).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.head().await, Err(Error::Unavailable(_))));
    assert_eq!((faults.counts().cut_off, faults.counts().commits), (4, 0));
    faults.cut(false);
    create(&*store, "a").await;
}
