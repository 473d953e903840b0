//! Random operations, said by what they mean and not by revisions, so that every store can be told the same.

use proptest::{collection::vec, option, prelude::*, sample::select};

/// Resources, sessions, claims and roots are few, so that operations meet.
const NAMES: u8 = 4;
const SESSIONS: u8 = 3;
const CLAIMS: u8 = 2;
const ROOTS: u8 = 2;
/// Operations in one run.
const OPERATIONS_MAX: usize = 40;

#[derive(Clone, Debug)]
pub enum Operation {
    Commit {
        fence: Option<By>,
        expects: Vec<(u8, Seen)>,
        writes: Vec<Change>,
        roots: Vec<u8>,
    },
    Open {
        session: u8,
    },
    Beat {
        session: u8,
        ready: bool,
    },
    End {
        session: u8,
        attach: Option<Seen>,
    },
    Claim {
        claim: u8,
        expected: Seen,
        owner: u8,
        owner_must_be_dead: bool,
    },
    /// Up to the commit that many before the newest.
    Trim {
        before: u8,
    },
    Reopen,
}

/// What somebody believes of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Now,
    /// As if it didn't exist.
    Absent,
    /// As it never was, or was before.
    Stale,
}

#[derive(Clone, Debug)]
pub struct Change {
    pub name: u8,
    pub seen: Seen,
    pub right_uid: bool,
    pub removes: bool,
}

#[derive(Clone, Debug)]
pub enum By {
    Claim { claim: u8, session: u8, seen: Seen },
    Session { session: u8, seen: Seen },
}

pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(), 1..=OPERATIONS_MAX)
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => commit(),
        3 => (0..SESSIONS).prop_map(|session| Operation::Open { session }),
        1 => (0..SESSIONS, any::<bool>()).prop_map(|(session, ready)| Operation::Beat { session, ready }),
        2 => (0..SESSIONS, option::of(seen())).prop_map(|(session, attach)| Operation::End { session, attach }),
        4 => (0..CLAIMS, seen(), 0..SESSIONS, any::<bool>()).prop_map(|(claim, expected, owner, owner_must_be_dead)| {
            Operation::Claim { claim, expected, owner, owner_must_be_dead }
        }),
        1 => (0_u8..4).prop_map(|before| Operation::Trim { before }),
        1 => Just(Operation::Reopen),
    ]
}

fn commit() -> impl Strategy<Value = Operation> {
    let fence = option::weighted(0.3, by());
    let expects = vec((0..NAMES, seen()), 0..2);
    (fence, expects, vec(change(), 0..4), vec(0..ROOTS, 0..2))
        .prop_map(|(fence, expects, writes, roots)| Operation::Commit { fence, expects, writes, roots })
}

fn change() -> impl Strategy<Value = Change> {
    (0..NAMES, seen(), prop::bool::weighted(0.9), prop::bool::weighted(0.3))
        .prop_map(|(name, seen, right_uid, removes)| Change { name, seen, right_uid, removes })
}

fn by() -> impl Strategy<Value = By> {
    prop_oneof![
        (0..CLAIMS, 0..SESSIONS, seen()).prop_map(|(claim, session, seen)| By::Claim { claim, session, seen }),
        (0..SESSIONS, seen()).prop_map(|(session, seen)| By::Session { session, seen }),
    ]
}

/// Mostly right, so that most operations get somewhere.
fn seen() -> impl Strategy<Value = Seen> {
    select(vec![Seen::Now, Seen::Now, Seen::Now, Seen::Now, Seen::Now, Seen::Now, Seen::Absent, Seen::Stale])
}
