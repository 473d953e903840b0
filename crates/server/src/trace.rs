//! The spans of one step: its admission and its commit, in each trace that its writes belong to.
//!
//! What a write stores as its cause is the context of a commit that hasn't happened yet: it's promised here, and becomes
//! a span when the commit is over. Where the trace isn't sampled no span is made; its context is stored all the same, or
//! whoever is woken by the write would take it for nobody's. A server without a receiver stores the cause's own context:
//! whether others have one it can't know.

use std::time::SystemTime;

use model::Revision;
use store::{Error, Result, Write};
use telemetry::trace::{
    Context, Tracer, is_sampled,
    names::{self, DB_OPERATION, DB_SYSTEM, ERROR_TYPE, OUTCOME, REVISION, VERB, WRITES},
};

use crate::admit::entry::Done;

#[derive(Default)]
pub struct Spans {
    tracer: Tracer,
    /// None where nobody listens.
    began: Option<SystemTime>,
    admitted: Option<SystemTime>,
    promised: Vec<Promised>,
}

/// A commit in one trace.
struct Promised {
    under: String,
    context: Context,
    writes: i64,
}

impl Spans {
    /// Admission begins.
    pub fn begin(tracer: &Tracer) -> Self {
        let began = tracer.is_on().then(SystemTime::now);
        Self { tracer: tracer.clone(), began, ..Self::default() }
    }

    /// Notes on a write which commit it came with: it causes what follows.
    pub fn stamp(&mut self, write: &mut Write, done: &mut Done) {
        let Some(context) = self.commit_under(&done.traceparent) else { return };
        if let Write::Put(resource) = write {
            resource.metadata.get_or_insert_default().last_writer.get_or_insert_default().traceparent = context.clone();
        }
        if let Some(resource) = &mut done.after {
            resource.metadata.get_or_insert_default().last_writer.get_or_insert_default().traceparent = context;
        }
    }

    fn commit_under(&mut self, traceparent: &str) -> Option<String> {
        if self.began.is_none() || !is_sampled(traceparent) {
            return (!traceparent.is_empty()).then(|| traceparent.to_owned());
        }
        if let Some(promised) = self.promised.iter_mut().find(|promised| promised.under == traceparent) {
            promised.writes += 1;
            return Some(promised.context.to_string());
        }
        let context = Context::parse(traceparent)?.child();
        self.promised.push(Promised { under: traceparent.to_owned(), context, writes: 1 });
        Some(context.to_string())
    }

    /// Admission is over; the commit begins.
    pub fn admitted(&mut self) {
        if !self.promised.is_empty() {
            self.admitted = Some(SystemTime::now());
        }
    }

    /// The commit is over.
    pub fn end(self, verb: &str, result: &Result<Revision>) {
        let (Some(began), Some(admitted)) = (self.began, self.admitted) else { return };
        let first = self.promised.first().map(|promised| promised.context);
        for Promised { under, context, writes } in self.promised {
            if let Some(mut admission) = self.tracer.child(&under, &names::ADMISSION) {
                admission.began(began);
                admission.ended(admitted);
                admission.set(WRITES, writes);
            }
            let Some(mut commit) = self.tracer.child_at(&under, context, &names::STORE_COMMIT) else { continue };
            commit.began(admitted);
            commit.set(DB_SYSTEM, "driftless");
            commit.set(DB_OPERATION, "commit");
            commit.set(VERB, verb.to_owned());
            commit.set(WRITES, writes);
            // One transaction, in several traces.
            first.filter(|first| *first != context).into_iter().for_each(|first| commit.link(first));
            match result {
                Ok(revision) => {
                    commit.set(OUTCOME, "committed");
                    commit.set(REVISION, revision.0);
                }
                Err(error) => {
                    let outcome = outcome(error);
                    commit.set(OUTCOME, outcome);
                    commit.set(ERROR_TYPE, outcome);
                    commit.fail(error);
                }
            }
        }
    }
}

fn outcome(error: &Error) -> &'static str {
    match error.class() {
        store::Class::Conflict => "conflict",
        store::Class::Fenced => "fenced",
        store::Class::Unknown => "unknown",
        store::Class::Retry | store::Class::Terminal => "failed",
    }
}
