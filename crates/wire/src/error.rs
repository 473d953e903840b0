//! `store::Error` as a gRPC status with google.rpc details, and back.
//!
//! The table is in `resource_service.proto`. What a client rebuilds is the very error that the server had, but for
//! texts that are too long for HTTP/2 headers (`clip`). A status that no Driftless server made, from a proxy or the
//! transport, says little about whether something was done; there `Call` decides what to make of it.

use std::{collections::HashMap, error::Error as _, time::Duration};

use model::{Key, Violation};
use store::Error;
use tonic::{Code, ConnectError, Status};
use tonic_types::{ErrorDetails, StatusExt};

pub const DOMAIN: &str = "driftless";

/// Bytes of one text. Clients in other languages accept 8 KiB of headers; the text goes twice, once in base64.
const TEXT_BYTES_MAX: usize = 1024;
/// Bytes of all violations of one error together.
const VIOLATION_BYTES_MAX: usize = 3 * 1024;
/// Suggested pause of a client that was told UNAVAILABLE.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// What a client's `Unavailable` begins with where no server was reached, so that nobody answered it.
pub const UNREACHED: &str = "not reached";
/// The same where one was, but gave no answer in time.
pub const UNANSWERED: &str = "no answer";
/// The same where a server answered, and can't say what a node's agent would: nobody hears that.
pub const UNHEARD: &str = "node not heard";

/// What a call does, so what its failure may have left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Nothing: it can be repeated.
    Read,
    /// It may be done although no answer came.
    Write,
}

/// The error as a server answers it.
pub fn to_status(error: &Error) -> Status {
    let (code, reason) = code_and_reason(error);
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata(error));
    match error {
        Error::Conflict { key, message } | Error::InUse { key, message } => {
            details.set_resource_info(key.kind(), key.text(), "", clip(message));
        }
        Error::NotFound(key) | Error::BeingDeleted(key) => {
            details.set_resource_info(key.kind(), key.text(), "", clip(&error.to_string()));
        }
        Error::Invalid(violations) => {
            for violation in bounded(violations) {
                details.add_bad_request_violation(violation.field, violation.message);
            }
        }
        Error::Unavailable(_) => {
            details.set_retry_info(Some(RETRY_DELAY));
        }
        _ => {}
    }
    if code == Code::FailedPrecondition {
        details.add_precondition_failure_violation(reason, subject(error), clip(&error.to_string()));
    }
    Status::with_error_details(code, clip(&error.to_string()), details)
}

/// The error as a client sees it.
pub fn from_status(status: &Status, call: Call) -> Error {
    let details = status.get_error_details();
    match details.error_info() {
        Some(info) if info.domain == DOMAIN => {
            let violations = details.bad_request().map_or_else(Vec::new, |bad| {
                bad.field_violations.iter().map(|v| Violation::new(&v.field, &v.description)).collect()
            });
            ours(&info.reason, &info.metadata, violations).unwrap_or_else(|| foreign(status, call))
        }
        _ => foreign(status, call),
    }
}

/// The server was never reached, so nothing was done.
pub fn is_unsent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn code_and_reason(error: &Error) -> (Code, &'static str) {
    match error {
        Error::Conflict { .. } => (Code::Aborted, "CONFLICT"),
        Error::ClaimConflict { .. } => (Code::Aborted, "CLAIM_CONFLICT"),
        Error::Fenced(_) => (Code::FailedPrecondition, "FENCED"),
        Error::NotFound(_) => (Code::NotFound, "NOT_FOUND"),
        Error::Invalid(_) => (Code::InvalidArgument, "INVALID"),
        Error::Denied(_) => (Code::PermissionDenied, "DENIED"),
        Error::BeingDeleted(_) => (Code::FailedPrecondition, "BEING_DELETED"),
        Error::InUse { .. } => (Code::FailedPrecondition, "IN_USE"),
        Error::TooLarge(_) => (Code::ResourceExhausted, "TOO_LARGE"),
        Error::WrongIncarnation(_) => (Code::FailedPrecondition, "WRONG_INCARNATION"),
        Error::SessionEnded(_) => (Code::FailedPrecondition, "SESSION_ENDED"),
        Error::Compacted(_) => (Code::OutOfRange, "COMPACTED"),
        Error::Unavailable(_) => (Code::Unavailable, "UNAVAILABLE"),
        Error::OutcomeUnknown(_) => (Code::Unknown, "OUTCOME_UNKNOWN"),
        Error::Corrupt(_) => (Code::DataLoss, "CORRUPT"),
    }
}

/// The error's parts by name: what `ours` rebuilds it from, and what programs may read.
fn metadata(error: &Error) -> HashMap<String, String> {
    let parts: Vec<(&str, String)> = match error {
        Error::Conflict { key, message } | Error::InUse { key, message } => {
            vec![("key", key.text().into()), ("message", clip(message))]
        }
        Error::ClaimConflict { claim, message } => vec![("claim", clip(claim)), ("message", clip(message))],
        Error::NotFound(key) | Error::BeingDeleted(key) => vec![("key", key.text().into())],
        Error::Invalid(_) => Vec::new(),
        Error::WrongIncarnation(incarnation) => vec![("incarnation", clip(incarnation))],
        Error::SessionEnded(session) => vec![("session", clip(session))],
        Error::Compacted(revision) => vec![("revision", revision.to_string())],
        Error::Fenced(message)
        | Error::Denied(message)
        | Error::TooLarge(message)
        | Error::Unavailable(message)
        | Error::OutcomeUnknown(message)
        | Error::Corrupt(message) => vec![("message", clip(message))],
    };
    parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// None where it lacks a part, or a newer version made it.
fn ours(reason: &str, parts: &HashMap<String, String>, violations: Vec<Violation>) -> Option<Error> {
    let part = |name: &str| parts.get(name).cloned();
    let key = || Key::parse(parts.get("key")?);
    Some(match reason {
        "CONFLICT" => Error::Conflict { key: key()?, message: part("message")? },
        "CLAIM_CONFLICT" => Error::ClaimConflict { claim: part("claim")?, message: part("message")? },
        "FENCED" => Error::Fenced(part("message")?),
        "NOT_FOUND" => Error::NotFound(key()?),
        "INVALID" => Error::Invalid(violations),
        "DENIED" => Error::Denied(part("message")?),
        "BEING_DELETED" => Error::BeingDeleted(key()?),
        "IN_USE" => Error::InUse { key: key()?, message: part("message")? },
        "TOO_LARGE" => Error::TooLarge(part("message")?),
        "WRONG_INCARNATION" => Error::WrongIncarnation(part("incarnation")?),
        "SESSION_ENDED" => Error::SessionEnded(part("session")?),
        "COMPACTED" => Error::Compacted(part("revision")?.parse().ok()?),
        "UNAVAILABLE" => Error::Unavailable(part("message")?),
        "OUTCOME_UNKNOWN" => Error::OutcomeUnknown(part("message")?),
        "CORRUPT" => Error::Corrupt(part("message")?),
        _ => return None,
    })
}

/// A status that says nothing of ours.
fn foreign(status: &Status, call: Call) -> Error {
    let text = text(status);
    match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::AlreadyExists | Code::NotFound => {
            Error::invalid("", text)
        }
        Code::Unimplemented => Error::invalid("", format!("the server doesn't know this call: {text}")),
        Code::PermissionDenied | Code::Unauthenticated => Error::Denied(text),
        Code::ResourceExhausted | Code::OutOfRange if status.source().is_none() => Error::TooLarge(text),
        Code::DataLoss => Error::Corrupt(text),
        _ if is_unsent(status) => Error::Unavailable(format!("{UNREACHED}: {text}")),
        _ if call == Call::Read => Error::Unavailable(text),
        _ => Error::OutcomeUnknown(text),
    }
}

/// The message, and what caused it: tonic's own says only "transport error".
fn text(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    match text.is_empty() {
        true => status.code().description().to_owned(),
        false => text,
    }
}

fn subject(error: &Error) -> String {
    match error {
        Error::BeingDeleted(key) | Error::InUse { key, .. } => key.text().to_owned(),
        Error::SessionEnded(session) => clip(session),
        Error::WrongIncarnation(incarnation) => clip(incarnation),
        _ => String::new(),
    }
}

/// As many as fit, and how many don't.
fn bounded(violations: &[Violation]) -> Vec<Violation> {
    let mut bytes = 0;
    let mut kept = Vec::new();
    for violation in violations {
        let clipped = Violation::new(clip(&violation.field), clip(&violation.message));
        bytes += clipped.field.len() + clipped.message.len();
        if bytes > VIOLATION_BYTES_MAX {
            let left = violations.len() - kept.len();
            kept.push(Violation::new("", format!("and {left} more; put these right first")));
            break;
        }
        kept.push(clipped);
    }
    kept
}

fn clip(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|i| text.is_char_boundary(*i)).unwrap_or_default();
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests;
