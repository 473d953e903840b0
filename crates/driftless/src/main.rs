//! The binary: the roles of a cluster, and the client's verbs. Parses, runs one of them, and says how it ended.
//!
//! Nothing but this crate reads the environment; everything below is handed plain configuration.

mod alarm;
mod bench;
mod client;
mod commands;
mod edit;
mod exit;
mod follow;
mod output;
mod pages;
mod receiver;
mod roles;
mod standing;
mod telemetry;
mod verbs;
mod vouched;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit::report(commands::run())
}
