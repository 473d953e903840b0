//! Sessions: who is alive, by the store's clock alone.

use api::v1;
use model::{Fence, Revision};
use tokio::time::{Instant, sleep};

use super::{Coordinated, Setup, create, current, fixtures::writes, put, resource};
use crate::{Error, Result, SessionOpen, Transaction};

pub(super) fn open(setup: &Setup, session: &str, server: &str) -> SessionOpen {
    SessionOpen {
        session: session.into(),
        role: "controller".into(),
        name: format!("name-of-{session}"),
        server: server.into(),
        server_address: format!("{server}.example:7400"),
        // Long enough that only a session that nobody renews for good runs out.
        ttl: setup.ttl.max(super::PATIENCE),
        machine_id: String::new(),
    }
}

/// As long as the backend lets it be short.
fn open_briefly(setup: &Setup, session: &str) -> SessionOpen {
    SessionOpen { ttl: setup.ttl, ..open(setup, session, "s1") }
}

#[track_caller]
fn assert_ended<T: std::fmt::Debug>(outcome: Result<T>, session: &str) {
    match outcome {
        Err(Error::SessionEnded(ended)) if ended == session => {}
        other => panic!("{session} has ended, so not {other:?}"),
    }
}

pub async fn attach_numbers_grow(setup: Setup) {
    let store = &*setup.store;
    assert_eq!(store.open_session(open(&setup, "a", "s1")).await, Ok(1));
    assert_eq!(store.open_session(open(&setup, "a", "s2")).await, Ok(2));
    assert_eq!(store.open_session(open(&setup, "b", "s1")).await, Ok(1));
    assert_eq!(store.open_session(open(&setup, "a", "s1")).await, Ok(3));
}

pub async fn an_open_session_is_shown_with_what_it_says(setup: Setup) {
    let store = &*setup.store;
    let mut shown = Coordinated::open(store).await;
    let first = shown.next().await;
    assert_eq!((first.members.len(), first.claims.len()), (0, 0));
    assert_eq!(first.shards, store.cluster().await.expect("the cluster is known").shards);

    store.open_session(open(&setup, "a", "s1")).await.expect("it opens");
    let opened = v1::Member {
        session: "a".into(),
        role: "controller".into(),
        name: "name-of-a".into(),
        server: "s1".into(),
        attach: 1,
        report: None,
        server_address: "s1.example:7400".into(),
    };
    shown.until(|c| c.members == [opened.clone()]).await;

    let report = v1::MemberReport { ready: true, warm: vec!["shard-1".into()], ..v1::MemberReport::default() };
    store.beat("a", Some(report.clone())).await.expect("it's alive");
    let reported = v1::Member { report: Some(report), ..opened };
    shown.until(|c| c.members == [reported.clone()]).await;

    store.open_session(open(&setup, "a", "s2")).await.expect("it attaches");
    let server_address = "s2.example:7400".into();
    let attached = v1::Member { server: "s2".into(), server_address, attach: 2, ..reported };
    shown.until(|c| c.members == [attached.clone()]).await;
    Coordinated::open(store).await.until(|c| c.members == [attached.clone()]).await;
}

pub async fn a_beat_renews(setup: Setup) {
    let began = Instant::now();
    for n in 0.. {
        if outlives_by_beats(&setup, &format!("a{n}")).await {
            return;
        }
        // A machine that stood still for as long as the session lives proves nothing.
        assert!(began.elapsed() < super::PATIENCE, "this machine is too slow to tell");
    }
}

/// Beats for twice as long as the session lives without. False: it ended, and had a right to.
async fn outlives_by_beats(setup: &Setup, session: &str) -> bool {
    let store = &*setup.store;
    let mut renewed = Instant::now();
    store.open_session(open_briefly(setup, session)).await.expect("it opens");
    let opened = Instant::now();
    while opened.elapsed() < setup.ttl * 2 {
        sleep(setup.ttl / 5).await;
        let beaten = Instant::now();
        if let Err(error) = store.beat(session, None).await {
            assert!(renewed.elapsed() >= setup.ttl, "it ended within its time to live: {error}");
            assert_eq!(error, Error::SessionEnded(session.into()));
            return false;
        }
        renewed = beaten;
    }
    true
}

pub async fn without_beats_the_store_ends_it(setup: Setup) {
    let store = &*setup.store;
    let before = Instant::now();
    store.open_session(open_briefly(&setup, "a")).await.expect("it opens");
    store.open_session(open(&setup, "b", "s1")).await.expect("it opens");
    let mut shown = Coordinated::open(store).await;
    // Where the second one shows, the first was opened; on a slow machine it's gone again before anybody looks.
    let names = |c: &v1::Coordination| c.members.iter().map(|m| m.session.clone()).collect::<Vec<_>>();
    shown.until(|c| names(c) == ["b"]).await;
    assert!(before.elapsed() >= setup.ttl, "not before its time");
    assert_ended(store.beat("a", None).await, "a");
    assert_ended(store.open_session(open(&setup, "a", "s1")).await, "a");
    assert_eq!(store.end_session("a", None).await, Ok(false));
}

pub async fn an_ended_session_cannot_be_opened_again(setup: Setup) {
    let store = &*setup.store;
    assert_ended(store.beat("a", None).await, "a");
    store.open_session(open(&setup, "a", "s1")).await.expect("it opens");
    assert_eq!(store.end_session("a", None).await, Ok(true));
    assert_ended(store.beat("a", None).await, "a");
    assert_ended(store.open_session(open(&setup, "a", "s1")).await, "a");
    Coordinated::open(store).await.until_gone("a").await;
}

pub async fn ending_compares_the_attach_number(setup: Setup) {
    let store = &*setup.store;
    store.open_session(open(&setup, "a", "s1")).await.expect("it opens");
    store.open_session(open(&setup, "a", "s2")).await.expect("it attaches");
    assert_eq!(store.end_session("a", Some(1)).await, Ok(false), "it moved on");
    store.beat("a", None).await.expect("it's alive");
    assert_eq!(store.end_session("a", Some(2)).await, Ok(true));
    assert_ended(store.beat("a", None).await, "a");
    assert_eq!(store.end_session("a", Some(2)).await, Ok(false), "it's over already");
    assert_eq!(store.end_session("never opened", None).await, Ok(false));
}

pub async fn a_fence_by_session_holds(setup: Setup) {
    let store = &*setup.store;
    let under = |attach: u64, name: &str| Transaction {
        fence: Some(Fence::Session { session: "a".into(), attach }),
        ..writes([put(resource(name), Revision::ZERO)])
    };
    let assert_fenced = |outcome: Result<Revision>| assert!(matches!(outcome, Err(Error::Fenced(_))), "{outcome:?}");
    assert_fenced(store.commit(under(1, "early")).await);
    store.open_session(open(&setup, "a", "s1")).await.expect("it opens");
    store.commit(under(1, "first")).await.expect("it's attached so");
    store.open_session(open(&setup, "a", "s2")).await.expect("it attaches");
    assert_fenced(store.commit(under(1, "late")).await);
    store.commit(under(2, "second")).await.expect("it's attached so");
    store.end_session("a", None).await.expect("it ends");
    assert_fenced(store.commit(under(2, "late")).await);
    assert_eq!(current(store, "early").await, None);
    assert_eq!(current(store, "late").await, None);
    create(store, "late").await;
}
