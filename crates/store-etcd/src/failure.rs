//! What etcd's errors mean: was it done, and what can be done about it.
//!
//! Only an error known to come before any effect counts as "not done"; everything else may have happened.

use std::error::Error as _;

use store::Error;
use tonic::Code;

type Source = dyn std::error::Error + 'static;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It had no effect: another endpoint, or the same one later, may do it.
    NotDone(String),
    /// It may or may not have had an effect.
    Unknown(String),
    /// The revision asked for is no longer kept.
    Compacted,
    /// The revision asked for is above etcd's own.
    Future,
    /// The lease that a write rides on doesn't exist any more.
    LeaseGone,
    /// The answer is larger than we take.
    AnswerTooLarge,
    /// It had no effect and won't have one if tried again.
    Refused(Error),
}

/// What someone must do when etcd's quota is used up.
pub const NO_SPACE: &str = "etcd is out of space (alarm NOSPACE) and takes no writes but deletes; free some with \
    `etcdctl compact` and `etcdctl defrag`, or start it with a larger --quota-backend-bytes, then `etcdctl alarm disarm`";

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotDone(message) => Self::Unavailable(message),
            Failure::Unknown(message) => Self::OutcomeUnknown(message),
            Failure::Compacted => Self::Compacted(0),
            Failure::Future => Self::Unavailable("etcd is behind the revision asked for".into()),
            Failure::LeaseGone => Self::Unavailable("the lease ended meanwhile".into()),
            Failure::AnswerTooLarge => Self::TooLarge("one answer of etcd exceeds what is taken at once".into()),
            Failure::Refused(error) => error,
        }
    }
}

impl Failure {
    /// That an endpoint gave no answer in time.
    pub fn timed_out(what: &str) -> Self {
        Self::Unknown(format!("{what}: no answer in time"))
    }

    /// Whether another try, perhaps elsewhere, may go better.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NotDone(_) | Self::Unknown(_))
    }

    /// Says more about a fault of the way to etcd.
    pub fn map_message(self, more: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::NotDone(message) => Self::NotDone(more(message)),
            Self::Unknown(message) => Self::Unknown(more(message)),
            other => other,
        }
    }

    /// Of a call that failed otherwise the time before: the last one may merely have had too little time to say as much.
    pub fn after(self, before: Option<String>) -> Self {
        self.map_message(|now| match before {
            Some(before) if before != now => format!("{now}; the time before: {before}"),
            _ => now,
        })
    }

    /// For a call that has no effect worth knowing about.
    pub fn harmless(self) -> Self {
        match self {
            Self::Unknown(message) => Self::NotDone(message),
            other => other,
        }
    }
}

impl From<etcd_client::Error> for Failure {
    fn from(error: etcd_client::Error) -> Self {
        match &error {
            etcd_client::Error::GRpcStatus(status) => of_status(status),
            // A keep-alive that is answered with no time to live.
            etcd_client::Error::LeaseKeepAliveError(_) => Self::LeaseGone,
            etcd_client::Error::TransportError(e) if never_connected(e) => Self::NotDone(chain(e)),
            _ => Self::Unknown(chain(&error)),
        }
    }
}

fn of_status(status: &tonic::Status) -> Failure {
    let said = status.message();
    let is = |part: &str| said.contains(part);
    match status.code() {
        Code::Unavailable if status.source().is_some_and(never_connected) => Failure::NotDone(chain_of(status)),
        // Refused before it is proposed. "leader changed" and "request timed out" come after.
        Code::Unavailable if is("etcdserver: no leader") => Failure::NotDone("it sees no leader, so no quorum".into()),
        // By the member asked itself, while its leader changes: it told nobody of it.
        Code::Unknown if is("raft proposal dropped") => Failure::NotDone(said.into()),
        Code::ResourceExhausted if is("database space exceeded") => {
            Failure::Refused(Error::Unavailable(NO_SPACE.into()))
        }
        Code::ResourceExhausted if is("larger than max") => Failure::Refused(Error::TooLarge(said.into())),
        Code::ResourceExhausted if is("too many requests") => Failure::NotDone(said.into()),
        Code::OutOfRange if is("compacted") => Failure::Compacted,
        Code::OutOfRange if is("future revision") => Failure::Future,
        Code::OutOfRange if is("too large") => Failure::AnswerTooLarge,
        Code::NotFound if is("lease not found") => Failure::LeaseGone,
        Code::InvalidArgument if is("request is too large") || is("too many operations") => {
            Failure::Refused(Error::TooLarge(said.into()))
        }
        Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => {
            Failure::Refused(Error::Denied(format!("etcd refuses it: {said}")))
        }
        Code::DataLoss => Failure::Refused(Error::Corrupt(said.into())),
        _ => Failure::Unknown(chain_of(status)),
    }
}

/// Whether the connection was never made, so that nothing can have been sent.
fn never_connected(error: &Source) -> bool {
    sources(error).any(|e| e.is::<tonic::ConnectError>())
}

fn sources(error: &Source) -> impl Iterator<Item = &Source> {
    std::iter::successors(Some(error), |e: &&Source| (*e).source())
}

fn chain_of(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    if let Some(source) = status.source() {
        append(&mut text, source);
    }
    text
}

fn chain(error: &Source) -> String {
    let mut text = String::new();
    append(&mut text, error);
    text
}

/// The error and its sources, without saying the same twice.
fn append(text: &mut String, error: &Source) {
    for part in sources(error).map(ToString::to_string) {
        if !text.contains(&part) {
            let separator = if text.is_empty() { "" } else { ": " };
            *text = format!("{text}{separator}{part}");
        }
    }
}

#[cfg(test)]
#[path = "failure_tests.rs"]
mod tests;
