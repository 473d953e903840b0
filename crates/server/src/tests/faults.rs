//! A store that lies, hangs or goes away, and what the server makes of it. The clock is paused: waiting costs nothing.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use model::{Key, Object, Revision};
use store::{Api, Change, Error, Faults, Faulty, List, Memory, ResumeToken, Store, WatchItem, WatchOptions};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::fixtures::*;
use crate::{Config, Readiness, Server, confirm::STALL_MAX};

struct Setup {
    server: Arc<Server>,
    faults: Faults,
    backend: Arc<Memory>,
}

async fn setup() -> Setup {
    let faults = Faults::new();
    let backend = Arc::new(Memory::default());
    let faulty = Arc::new(Faulty::new(backend.clone(), faults.clone()));
    let config = Config { audit_every: Duration::from_secs(60), ..config("s1") };
    let server = Arc::new(Server::start(config, faulty).await.unwrap());
    server.ready().await;
    Setup { server, faults, backend }
}

async fn names(store: &dyn Store) -> Vec<String> {
    let list = List { filter: model::Filter::kind("Service"), ..List::default() };
    store.list(list).await.unwrap().objects.iter().map(|object| object.key.name().to_owned()).collect()
}

/// Everything that the watch tells until it has told of that service.
async fn until(watch: &mut Watch, name: &str) -> Vec<store::Group> {
    let mut groups = Vec::new();
    loop {
        let group = watch.group().await;
        let found = group.changes.iter().any(|change| change.key().name() == name);
        groups.push(group);
        if found {
            return groups;
        }
    }
}

/// Until the watch has lost something.
async fn until_lost(faults: &Faults) {
    while faults.counts().changes_lost == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_is_found_by_the_next_commit_and_healed() {
    let Setup { server, faults, backend } = setup().await;
    let other = over(backend).await;
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    watch.snapshot().await;
    faults.lose_changes(|change| change.key().name() == "lost");
    let lost = metadata(&declare(&server, "lost").await);
    until_lost(&faults).await;
    faults.heal();
    declare(&other, "next").await;
    let groups = until(&mut watch, "next").await;
    let told = groups.iter().flat_map(|group| &group.changes).map(|change| change.key().name());
    assert_eq!(told.collect::<Vec<_>>(), ["lost", "next"], "in one group, or in order");
    assert!(groups[0].coalesced, "what a relist finds is one coalesced group");
    let Change::Put(object) = &groups[0].changes[0] else { panic!("it exists") };
    assert_eq!(object.revision, Revision(lost.revision));
    assert_eq!(server.counters().head_gaps.get(), 1);
    assert_eq!(names(server.as_ref()).await, ["lost", "next"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_lost_out_of_a_transaction_is_found_at_once() {
    let Setup { server, faults, .. } = setup().await;
    faults.lose_changes(|change| change.key().name() == "lost");
    let both = request([declared("kept", &spec(1)), declared("lost", &spec(1))]);
    store::Api::apply(server.as_ref(), &caller(), both).await.unwrap();
    assert_eq!(names(server.as_ref()).await, ["kept", "lost"], "the count of writes told");
    assert_eq!(server.counters().head_gaps.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_is_found_without_another_commit() {
    let Setup { server, faults, .. } = setup().await;
    faults.lose_all_changes();
    declare(&server, "lost").await;
    let began = Instant::now();
    assert_eq!(names(server.as_ref()).await, ["lost"], "the head was read, and wasn't reached");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(server.counters().stalls.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_altered_event_is_found_by_the_audit() {
    let Setup { server, faults, .. } = setup().await;
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    watch.snapshot().await;
    faults.alter_changes(|object: &Object| {
        let mut resource = object.resource().unwrap();
        resource.metadata.as_mut()?.labels.insert("altered".into(), "yes".into());
        Some(Object::encode(resource))
    });
    let right = declare(&server, "web").await;
    assert_ne!(get(&server, &web()).await, right);
    faults.heal();
    // The cached record contradicts the store until the audit has come by.
    watch.group().await;
    let repaired = watch.group().await;
    let [Change::Put(object)] = repaired.changes.as_slice() else { panic!("one record was wrong") };
    assert_eq!(object.resource().unwrap(), right);
    assert_eq!(get(&server, &web()).await, right);
    assert_eq!((server.counters().audit_differences.get(), server.counters().healed.get()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn repeated_events_are_told_once() {
    let Setup { server, faults, .. } = setup().await;
    faults.repeat_groups(true);
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    let (_, revision) = watch.snapshot().await;
    let first = Revision(metadata(&declare(&server, "one").await).revision);
    let second = Revision(metadata(&declare(&server, "two").await).revision);
    let told = [watch.group().await, watch.group().await].map(|group| (group.from, group.to));
    assert_eq!(told, [(revision, first), (first, second)]);
    assert_eq!(server.counters().head_gaps.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_makes_the_server_stale_and_ends_its_watches() {
    let Setup { server, faults, .. } = setup().await;
    let mut readiness = server.readiness();
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    watch.snapshot().await;
    faults.cut(true);
    let began = Instant::now();
    let WatchItem::End { reason, .. } = watch.next().await else { panic!("nothing else can happen") };
    assert_eq!(reason, "STORE_STALE");
    assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(*readiness.borrow_and_update(), Readiness::Stale);
    assert!(message(server.get(&web()).await).contains("STORE_STALE"));
    faults.cut(false);
    readiness.wait_for(|readiness| *readiness == Readiness::Ready).await.unwrap();
    declare(&server, "web").await;
    assert_eq!(names(server.as_ref()).await, ["web"]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_not_waited_for_longer_than_its_store() {
    let Setup { server, faults, .. } = setup().await;
    let sent = Arc::new(Notify::new());
    let told = sent.clone();
    faults.on_before_commit(move |_, _| {
        told.notify_one();
        std::future::pending().boxed()
    });
    let declaring = tokio::spawn(async move { server.apply(&caller(), request([declared("web", &spec(1))])).await });
    sent.notified().await;
    let began = Instant::now();
    faults.cut(true);
    let answer = declaring.await.unwrap();
    assert!(matches!(answer, Err(Error::OutcomeUnknown(_))), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_hangs_makes_the_server_stale_though_heads_can_be_read() {
    let Setup { server, faults, backend } = setup().await;
    faults.stall_watches(true);
    // From another server.
    let other = Server::start(config("s2"), backend).await.unwrap();
    other.ready().await;
    let declared = declare(&other, "web").await;
    let mut readiness = server.readiness();
    readiness.wait_for(|readiness| *readiness == Readiness::Stale).await.unwrap();
    assert!(server.counters().stalls.get() >= 1, "it listed anew before it gave up");
    faults.stall_watches(false);
    readiness.wait_for(|readiness| *readiness == Readiness::Ready).await.unwrap();
    assert_eq!(get(&server, &web()).await, declared);
}

/// As of a large store, over a slow connection.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_takes_long_is_taken_all_the_same() {
    let Setup { server, faults, backend } = setup().await;
    let other = over(backend).await;
    faults.lose_changes(|change| change.key().name() == "lost");
    let lost = Key::of(&metadata(&declare(&other, "lost").await));
    until_lost(&faults).await;
    faults.heal();
    // Three parts and more, each a moment less than what a stall is.
    faults.delay_watches(STALL_MAX - Duration::from_millis(100));
    let found = async {
        while !matches!(server.get(&lost).await, Ok(Some(_))) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), found).await.expect("a snapshot came to its end");
}

/// It would go on answering from a cache that nobody feeds.
#[tokio::test(start_paused = true)]
async fn a_server_of_which_a_part_panicked_answers_nothing() {
    let Setup { server, faults, .. } = setup().await;
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    watch.snapshot().await;
    faults.alter_changes(|_| panic!("whoever feeds the cache does so"));
    declare(&server, "web").await;
    server.readiness().wait_for(|readiness| *readiness == Readiness::Broken).await.unwrap();
    let WatchItem::End { reason, .. } = watch.next().await else { panic!("nothing was told") };
    assert_eq!(reason, "SERVER_BROKEN");
    assert!(message(server.get(&web()).await).contains("SERVER_BROKEN"));
    timeout(Duration::from_secs(1), server.broken()).await.expect("whoever runs it is told");
}

/// Nothing would be compacted any more, or nobody would notice that a watch lies.
#[tokio::test(start_paused = true)]
async fn a_server_whose_store_misses_a_part_answers_nothing() {
    let Setup { server, faults, .. } = setup().await;
    faults.break_store();
    timeout(Duration::from_secs(1), server.broken()).await.expect("whoever runs it is told");
    assert!(message(server.get(&web()).await).contains("SERVER_BROKEN"));
    let why = server.check()().expect_err("it isn't ready");
    assert!(why.contains("of its store panicked"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_token_from_beyond_the_head_proves_a_restore() {
    let Setup { server, .. } = setup().await;
    let incarnation = server.cluster().await.unwrap().incarnation;
    let head = server.head().await.unwrap().revision;
    let beyond = Revision(head.0 + 1);
    let list = List { min_revision: beyond, ..List::default() };
    assert!(message(server.list(list).await).contains("STORE_ROLLED_BACK"));
    assert_eq!(*server.readiness().borrow(), Readiness::Ready, "a number alone proves nothing");
    let resume = Some(ResumeToken { incarnation, revision: beyond });
    let opened = server.watch(WatchOptions { resume, ..Default::default() }).await.map(drop);
    assert!(message(opened).contains("STORE_ROLLED_BACK"));
    assert_eq!(*server.readiness().borrow(), Readiness::RolledBack);
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_incarnation_is_answered_by_a_snapshot() {
    let Setup { server, .. } = setup().await;
    let resume = Some(ResumeToken { incarnation: "another".into(), revision: Revision(1_000) });
    let mut watch = Watch::open(server.as_ref(), WatchOptions { resume, ..Default::default() }).await;
    let (objects, _) = watch.snapshot().await;
    assert_eq!(
        objects.iter().map(|object| object.key.clone()).collect::<Vec<_>>(),
        [Key::new("Placement", "", "default")]
    );
}

#[tokio::test(start_paused = true)]
async fn a_conflict_with_somebody_elses_write_is_tried_again() {
    let Setup { server, faults, .. } = setup().await;
    declare(&server, "web").await;
    faults.conflict_every(Some(2));
    for replicas in 2..6 {
        store::Api::apply(server.as_ref(), &caller(), request([declared("web", &spec(replicas))])).await.unwrap();
    }
    assert!(server.counters().retries.get() >= 1);
    assert_eq!(metadata(&get(&server, &web()).await).generation, 5);
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_on_another_server() {
    let Setup { server, backend, .. } = setup().await;
    let other = Server::start(config("s2"), backend).await.unwrap();
    other.ready().await;
    let first = Revision(metadata(&declare(&server, "one").await).revision);
    // The other one must have seen it before what follows, or it would have nothing to resume from.
    let _ = get(&other, &Key::new("Service", "default", "one")).await;
    let second = Revision(metadata(&declare(&server, "two").await).revision);
    let incarnation = server.cluster().await.unwrap().incarnation;
    let resume = Some(ResumeToken { incarnation, revision: first });
    let mut watch = Watch::open(&other, WatchOptions { resume, ..Default::default() }).await;
    let group = watch.group().await;
    assert_eq!((group.from, group.to), (first, second));
}
