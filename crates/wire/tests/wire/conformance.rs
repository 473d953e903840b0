//! What every store promises, kept through the wire too: a remote store is a store.
//!
//! Left out is what only backends can say: `head` with each group, history entries that a writer brings along, the name of
//! the server that a session is attached to, and fences by session (which agents' reports carry).

use std::{sync::Arc, time::Duration};

use store::conformance::Setup;

use crate::{double::Double, setup::Server};

async fn setup() -> Setup {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    let remote = Arc::new(server.remote());
    let compact = move || {
        let double = double.clone();
        async move { double.memory.compact() }
    };
    Setup::new(remote, Duration::from_secs(1), compact).keeping(server)
}

macro_rules! promises {
    ($($module:ident { $($promise:ident)+ })+) => {
        $(mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    store::conformance::$module::$promise(super::setup().await).await;
                }
            )+
        })+
    };
}

promises! {
    transactions {
        a_created_resource_is_read_back
        a_create_expects_absence
        a_replacement_expects_the_revision_it_replaces
        a_replacement_expects_the_uid
        a_removal_expects_revision_and_uid
        a_removed_name_can_be_taken_anew
        a_conflict_names_the_key_and_writes_nothing
        other_keys_can_be_expected
        another_incarnation_is_refused
        a_key_is_written_once_in_a_transaction
        a_name_that_is_no_key_is_refused
        too_many_bytes_are_refused
        revisions_grow_and_head_counts_commits
        a_read_after_a_commit_sees_it
        of_concurrent_writers_one_wins_each_revision
        concurrent_commits_each_have_their_own_revision
    }
    lists {
        pages_are_in_key_order_and_complete
        filters_are_applied
        an_older_revision_is_as_it_was_or_compacted
        the_bytes_are_those_written
    }
    watches {
        a_filtered_watch_sees_what_matches_and_what_left
    }
    sessions {
        attach_numbers_grow
        a_beat_renews
        without_beats_the_store_ends_it
        an_ended_session_cannot_be_opened_again
        ending_compares_the_attach_number
    }
    claims {
        an_absent_claim_is_nobodys_at_epoch_zero
        only_a_live_session_can_own
        a_takeover_needs_a_dead_owner
        the_owner_hands_over_directly
        a_changed_claim_refuses_old_expectations
        of_concurrent_takers_one_wins
        a_fence_by_claim_holds
        a_fence_is_told_before_a_conflict
    }
}
