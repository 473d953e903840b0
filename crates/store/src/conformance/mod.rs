//! What a store promises, as tests that every backend passes: one function for each promise, which panics where it
//! isn't kept. The crate of a backend turns on the feature `conformance` and expands the list into its own tests:
//!
//! ```ignore
//! store::conformance!(async { Setup::new(MyStore::start().await, Duration::from_secs(2)) });
//! ```
//!
//! Nothing here assumes that revisions go up by one, that a session's time is shorter than `Setup::ttl`, or that a
//! watch's snapshot is as of the moment it was asked for.

pub mod claims;
pub mod histories;
pub mod lists;
pub mod properties;
pub mod sessions;
pub mod transactions;
pub mod watches;

mod fixtures;
mod reader;

use std::{any::Any, future::Future, sync::Arc, time::Duration};

use futures::future::BoxFuture;

pub use fixtures::{create, current, put, resource, shown};
pub use reader::{Coordinated, Reader};

use crate::Store;

/// How long anything that must happen may take before it counts as never: far more than any backend needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A fresh, empty store, and what the suite must know of it.
pub struct Setup {
    pub store: Arc<dyn Store>,
    /// The shortest time to live that it grants a session.
    pub ttl: Duration,
    compact: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    _kept: Box<dyn Any + Send + Sync>,
}

impl Setup {
    /// `compact` makes the store forget which changes came before now.
    pub fn new<F>(store: Arc<dyn Store>, ttl: Duration, compact: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { store, ttl, compact: Box::new(move || Box::pin(compact())), _kept: Box::new(()) }
    }

    /// Something that lives as long as the store is tested: a directory, a process.
    pub fn keeping(self, kept: impl Any + Send + Sync) -> Self {
        Self { _kept: Box::new(kept), ..self }
    }

    pub async fn compact(&self) {
        (self.compact)().await;
    }
}

/// One `#[tokio::test]` for each promise. The argument is evaluated for each of them: a future of a `Setup`.
#[macro_export]
macro_rules! conformance {
    ($setup:expr) => {
        $crate::conformance!(@ $setup;
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
                too_many_puts_are_refused
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
                a_snapshot_comes_first_then_changes_in_order
                a_transaction_arrives_together
                a_deletion_carries_uid_and_revision
                head_is_gapless_and_announces_its_writes
                a_resumed_watch_loses_and_repeats_nothing
                a_token_that_is_too_old_gets_a_snapshot
                a_token_of_another_incarnation_gets_a_snapshot
                a_bookmark_follows_the_revision_asked_for
                a_filtered_watch_sees_what_matches_and_what_left
                watchers_converge_with_the_store_under_load
            }
            sessions {
                attach_numbers_grow
                an_open_session_is_shown_with_what_it_says
                a_beat_renews
                without_beats_the_store_ends_it
                an_ended_session_cannot_be_opened_again
                ending_compares_the_attach_number
                a_fence_by_session_holds
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
                a_claim_change_counts_as_a_commit
            }
            histories {
                entries_come_with_their_commit_in_order
                a_refused_commit_leaves_no_entry
                a_root_can_be_asked_for
                the_newest_entries_are_kept_by_a_limit
                trimming_forgets_the_oldest
                an_entry_in_a_slot_takes_the_place_of_the_one_before
                the_end_of_a_range_can_be_asked_for
            }
        );
    };
    (@ $setup:expr; $($module:ident { $($promise:ident)+ })+) => {
        $(mod $module {
            #[allow(unused_imports, reason = "the setup may be written in full paths")]
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    let setup = $setup.await;
                    $crate::conformance::$module::$promise(setup).await;
                }
            )+
        })+
        /// How many promises were expanded.
        #[allow(dead_code, reason = "only the suite's own test asks")]
        const PROMISES: usize = [$($(stringify!($promise)),+),+].len();
    };
}

#[cfg(test)]
mod tests;
