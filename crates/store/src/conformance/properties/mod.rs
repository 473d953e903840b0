//! Holds a store against the reference: random operations are run on both, and after each what came of it and what can
//! be seen must be the same. Revisions are compared by their order, never by their value.
//!
//! Opening a durable store anew is one of the operations. A failing run is shrunk and printed.

mod operation;
mod side;

use std::{future::Future, sync::Arc};

use proptest::test_runner::{Config, TestRunner};
use side::Side;

pub use operation::{Operation, operations};

use crate::{Memory, Store};

/// What becomes of sessions when a store is opened anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sessions {
    Kept,
    /// They end with the process.
    Ended,
}

/// A durable store that is compared.
pub trait Subject: Send {
    fn store(&self) -> Arc<dyn Store>;

    /// Closes it and opens it anew, on the same data.
    fn reopen(&mut self) -> impl Future<Output = Sessions> + Send;
}

/// So many runs, each on a fresh and empty subject. For a plain `#[test]`: it makes its own runtime.
pub fn check<S: Subject>(runs: u32, start: impl AsyncFn() -> S) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let config = Config { cases: runs, failure_persistence: None, ..Config::default() };
    let checked = TestRunner::new(config).run(&operations(), |operations| {
        runtime.block_on(async { compare(&operations, start().await).await });
        Ok(())
    });
    checked.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Runs these operations on the subject and on the reference; panics where they differ.
pub async fn compare(operations: &[Operation], mut subject: impl Subject) {
    let mut reference = Side::new(Arc::new(Memory::default())).await;
    let mut compared = Side::new(subject.store()).await;
    let (mut before, mut era) = (reference.observe().await, 0);
    for (number, operation) in operations.iter().enumerate() {
        let expected = reference.run(operation, &before, number, era).await;
        let outcome = compared.run(operation, &before, number, era).await;
        assert_eq!(outcome, expected, "what came of {operation:?}");
        if matches!(operation, Operation::Reopen) {
            let sessions = subject.reopen().await;
            compared.reopened(subject.store()).await;
            if sessions == Sessions::Ended {
                era += 1;
                end_all(&*reference.store, before.members.keys()).await;
            }
        }
        before = reference.observe().await;
        assert_eq!(compared.observe().await, before, "what is seen after {operation:?}");
    }
}

async fn end_all(store: &dyn Store, sessions: impl Iterator<Item = &String>) {
    for session in sessions {
        assert_eq!(store.end_session(session, None).await, Ok(true));
    }
}
