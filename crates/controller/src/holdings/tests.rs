use model::Revision;

use super::*;

#[test]
fn a_refused_step_ends_what_its_own_session_holds_and_nothing_of_a_later_one() {
    let holdings = Holdings::default();
    let hold = || Hold { epoch: Epoch(1), revision: Revision(1), phase: Phase::Active };
    holdings.begin("one");
    holdings.set("leader", hold());
    let late = holdings.enter("leader").expect("it's active");

    // In another store epochs begin anew.
    holdings.end_all();
    holdings.begin("two");
    holdings.set("leader", hold());
    late.fenced();
    assert!(holdings.is_active("leader"));

    holdings.enter("leader").expect("it's active").fenced();
    assert!(!holdings.is_active("leader"));
}
