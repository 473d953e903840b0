//! What the server writes for users, under no claim: the transaction's parts that applies, deletions and statuses share.

use model::{Actor, Domain, Fence, Revision};
use store::{Caller, Error, Expect, Note, Result, Transaction, Write};

use crate::{
    admit::{
        entry::{Done, entries},
        rights::Author,
    },
    folds::Folding,
    shared::Shared,
    trace::Spans,
};

/// How often something is computed anew after a conflict with somebody else's write.
pub const ATTEMPTS_MAX: usize = 16;

/// Who writes, stamped as of now, in a step of its own.
pub fn author(shared: &Shared, caller: &Caller, domain: Domain) -> Author {
    Author {
        domain,
        actor: caller.actor.to_string(),
        step_id: shared.stamps().uid(),
        now: shared.now(),
        traceparent: caller.traceparent.clone(),
    }
}

/// The writes of one such step.
#[derive(Default)]
pub struct Step {
    pub writes: Vec<Write>,
    pub done: Vec<Done>,
    pub expects: Vec<Expect>,
    /// Of the store that its admission looks at; empty: of the one that is there when it's committed.
    incarnation: String,
    spans: Spans,
}

impl Step {
    /// Its admission begins, before it looks at anything.
    pub fn begin(shared: &Shared) -> Self {
        let incarnation = shared.cache().incarnation.clone();
        Self { incarnation, spans: Spans::begin(&shared.config.tracer), ..Self::default() }
    }

    pub fn add(&mut self, mut write: Write, mut done: Done) {
        self.spans.stamp(&mut write, &mut done);
        self.writes.push(write);
        self.done.push(done);
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// The whole of it, with the history's entries.
    pub fn transaction(self, author: &Author, fence: Option<Fence>, note: &Note, folding: &Folding) -> Transaction {
        let log = entries(author, fence.as_ref(), note, self.done, folding);
        Transaction {
            incarnation: self.incarnation,
            fence,
            actor: Actor::parse(&author.actor),
            step_id: author.step_id.clone(),
            expects: self.expects,
            writes: self.writes,
            note: None,
            log,
        }
    }

    pub async fn commit(
        mut self,
        shared: &Shared,
        author: &Author,
        fence: Option<Fence>,
        note: Note,
    ) -> Result<Revision> {
        if self.incarnation.is_empty() {
            self.incarnation = shared.cache().incarnation.clone();
        }
        let folding = shared.folds().look(shared.stamps(), &note, &self.done);
        let declared = shared.convergence.declare(&shared.cache(), &self.done);
        let mut spans = std::mem::take(&mut self.spans);
        let transaction = self.transaction(author, fence, &note, &folding);
        spans.admitted();
        let result = shared.commit(transaction).await;
        spans.end(&note.verb, &result);
        shared.convergence.committed(&declared, &result);
        if result.is_ok() {
            shared.folds().keep(folding);
        }
        count(shared, &result);
        result
    }
}

/// Counts what became of a commit.
pub fn count(shared: &Shared, result: &Result<Revision>) {
    let counters = &shared.counters;
    if let Err(Error::WrongIncarnation(_)) = result {
        // The store isn't the one that the cache was read from any more.
        shared.relist.notify_one();
    }
    match result {
        Ok(_) => counters.commits.add(1),
        Err(Error::Conflict { .. }) => counters.commits_conflicted.add(1),
        Err(Error::Fenced(_)) => counters.commits_fenced.add(1),
        Err(Error::Denied(_)) => counters.commits_denied.add(1),
        Err(_) => counters.commits_failed.add(1),
    }
}
