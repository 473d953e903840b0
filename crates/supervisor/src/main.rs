//! The per-instance supervisor: starts one process tree, keeps what it writes, and says on disk how it ended.
//!
//! One of these runs beside each run of each instance, in a session of its own, so that the agent may be killed and
//! replaced without touching what runs. It knows nothing of the cluster and never restarts anything: the agent decides,
//! this keeps the tree. Its promises:
//!
//! - it holds the lock that it was given as standard input until the whole tree is gone, so nobody starts a second run
//!   beside it;
//! - who it is, and who its child is, stands on disk before the child's program runs;
//! - when it ends, nothing of the tree is left and `exit` says how the child ended.
//!
//! The agent asks by signals to the pidfd of the supervisor: SIGTERM stops gracefully (SIGTERM to the child's process
//! group, SIGKILL to the tree after the grace), SIGINT kills the tree at once. Both may be repeated. Where the run must end
//! with the node's contact to the servers, SIGUSR1 brings along until when it may go on.
//!
//! It must never use threads or grow: five hundred of them run on a node.

mod arguments;
mod check;
mod log;
mod record;
mod run;
mod spawn;
mod sys;
mod tree;

use std::process::ExitCode;

use arguments::Mode;

fn main() -> ExitCode {
    let mode = match Mode::parse(std::env::args_os().skip(1)) {
        Ok(mode) => mode,
        Err(message) => {
            eprintln!("driftless-supervisor: {message}");
            return ExitCode::from(2);
        }
    };
    let done = match mode {
        Mode::Run(options) => run::run(&options).map(|()| ExitCode::SUCCESS),
        Mode::Check(options) => check::check(&options),
    };
    done.unwrap_or_else(|error| {
        eprintln!("driftless-supervisor: {error}");
        ExitCode::FAILURE
    })
}
