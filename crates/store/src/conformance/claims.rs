//! Claims: who owns what, and that nobody else can write under it.

use api::v1;
use futures::future::join_all;
use model::{Epoch, Fence, Revision};

use super::{Coordinated, Reader, Setup, create, current, fixtures::writes, put, resource, sessions::open};
use crate::{ClaimChange, Error, Result, Store, Transaction};

async fn alive(setup: &Setup, sessions: &[&str]) {
    for session in sessions {
        setup.store.open_session(open(setup, session, "s1")).await.expect("it opens");
    }
}

fn change(from: (&str, u64), to: &str, owner_must_be_dead: bool) -> ClaimChange {
    ClaimChange {
        name: "shard-1".into(),
        expected_owner: from.0.into(),
        expected_epoch: Epoch(from.1),
        owner: to.into(),
        owner_must_be_dead,
    }
}

fn take(from: (&str, u64), to: &str) -> ClaimChange {
    change(from, to, true)
}

fn hand_over(from: (&str, u64), to: &str) -> ClaimChange {
    change(from, to, false)
}

#[track_caller]
fn assert_refused(outcome: Result<v1::Claim>) {
    match outcome {
        Err(Error::ClaimConflict { claim, .. }) if claim == "shard-1" => {}
        other => panic!("the claim shouldn't change hands so: {other:?}"),
    }
}

/// Owner and epoch, as the coordination stream shows them.
async fn owner(store: &dyn Store) -> Option<(String, u64)> {
    let state = Coordinated::open(store).await.next().await;
    state.claims.iter().find(|c| c.name == "shard-1").map(|c| (c.owner.clone(), c.epoch))
}

pub async fn an_absent_claim_is_nobodys_at_epoch_zero(setup: Setup) {
    let store = &*setup.store;
    alive(&setup, &["a"]).await;
    assert_refused(store.change_claim(take(("", 1), "a")).await);
    assert_refused(store.change_claim(take(("z", 0), "a")).await);
    let before = create(store, "web").await;
    let claim = store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    assert_eq!((claim.name.as_str(), claim.owner.as_str(), claim.epoch), ("shard-1", "a", 1));
    assert!(claim.revision > before.0);
    Coordinated::open(store).await.until(|c| c.claims == [claim.clone()]).await;
}

pub async fn only_a_live_session_can_own(setup: Setup) {
    let store = &*setup.store;
    assert_refused(store.change_claim(take(("", 0), "never opened")).await);
    assert_refused(store.change_claim(take(("", 0), "")).await);
    alive(&setup, &["a", "b"]).await;
    store.end_session("b", None).await.expect("it ends");
    assert_refused(store.change_claim(take(("", 0), "b")).await);
    store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    assert_refused(store.change_claim(hand_over(("a", 1), "b")).await);
    assert_eq!(owner(store).await, Some(("a".into(), 1)));
}

pub async fn a_takeover_needs_a_dead_owner(setup: Setup) {
    let store = &*setup.store;
    alive(&setup, &["a", "b"]).await;
    store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    assert_refused(store.change_claim(take(("a", 1), "b")).await);
    store.end_session("a", None).await.expect("it ends");
    let claim = store.change_claim(take(("a", 1), "b")).await.expect("its owner is dead");
    assert_eq!((claim.owner.as_str(), claim.epoch), ("b", 2));
}

pub async fn the_owner_hands_over_directly(setup: Setup) {
    let store = &*setup.store;
    alive(&setup, &["a", "b"]).await;
    let first = store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    let second = store.change_claim(hand_over(("a", 1), "b")).await.expect("the owner hands it over");
    assert_eq!((second.owner.as_str(), second.epoch), ("b", 2));
    assert!(second.revision > first.revision);
    assert_eq!(owner(store).await, Some(("b".into(), 2)));
}

pub async fn a_changed_claim_refuses_old_expectations(setup: Setup) {
    let store = &*setup.store;
    alive(&setup, &["a", "b"]).await;
    store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    store.change_claim(hand_over(("a", 1), "b")).await.expect("the owner hands it over");
    store.change_claim(hand_over(("b", 2), "a")).await.expect("and back");
    assert_refused(store.change_claim(hand_over(("a", 1), "b")).await);
    assert_refused(store.change_claim(hand_over(("b", 3), "b")).await);
    assert_refused(store.change_claim(take(("", 0), "b")).await);
    assert_eq!(owner(store).await, Some(("a".into(), 3)));
}

pub async fn of_concurrent_takers_one_wins(setup: Setup) {
    let store = &*setup.store;
    let takers: Vec<String> = (0..8).map(|n| format!("taker-{n}")).collect();
    alive(&setup, &takers.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let outcomes = join_all(takers.iter().map(|taker| store.change_claim(take(("", 0), taker)))).await;
    let winners: Vec<&v1::Claim> = outcomes.iter().flatten().collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    assert_eq!(owner(store).await, Some((winners[0].owner.clone(), 1)));
    outcomes.into_iter().filter(Result::is_err).for_each(assert_refused);
}

fn under(session: &str, epoch: u64, name: &str) -> Transaction {
    let fence = Fence::Claim { claim: "shard-1".into(), epoch: Epoch(epoch), session: session.into() };
    Transaction { fence: Some(fence), ..writes([put(resource(name), Revision::ZERO)]) }
}

#[track_caller]
fn assert_fenced(outcome: Result<Revision>) {
    assert!(matches!(outcome, Err(Error::Fenced(_))), "{outcome:?}");
}

pub async fn a_fence_by_claim_holds(setup: Setup) {
    let store = &*setup.store;
    alive(&setup, &["a", "b"]).await;
    assert_fenced(store.commit(under("a", 0, "late")).await);
    assert_fenced(store.commit(under("", 0, "late")).await);
    assert_fenced(store.commit(under("a", 1, "late")).await);
    store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    store.commit(under("a", 1, "first")).await.expect("it owns the claim");
    assert_fenced(store.commit(under("a", 2, "late")).await);
    assert_fenced(store.commit(under("b", 1, "late")).await);
    store.change_claim(hand_over(("a", 1), "b")).await.expect("the owner hands it over");
    assert_fenced(store.commit(under("a", 1, "late")).await);
    assert_fenced(store.commit(under("a", 2, "late")).await);
    let head = store.head().await.expect("head is read");
    assert_eq!((current(store, "late").await, head.commits), (None, 3));
    store.commit(under("b", 2, "second")).await.expect("it owns the claim");
}

pub async fn a_fence_is_told_before_a_conflict(setup: Setup) {
    let store = &*setup.store;
    alive(&setup, &["a", "b"]).await;
    store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    store.commit(under("a", 1, "web")).await.expect("it owns the claim");
    store.change_claim(hand_over(("a", 1), "b")).await.expect("the owner hands it over");
    assert_fenced(store.commit(under("a", 1, "web")).await);
    let conflict = store.commit(under("b", 2, "web")).await;
    assert!(matches!(conflict, Err(Error::Conflict { .. })), "{conflict:?}");
}

pub async fn a_claim_change_counts_as_a_commit(setup: Setup) {
    let store = &*setup.store;
    alive(&setup, &["a"]).await;
    // The reader itself checks that no commit is missing, and that this one announces no writes.
    let mut reader = Reader::with_snapshot(store).await;
    let web = create(store, "web").await;
    let claim = store.change_claim(take(("", 0), "a")).await.expect("nobody has it");
    let head = store.head().await.expect("head is read");
    assert_eq!((head.revision, head.commits), (Revision(claim.revision), 2));
    assert!(head.revision > web);
    let after = create(store, "after").await;
    reader.until(after).await;
    assert_eq!(store.head().await.expect("head is read").commits, 3);
    store.beat("a", None).await.expect("it's alive");
    store.end_session("a", None).await.expect("it ends");
    assert_eq!(store.head().await.expect("head is read").commits, 3, "sessions are outside head");
}
