//! The suite's list is complete.

crate::conformance!(async { crate::memory::conformance_setup() });

#[test]
fn every_promise_is_in_the_list() {
    let sources = [
        include_str!("claims.rs"),
        include_str!("histories.rs"),
        include_str!("lists.rs"),
        include_str!("sessions.rs"),
        include_str!("transactions.rs"),
        include_str!("watches.rs"),
    ];
    let written: usize = sources.iter().map(|source| source.matches("\npub async fn ").count()).sum();
    assert_eq!(PROMISES, written);
}
