//! The suite's promises that depend most on etcd, kept by an etcd that has been through something.

use std::time::Duration;

use driftless_store_etcd::testing::{Etcd, Setup as Start};
use futures::{FutureExt, future::BoxFuture};
use model::Revision;
use store::{
    Store,
    conformance::{Setup, claims, histories, lists, sessions, transactions, watches},
};

use crate::support::{open, write_until_done};

type Promise = fn(Setup) -> BoxFuture<'static, ()>;

macro_rules! promises {
    ($($module:ident::$promise:ident),+ $(,)?) => {
        [$((stringify!($promise), (|setup| $module::$promise(setup).boxed()) as Promise)),+]
    };
}

const PROMISES: [(&str, Promise); 27] = promises![
    transactions::a_removal_expects_revision_and_uid,
    transactions::a_removed_name_can_be_taken_anew,
    transactions::other_keys_can_be_expected,
    transactions::revisions_grow_and_head_counts_commits,
    transactions::a_read_after_a_commit_sees_it,
    transactions::of_concurrent_writers_one_wins_each_revision,
    transactions::concurrent_commits_each_have_their_own_revision,
    lists::pages_are_in_key_order_and_complete,
    lists::an_older_revision_is_as_it_was_or_compacted,
    watches::a_snapshot_comes_first_then_changes_in_order,
    watches::a_transaction_arrives_together,
    watches::a_deletion_carries_uid_and_revision,
    watches::head_is_gapless_and_announces_its_writes,
    watches::a_resumed_watch_loses_and_repeats_nothing,
    watches::a_token_that_is_too_old_gets_a_snapshot,
    watches::a_bookmark_follows_the_revision_asked_for,
    watches::a_filtered_watch_sees_what_matches_and_what_left,
    watches::watchers_converge_with_the_store_under_load,
    sessions::attach_numbers_grow,
    sessions::without_beats_the_store_ends_it,
    sessions::an_ended_session_cannot_be_opened_again,
    sessions::a_fence_by_session_holds,
    claims::a_takeover_needs_a_dead_owner,
    claims::the_owner_hands_over_directly,
    claims::of_concurrent_takers_one_wins,
    claims::a_fence_by_claim_holds,
    histories::trimming_forgets_the_oldest,
];

/// A store of its own on that etcd.
fn setup(etcd: &Etcd) -> Setup {
    let store = open(etcd.options());
    let compacted = store.clone();
    let compact = move || {
        let store = compacted.clone();
        async move {
            let head = store.head().await.expect("head is read");
            store.compact(head.revision).await.expect("etcd compacts");
        }
    };
    Setup::new(store, Duration::from_secs(2), compact)
}

/// Each of them, in a store of its own.
pub async fn are_kept_by(etcd: &Etcd) {
    for (name, promise) in PROMISES {
        eprintln!("{name}");
        promise(setup(etcd)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn are_kept_after_compaction() {
    let etcd = Etcd::start().await;
    let store = open(etcd.options());
    for (n, (name, promise)) in PROMISES.into_iter().enumerate() {
        eprintln!("{name}");
        let written = write_until_done(&store, &format!("s{n}")).await;
        store.compact(written).await.expect("etcd compacts");
        promise(setup(&etcd)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn are_kept_after_changes_of_leader() {
    let etcd = Etcd::start_with(3, Start::default()).await;
    for (name, promise) in PROMISES {
        eprintln!("{name}");
        let leader = etcd.leader().await;
        etcd.hand_over(leader, (leader + 1) % 3).await;
        promise(setup(&etcd)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_the_leader_changes() {
    let etcd = Etcd::start_with(3, Start::default()).await;
    let store = open(etcd.options());
    let mut reader = store::conformance::Reader::with_snapshot(&*store).await;
    let mut last = Revision::ZERO;
    for n in 0..60 {
        if n % 10 == 0 {
            let leader = etcd.leader().await;
            etcd.hand_over(leader, (leader + 1) % 3).await;
        }
        last = write_until_done(&store, &format!("s{n}")).await;
    }
    reader.until(last).await;
    assert_eq!(reader.world.len(), 60);
    assert_eq!(store.counts().lies(), 0);
}
