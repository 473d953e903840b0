//! Three members of which one dies, stops, or leads no more: nothing acknowledged is lost, and it goes on in time.

use std::time::Duration;

use api::v1;
use driftless_store_etcd::testing::{Etcd, Setup};
use model::{Epoch, Revision};
use store::{
    ClaimChange, Error, Store,
    conformance::{Coordinated, Reader},
};
use tokio::time::Instant;

use crate::support::{key, open, session, status, until, write, write_until_done};

async fn three() -> Etcd {
    Etcd::start_with(3, Setup::default()).await
}

/// Its endpoints, that one first: it's the one in use.
fn using(etcd: &Etcd, first: usize) -> driftless_store_etcd::Options {
    let mut options = etcd.options();
    options.endpoints.rotate_left(first);
    options
}

#[tokio::test]
async fn a_dead_follower_is_passed_over_within_a_second() {
    let mut etcd = three().await;
    let used = (etcd.leader().await + 1) % 3;
    let store = open(using(&etcd, used));
    write_until_done(&store, "before").await;
    let mut reader = Reader::with_snapshot(&*store).await;
    etcd.members[used].kill();
    let killed = Instant::now();
    let after = write_until_done(&store, "after").await;
    let written = killed.elapsed();
    reader.until(after).await;
    let told = killed.elapsed();
    assert!(told < Duration::from_secs(1), "written after {written:?}, told after {told:?}");
    assert_eq!(store.counts().lies(), 0);
    assert!(store.counts().failovers >= 1);
}

#[tokio::test]
async fn a_dead_leader_costs_an_election_and_nothing_acknowledged() {
    let mut etcd = three().await;
    let leader = etcd.leader().await;
    let store = open(using(&etcd, leader));
    let mut reader = Reader::with_snapshot(&*store).await;
    let mut acknowledged = Vec::new();
    for n in 0..20 {
        let name = format!("s{n}");
        acknowledged.push((write_until_done(&store, &name).await, name));
        if n == 10 {
            etcd.members[leader].kill();
        }
    }
    let (last, _) = acknowledged.last().expect("some were written");
    reader.until(*last).await;
    for (revision, name) in &acknowledged {
        let object = store.get(&key(name)).await.expect("it's read");
        assert_eq!(object.map(|o| o.revision), Some(*revision), "{name}");
        assert_eq!(reader.world[&key(name)].revision, *revision, "{name}");
    }
    assert_eq!(store.counts().lies(), 0);
    etcd.restart(leader).await;
    let after = write_until_done(&store, "after").await;
    reader.until(after).await;
}

#[tokio::test]
async fn sessions_and_claims_outlive_the_leader() {
    let mut etcd = three().await;
    let leader = etcd.leader().await;
    let store = open(using(&etcd, leader));
    store.open_session(session("s1")).await.expect("it opens");
    let mut members = Coordinated::open(&*store).await;
    members.until(|state| state.members.len() == 1).await;
    etcd.members[leader].kill();
    until("a beat is taken", || async { store.beat("s1", None).await.is_ok() }).await;
    let take = ClaimChange {
        name: "leader".into(),
        expected_owner: String::new(),
        expected_epoch: Epoch(0),
        owner: "s1".into(),
        owner_must_be_dead: true,
    };
    // A busy machine may elect once more. After an unknown outcome it's refused where it came true: nobody else asks.
    until("the claim is taken", || async {
        matches!(store.change_claim(take.clone()).await, Ok(_) | Err(Error::ClaimConflict { .. }))
    })
    .await;
    let taken = |claim: &v1::Claim| (claim.name.as_str(), claim.owner.as_str(), claim.epoch) == ("leader", "s1", 1);
    let state = members.until(|state| state.claims.len() == 1 && state.claims.iter().all(taken)).await;
    assert_eq!(state.members.len(), 1);
    write_until_done(&store, "a").await;
}

#[tokio::test]
async fn a_member_that_stands_still_is_passed_over() {
    let etcd = three().await;
    let used = (etcd.leader().await + 1) % 3;
    let store = open(using(&etcd, used));
    write_until_done(&store, "before").await;
    let mut reader = Reader::with_snapshot(&*store).await;
    etcd.members[used].pause();
    let paused = Instant::now();
    store.get(&key("before")).await.expect("a read goes elsewhere");
    let read = paused.elapsed();
    let after = write_until_done(&store, "after").await;
    reader.until(after).await;
    let told = paused.elapsed();
    etcd.members[used].resume();
    assert!(told < Duration::from_secs(3), "read after {read:?}, told after {told:?}");
    assert_eq!(store.counts().lies(), 0);
}

#[tokio::test]
async fn without_a_quorum_nothing_is_acknowledged() {
    let mut etcd = three().await;
    let store = open(etcd.options());
    write_until_done(&store, "before").await;
    let mut reader = Reader::with_snapshot(&*store).await;
    for dead in [1, 2] {
        etcd.members[dead].kill();
    }
    let asked = Instant::now();
    let read = store.head().await;
    assert!(matches!(read, Err(Error::Unavailable(_))), "{read:?}");
    let written = write(&store, "lost", Revision::ZERO).await;
    assert!(matches!(written, Err(Error::Unavailable(_) | Error::OutcomeUnknown(_))), "{written:?}");
    // Each within its own, on a machine that may be busy.
    let deadline = 2 * store_deadline() + Duration::from_secs(5);
    assert!(asked.elapsed() < deadline, "both answers after {:?}", asked.elapsed());
    for dead in [1, 2] {
        etcd.members[dead].kill(); // Still dead; `restart` waits for health, which takes two.
    }
    let (one, rest) = etcd.members.split_at_mut(1);
    assert!(!one[0].has_exited());
    rest.iter_mut().for_each(|member| member.spawn());
    until("a quorum answers", || async { store.head().await.is_ok() }).await;
    let after = write_until_done(&store, "after").await;
    reader.until(after).await;
    assert_eq!(store.counts().lies(), 0);
}

fn store_deadline() -> Duration {
    driftless_store_etcd::DEADLINE_DEFAULT
}

#[tokio::test]
async fn it_says_what_it_found() {
    let mut etcd = three().await;
    let store = open(etcd.options());
    let told = status(&store, 3).await;
    assert_eq!((told.down.len(), told.alarms.len()), (0, 0));
    assert_eq!(told.members.iter().filter(|m| m.is_leader).count(), 1);
    assert!(told.members.iter().all(|m| m.version.starts_with("3.") && m.db_bytes > 0 && m.used_percent() < 10));
    let follower = told.members.iter().position(|m| !m.is_leader).expect("two follow");
    etcd.members[follower].kill();
    let told = status(&store, 2).await;
    assert_eq!(told.down.len(), 1);
    assert_eq!(told.down[0].0, etcd.endpoints()[follower]);
}
