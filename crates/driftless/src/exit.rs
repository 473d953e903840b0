//! What the process says at its end: one exit code and one error, with its chain printed once.

use std::{io, process::ExitCode};

use server::Readiness;
use store::Error;
use wire::error::{UNANSWERED, UNHEARD, UNREACHED};

use crate::words;

/// Every code but success, with what it means; 0 is "done".
pub const CODES: [(u8, &str); 8] = [
    (FAILED, "failed, or refused (a manifest that can't be right, for one)"),
    (USAGE, "wrong usage of the command line (an unknown kind, for one)"),
    (NOT_FOUND, "not found: a resource, or a point of its history"),
    (CONFLICT, "conflict: something changed meanwhile, is being deleted, or is in use"),
    (TIMED_OUT, "timed out waiting"),
    (UNREACHABLE, "unavailable: no server could be reached, or it can't do that now"),
    (ROLLOUT_FAILED, "a rollout failed: no progress by its deadline, or rolled back (apply --wait, rollout status)"),
    (CHANGES, "plan: there are changes (0: there are none)"),
];

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const CONFLICT: u8 = 4;
const TIMED_OUT: u8 = 5;
const UNREACHABLE: u8 = 6;
const ROLLOUT_FAILED: u8 = 7;
const CHANGES: u8 = 10;

const STORE_AWAY: &str = "the server is there, but its store isn't: does that run, with a quorum, and can the server \
                          reach it? --server or DRIFTLESS_SERVER names another server";
const SERVER_AWAY: &str = "is it running? 'driftless dev' starts a cluster; --server or DRIFTLESS_SERVER names another";
const SERVER_SLOW: &str = "it may be stopped or overloaded, or something else listens there; try again, or name another \
                           with --server or DRIFTLESS_SERVER";

/// Shown by `driftless --help`.
pub fn help() -> String {
    let codes = CODES.iter().map(|(code, meaning)| format!("  {code:<2} {meaning}\n")).collect::<String>();
    format!(
        "Exit codes:\n  0  done\n{codes}
Environment:
  DRIFTLESS_SERVER  the servers' addresses, as --server
  RUST_LOG          what the roles log, e.g. info or driftless_controller=debug"
    )
}

/// What a verb itself finds out; the rest is the store's errors.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    TimedOut(String),
    /// Somebody uses it, or something else is in the way that a flag overrules.
    #[error("{0}")]
    InUse(String),
    /// Somebody else wants something else by now.
    #[error("{0}")]
    TakenBack(String),
    #[error("{0}")]
    RolloutFailed(String),
    /// A server has no use without it.
    #[error("the store can't be used")]
    Store(#[source] Error),
    /// Not an error: `plan` found changes.
    #[error("there are changes")]
    Changes,
}

/// Prints the error, if it's one that somebody should see, and says how to exit.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result.map_err(missing) else { return ExitCode::SUCCESS };
    if is_broken_pipe(&error) {
        // Whoever read the output has seen enough.
        return ExitCode::SUCCESS;
    }
    if matches!(error.downcast_ref(), Some(Trouble::Changes)) {
        return ExitCode::from(CHANGES);
    }
    crate::output::say(&format!("error: {error:#}"));
    if let Some(hint) = hint(&error) {
        crate::output::say(&format!("hint: {hint}"));
    }
    ExitCode::from(code(&error))
}

/// One spelling of what isn't there, whoever found out.
fn missing(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<Error>() {
        Some(Error::NotFound(key)) => words::missing(key).into(),
        _ => error,
    }
}

pub fn code(error: &anyhow::Error) -> u8 {
    if let Some(trouble) = error.downcast_ref::<Trouble>() {
        return match trouble {
            Trouble::Usage(_) => USAGE,
            Trouble::NotFound(_) => NOT_FOUND,
            Trouble::TimedOut(_) => TIMED_OUT,
            Trouble::InUse(_) | Trouble::TakenBack(_) => CONFLICT,
            Trouble::RolloutFailed(_) => ROLLOUT_FAILED,
            Trouble::Store(_) => FAILED,
            Trouble::Changes => CHANGES,
        };
    }
    match error.downcast_ref::<Error>() {
        Some(Error::NotFound(_)) => NOT_FOUND,
        Some(
            Error::Conflict { .. }
            | Error::ClaimConflict { .. }
            | Error::BeingDeleted(_)
            | Error::InUse { .. }
            | Error::Fenced(_),
        ) => CONFLICT,
        // The servers are well.
        Some(Error::Unavailable(message)) if message.starts_with(UNHEARD) => FAILED,
        Some(Error::Unavailable(_)) => UNREACHABLE,
        _ => FAILED,
    }
}

fn hint(error: &anyhow::Error) -> Option<&'static str> {
    if let Some(Trouble::Store(Error::Unavailable(_))) = error.downcast_ref() {
        return Some("is the store running, and can it be reached from here? --store says where it is");
    }
    match error.downcast_ref::<Error>()? {
        Error::Unavailable(message) => unavailable(message),
        Error::OutcomeUnknown(_) => Some("look with 'driftless get' whether it was done, then try again"),
        Error::Conflict { .. } => Some("look with 'driftless get' at what changed, then try again"),
        _ => None,
    }
}

/// By what is unavailable: no server, one that can't serve anybody, or its store. Where it's anything else (a node's agent,
/// for one) the error names it, and it's no use to start a cluster.
fn unavailable(message: &str) -> Option<&'static str> {
    Some(match unready(message) {
        Some(Readiness::RolledBack) => {
            "end the servers and run 'driftless restore' on the store, then start them again; docs/DEPLOY.md says why"
        }
        Some(Readiness::Broken) => "start that server anew, or name another with --server or DRIFTLESS_SERVER",
        Some(Readiness::Draining) => "it's ending; try again, or name another with --server or DRIFTLESS_SERVER",
        Some(_) => STORE_AWAY,
        None if message.starts_with(UNREACHED) => SERVER_AWAY,
        None if message.starts_with(UNANSWERED) => SERVER_SLOW,
        None if message.starts_with("the store") || is_etcd_members(message) => STORE_AWAY,
        None => return None,
    })
}

/// Whether that is how a member of etcd failed, "etcd 10.0.0.7:2379: ...". What etcd as a whole lacks says itself what to do.
fn is_etcd_members(message: &str) -> bool {
    let name = message.strip_prefix("etcd ").and_then(|rest| rest.split(' ').next());
    name.is_some_and(|name| name.ends_with(':'))
}

/// What a server that refuses everything says of itself; none where nothing like that was said.
fn unready(message: &str) -> Option<Readiness> {
    use Readiness::{Broken, Draining, RolledBack, Stale, Starting};
    let (reason, _) = message.split_once(':')?;
    [Starting, Stale, RolledBack, Draining, Broken].into_iter().find(|readiness| readiness.reason() == reason)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_its_store_points_at_the_store_and_a_client_without_a_server_at_that() {
        let away = || Error::Unavailable("connection refused".into());
        let server = anyhow::Error::from(Trouble::Store(away()));
        assert_eq!((code(&server), hint(&server).map(|hint| hint.contains("--store"))), (FAILED, Some(true)));
        assert_eq!(format!("{server:#}"), "the store can't be used: unavailable: connection refused");
        let client = anyhow::Error::from(Error::Unavailable(format!("{UNREACHED}: connection refused")));
        let client = client.context("listing services");
        assert_eq!((code(&client), hint(&client)), (UNREACHABLE, Some(SERVER_AWAY)));
    }

    #[test]
    fn what_else_is_unavailable_needs_no_new_cluster() {
        let of = |message: &str| hint(&anyhow::Error::from(Error::Unavailable(message.into())));
        assert_eq!(of("no answer within 5000 ms"), Some(SERVER_SLOW));
        assert_eq!(of("the store didn't answer in 1s"), Some(STORE_AWAY));
        assert_eq!(of("etcd 10.0.0.7:2379: it sees no leader, so no quorum"), Some(STORE_AWAY));
        assert_eq!(of(store_etcd::NO_SPACE), None, "it says itself what to do");
        assert_eq!(of("Instance/default/web-0 is not placed on a node yet"), None);
        let unheard = format!("{UNHEARD}: the agent of node n1 didn't answer in time");
        assert_eq!(of(&unheard), None);
        assert_eq!(code(&Error::Unavailable(unheard).into()), FAILED, "the servers are there");
    }

    #[test]
    fn a_server_that_answers_is_not_said_to_be_away() {
        let of = |readiness: Readiness| {
            let refused = Error::Unavailable(format!("{}: {}", readiness.reason(), readiness.message()));
            hint(&anyhow::Error::from(refused)).unwrap_or_default()
        };
        assert!(of(Readiness::Stale).contains("its store isn't"), "{}", of(Readiness::Stale));
        assert!(of(Readiness::RolledBack).contains("driftless restore"), "{}", of(Readiness::RolledBack));
        assert!(of(Readiness::Broken).contains("start that server anew"), "{}", of(Readiness::Broken));
        assert!(of(Readiness::Draining).contains("it's ending"), "{}", of(Readiness::Draining));
    }
}
