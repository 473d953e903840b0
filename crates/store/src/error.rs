//! What can go wrong with a call, by what the caller should do about it.

use model::{Key, Violation};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Display says what was wrong and where; `class` says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A revision, uid or absence that was expected isn't so. Nothing was written.
    #[error("conflict on {key}: {message}")]
    Conflict { key: Key, message: String },
    /// A claim changed hands differently from what was expected. Nothing was written.
    #[error("claim {claim}: {message}")]
    ClaimConflict { claim: String, message: String },
    /// The claim or session that the write was under isn't current. Nothing was written.
    #[error("fenced: {0}")]
    Fenced(String),
    #[error("{0} not found")]
    NotFound(Key),
    /// It can't be right whatever the state is.
    #[error("{}", join(.0))]
    Invalid(Vec<Violation>),
    /// The caller may not write that.
    #[error("denied: {0}")]
    Denied(String),
    #[error("{0} is being deleted; wait until it is gone, then declare it anew")]
    BeingDeleted(Key),
    /// Something works by it that a deletion would take it from. It can be done all the same, by saying so.
    #[error("{key} is in use: {message}")]
    InUse { key: Key, message: String },
    /// Beyond a bound that is named in the message.
    #[error("too large: {0}")]
    TooLarge(String),
    /// The token or transaction is of another incarnation of the store (it was restored, or is another store).
    #[error("the store is of another incarnation ({0}); start from a snapshot")]
    WrongIncarnation(String),
    /// The session doesn't exist, or no longer.
    #[error("session {0} has ended")]
    SessionEnded(String),
    /// A list at a revision that isn't kept any more.
    #[error("revision {0} is no longer kept; list again from the start")]
    Compacted(i64),
    /// Not done, and may be tried again.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It may or may not have been done: look before acting again.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    /// What is stored can't be right; someone must look.
    #[error("corrupt: {0}")]
    Corrupt(String),
}

/// What the worker does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Look again: the world moved.
    Conflict,
    /// Stop acting under this claim.
    Fenced,
    /// Not done: try again after a pause.
    Retry,
    /// Wait for a linearizable barrier, then look again.
    Unknown,
    /// Trying again won't help.
    Terminal,
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Self::Conflict { .. }
            | Self::ClaimConflict { .. }
            | Self::NotFound(_)
            | Self::BeingDeleted(_)
            | Self::Compacted(_) => Class::Conflict,
            Self::Fenced(_) | Self::SessionEnded(_) | Self::WrongIncarnation(_) => Class::Fenced,
            Self::Unavailable(_) => Class::Retry,
            Self::OutcomeUnknown(_) => Class::Unknown,
            Self::Invalid(_) | Self::Denied(_) | Self::InUse { .. } | Self::TooLarge(_) | Self::Corrupt(_) => {
                Class::Terminal
            }
        }
    }

    pub fn conflict(key: &Key, message: impl Into<String>) -> Self {
        Self::Conflict { key: key.clone(), message: message.into() }
    }

    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![Violation::new(field, message)])
    }
}

fn join(violations: &[Violation]) -> String {
    violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ")
}
