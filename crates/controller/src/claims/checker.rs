//! A model checker for the claim protocol: every state of a small cluster, with the decisions made by `claims::decide` and
//! `Holds` themselves. Around them it models what `member.rs`, a worker, the network and the store do.
//!
//! Replicas start, leave (SIGTERM), pause (SIGSTOP), die (SIGKILL) and come back; sessions expire, early too; views lag,
//! go back, or are torn; requests and answers are late, out of order, or unheard while the request arrives all the same.
//!
//! In every state: no write committed under an epoch that was not current; epochs grow by one, and each is one owner's; no
//! claim was taken from a session that lives, or given to one that doesn't; whoever begins a step has a cache with every
//! write of the epochs before. Without faults, no write is ever refused, and claims move only as members come and go.
//! And from every state, once faults end, each claim gets an owner that acts, and nothing moves any more.
//!
//! Not modelled: that the resources of a claim may come later than it (`member.rs` stays in the barrier until then).

mod apply;
mod events;
mod explore;
mod laws;
mod settle;
mod world;

use model::{Epoch, LEADER, shard_claim};

use self::{
    explore::{Explored, explore},
    world::{Planted, Scope, Sight},
};

/// Two replicas at rest, of which one is the leader; nothing happens to them.
fn scope() -> Scope {
    Scope {
        replicas: 2,
        started: 2,
        claims: vec![LEADER.to_owned()],
        sessions: 1,
        sight: Sight::Whole,
        leaves: 0,
        faults: 0,
        writes: 1,
        // Taken once, and moved once.
        epoch_max: Epoch(2),
        planted: Planted::Nothing,
    }
}

fn shards(count: u32) -> Vec<String> {
    (0..count).map(shard_claim).collect()
}

/// Explores it all. What should happen must have happened, or the properties hold of too little.
fn check(scope: &Scope, states_min: usize, happens: &[&str]) {
    let explored = explore(scope).unwrap_or_else(|counterexample| panic!("{scope:?}\n{counterexample}"));
    let Explored { states, depth, epoch, outcomes } = &explored;
    println!("{states} states, the farthest after {depth} events, up to epoch {epoch}; {outcomes:?}");
    assert!(*states >= states_min, "explored only {states} states");
    for outcome in happens {
        assert!(outcomes.contains_key(outcome), "never: {outcome}");
    }
    assert_eq!(*epoch, scope.epoch_max, "the bound is no bound");
}

/// The fault is found, as that.
fn check_finds(planted: Planted, scope: Scope, violation: &str) {
    let scope = Scope { planted, ..scope };
    let counterexample = explore(&scope).expect_err("the planted fault must be found");
    println!("{planted:?}:\n{counterexample}\n");
    assert!(counterexample.violation.contains(violation), "{counterexample}");
}

#[test]
fn from_nothing() {
    let scope = Scope { started: 0, epoch_max: Epoch(1), ..scope() };
    check(&scope, 2_000, &["claim taken", "claim change refused", "write committed"]);
    check(&Scope { sight: Sight::Torn, ..scope }, 4_000, &["claim taken", "claim change refused", "write committed"]);
}

#[test]
fn a_join() {
    let two = Scope { started: 1, claims: shards(3), ..scope() };
    check(&Scope { sight: Sight::Lagging, ..two.clone() }, 9_000, &["claim handed over", "write committed"]);
    check(&Scope { sight: Sight::Torn, ..two }, 500, &["claim handed over", "write committed"]);
    let three = Scope { replicas: 3, claims: shards(2), ..scope() };
    check(&three, 1_000, &["claim handed over", "write committed"]);
}

#[test]
fn a_leave() {
    let leave = Scope { leaves: 1, ..scope() };
    check(&Scope { writes: 2, ..leave.clone() }, 300, &["claim handed over", "write committed"]);
    check(&Scope { sight: Sight::Torn, sessions: 2, ..leave.clone() }, 500, &["claim handed over", "write committed"]);
    let three = Scope { replicas: 3, started: 3, claims: shards(2), ..leave };
    check(&three, 3_000, &["claim handed over", "write committed"]);
}

#[test]
fn a_rolling_restart() {
    // Both leave and come back.
    let scope = Scope { leaves: 2, sessions: 2, epoch_max: Epoch(3), ..scope() };
    check(&scope, 20_000, &["claim handed over", "claim taken", "write committed"]);
}

const FAULTY: [&str; 5] =
    ["claim taken", "claim handed over", "claim change refused", "write committed", "write refused"];

#[test]
fn three_faults() {
    check(&Scope { faults: 3, ..scope() }, 50_000, &FAULTY);
}

#[test]
fn two_faults_around_a_leave() {
    check(&Scope { faults: 2, leaves: 1, ..scope() }, 80_000, &FAULTY);
}

#[test]
fn two_faults_with_torn_views() {
    check(&Scope { faults: 2, sight: Sight::Torn, ..scope() }, 15_000, &FAULTY);
}

#[test]
fn a_fault_and_a_new_session() {
    check(&Scope { faults: 1, sessions: 2, sight: Sight::Torn, ..scope() }, 30_000, &FAULTY);
}

#[test]
fn a_fault_with_a_second_server() {
    let scope = Scope { faults: 1, sight: Sight::Lagging, ..scope() };
    check(&scope, 10_000, &["claim taken", "claim change refused", "write committed", "write refused"]);
}

#[test]
fn a_fault_among_three() {
    check(&Scope { replicas: 3, started: 3, claims: shards(2), faults: 1, ..scope() }, 20_000, &FAULTY);
}

#[test]
fn finds_a_take_without_the_session_check() {
    let scope = Scope { started: 0, sight: Sight::Torn, ..scope() };
    check_finds(Planted::TakeFromTheLiving, scope, "whose session lives");
}

#[test]
fn finds_an_owner_that_is_dead() {
    check_finds(Planted::GiveToTheDead, Scope { faults: 2, ..scope() }, "whose session has ended");
}

#[test]
fn finds_a_write_without_the_fence() {
    check_finds(Planted::WriteWithoutFence, Scope { faults: 1, ..scope() }, "under epoch 1 committed at 3");
}

#[test]
fn finds_a_missing_barrier() {
    let scope = Scope { leaves: 1, writes: 2, ..scope() };
    check_finds(Planted::ActBeforeTheBarrier, scope, "has not seen the write");
}

#[test]
fn finds_a_belief_in_old_views() {
    check_finds(Planted::BelieveOldViews, Scope { leaves: 1, ..scope() }, "which is over");
}

#[test]
fn finds_a_hold_lost_to_an_older_refusal() {
    let alone = Scope { replicas: 1, started: 1, sessions: 2, faults: 1, ..scope() };
    check_finds(Planted::RefusalEndsNewerHolds, alone, "nobody acts");
}

#[test]
fn finds_an_owner_that_does_not_know() {
    check_finds(Planted::AdoptNothing, Scope { leaves: 1, ..scope() }, "nobody acts");
}
