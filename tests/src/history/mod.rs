//! An external checker of histories: what clients asked and were answered, what watches told, held against what the
//! store really committed. Pure; it knows nothing of the code that it checks.
//!
//! The truth is the store's own log, commit by commit, which a test reads behind the servers' backs. Operations are
//! ordered by the revisions that they returned; then it is checked that
//!
//! - no commit was made under an epoch that wasn't its claim's at that revision, and epochs grow one by one;
//! - each acknowledged write is in the log at the revision that was answered, and a refused one isn't at all;
//! - what returned before something else was asked comes before it;
//! - each read shows the state at one revision, not older than anything that was answered before it was asked;
//! - each watch tells every commit once, in order, whole, and nothing else, however often it moved between servers.

mod log;
mod operations;
mod streams;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, time::Duration};

pub use log::Log;

/// What a resource was at some revision, as far as comparing goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub uid: String,
    /// Of its bytes.
    pub digest: u64,
    /// Names the write that declared it, where a recording client did; later writes of others keep it.
    pub marker: String,
}

/// One transaction of the store.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    pub revision: i64,
    /// By key; none: removed.
    pub changes: BTreeMap<String, Option<Content>>,
    /// The claims and epochs that it was made under.
    pub under: Vec<(String, u64)>,
    /// Claims that it changed, and their new epochs.
    pub claims: Vec<(String, u64)>,
    /// How many watched keys it said it would write.
    pub announced: Option<usize>,
}

/// What a recording client did. Times are on one clock.
#[derive(Clone, Debug)]
pub struct Operation {
    pub client: String,
    pub asked: Duration,
    pub answered: Duration,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    /// A write with a marker of its own.
    Wrote {
        marker: String,
        outcome: Outcome,
    },
    Got {
        key: String,
        found: Option<(i64, Content)>,
    },
    /// Everything whose key starts with the prefix.
    Listed {
        prefix: String,
        revision: i64,
        found: BTreeMap<String, (i64, Content)>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged(i64),
    /// Surely not done.
    Refused,
    /// May have been done.
    Unknown,
}

/// One watch of everything whose key starts with the prefix, followed over all its connections.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    pub name: String,
    pub prefix: String,
    pub told: Vec<Told>,
}

#[derive(Clone, Debug)]
pub enum Told {
    Snapshot { revision: i64, all: BTreeMap<String, (i64, Content)> },
    Group { from: i64, to: i64, coalesced: bool, changes: Vec<Change> },
    Bookmark { revision: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put { key: String, revision: i64, content: Content },
    Deleted { key: String, uid: String },
}

#[derive(Debug, Default)]
pub struct History {
    pub commits: Vec<Commit>,
    pub operations: Vec<Operation>,
    pub streams: Vec<Stream>,
}

/// What a history is guilty of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A commit under an epoch that isn't its claim's.
    OldEpoch,
    /// A claim's epoch that doesn't follow the one before.
    EpochJumped,
    /// A commit that announced another number of changes than it made.
    WrongCount,
    /// An acknowledged write that isn't in the log, or not there.
    LostWrite,
    /// A write that was refused, and happened.
    GhostWrite,
    /// An answer that comes before what was answered before it was asked.
    OutOfOrder,
    /// A read that is older than it may be.
    StaleRead,
    /// A read or snapshot that shows what was at no such revision.
    WrongState,
    /// A watch that left something out.
    SkippedEvent,
    /// A watch that told something twice, or went back.
    RepeatedEvent,
    /// A watch that told what never was.
    WrongEvent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub fault: Fault,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.fault, self.what)
    }
}

/// How much was checked, so that a test can see that it was something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub commits: usize,
    /// Commits under a claim.
    pub fenced: usize,
    pub claim_changes: usize,
    pub acknowledged: usize,
    pub refused: usize,
    pub unknown: usize,
    pub reads: usize,
    pub streams: usize,
    /// Changes that streams told, outside of snapshots.
    pub told: usize,
    pub snapshots: usize,
}

impl History {
    /// Everything that is wrong with it, or how much was found right.
    pub fn check(&self) -> Result<Checked, Vec<Violation>> {
        let log = Log::new(&self.commits);
        let mut violations = log.check();
        let mut checked = Checked {
            commits: self.commits.len(),
            fenced: self.commits.iter().filter(|commit| !commit.under.is_empty()).count(),
            claim_changes: self.commits.iter().map(|commit| commit.claims.len()).sum(),
            streams: self.streams.len(),
            ..Checked::default()
        };
        operations::check(&log, &self.operations, &mut checked, &mut violations);
        for stream in &self.streams {
            streams::check(&log, stream, &mut checked, &mut violations);
        }
        if violations.is_empty() { Ok(checked) } else { Err(violations) }
    }
}
