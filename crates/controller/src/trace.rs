//! The spans of a look once it writes something. A look that changes nothing makes none.
//!
//! A look under sampled causes is a child of the newest, with links to all; under unsampled ones it's in no trace that
//! anybody sees, and says so in what it writes. One without a known cause, of a resource that is not what was declared yet,
//! goes on where its last write left off: so a trace survives a lost event and a change of owner. Any other is a trace of
//! its own: something drifted.
//!
//! Without a receiver a look makes no spans, and hands on the context that its own would have been under: those of others
//! still belong to the declaration's trace.

use std::{collections::HashMap, sync::atomic::Ordering::Relaxed, time::SystemTime};

use api::v1;
use bytes::Bytes;
use kinds::{Item, RECONCILERS};
use model::{Fence, Key, Next, Revision, fields};
use store::{Class, Result, Transaction, Write};
use telemetry::trace::{
    Context, Span, Tracer, is_sampled,
    names::{self, *},
    unsampled,
};

use crate::{
    causes::{Cause, Causes, Delivery, Waiting, last_write},
    queue::Work,
};

/// What a trace needs to know of the resource that a step is for.
pub struct Own {
    shard: u32,
    /// Its last write, where that is sampled.
    written: Option<String>,
    /// It was seen to be what was declared: whatever is done now has another cause.
    settled: bool,
}

impl Own {
    pub fn of(item: &Item) -> Self {
        let settled = item.status().is_some_and(|status| {
            let ready = |c: &v1::Condition| c.r#type == "Ready" && c.status == "True";
            fields::observed_generation(&status.value) == item.metadata().generation
                && fields::conditions_of(&Bytes::copy_from_slice(&status.value))
                    .is_ok_and(|conditions| conditions.iter().any(ready))
        });
        Self {
            shard: item.metadata().shard,
            written: Some(last_write(item)).filter(|written| is_sampled(written)).map(str::to_owned),
            settled: settled && !item.deleting(),
        }
    }
}

/// A look that writes.
pub struct Traced {
    span: Option<Span>,
    placements: Vec<Span>,
    cause: Option<Cause>,
}

/// What it writes, and under what.
pub struct Look<'a> {
    pub tracer: &'a Tracer,
    pub work: &'a Work,
    pub own: Own,
    pub claim: &'a str,
    pub fence: &'a Fence,
    pub next: &'a Next,
    /// When it began.
    pub began: SystemTime,
}

impl Look<'_> {
    /// Begins its spans, and notes in the transaction under which its writes come.
    pub fn begin(&self, cause: Option<Cause>, transaction: &mut Transaction) -> Traced {
        let mut traced = Traced { span: None, placements: Vec::new(), cause };
        let Some(note) = &mut transaction.note else { return traced };
        let declared = std::mem::take(&mut note.traceparent);
        let leads = self.leads(traced.cause.as_ref(), &transaction.writes);
        traced.span = match (&traced.cause, &leads) {
            (Some(Cause::Sampled(causes)), _) => self.under(causes),
            (_, Some(leads)) => self.goes_on(leads),
            (None, None) if self.begins() => {
                let root = self.tracer.root();
                note.traceparent = root.to_string();
                self.root(root, &declared)
            }
            (_, None) => None,
        };
        if let Some(span) = &mut traced.span {
            note.traceparent = span.context().to_string();
            let verb = note.verb.clone();
            self.describe(span, verb, transaction.writes.len(), traced.cause.as_ref());
        } else if note.traceparent.is_empty() {
            note.traceparent = leads.unwrap_or_else(|| self.untold(declared, traced.cause.is_some()));
        }
        self.mark(&mut traced, transaction);
        traced
    }

    /// The sampled context that it goes on under, if any.
    fn leads(&self, cause: Option<&Cause>, writes: &[Write]) -> Option<String> {
        match (cause, &self.own.written) {
            (Some(Cause::Sampled(causes)), _) => Some(causes.deliveries.last()?.context.to_string()),
            // Its own last write was for whatever it served then.
            _ if self.serves_many() => bound_under(writes, &self.work.key),
            (_, Some(written)) if !self.own.settled => Some(written.clone()),
            _ => None,
        }
    }

    /// Whether what nobody caused is a trace of its own.
    fn begins(&self) -> bool {
        self.tracer.is_on() && self.own.settled && !self.serves_many()
    }

    fn serves_many(&self) -> bool {
        RECONCILERS[self.work.reconciler].serves_many()
    }

    /// What no spans are made of is still found by its trace's id; and where something caused it, whoever is woken by it
    /// must not take it for nobody's.
    fn untold(&self, declared: String, caused: bool) -> String {
        match declared.is_empty() && caused {
            true => Context::random(false).to_string(),
            false => unsampled(declared),
        }
    }

    /// A child of the newest, and what came between.
    fn under(&self, causes: &Causes) -> Option<Span> {
        let newest = causes.deliveries.last()?.context.to_string();
        causes.deliveries.iter().for_each(|delivery| self.deliver(delivery));
        let waited = causes.since.and_then(|since| Some((since, self.tracer.child(&newest, &names::QUEUE_WAIT)?)));
        if let Some((since, mut wait)) = waited {
            wait.began(since);
            wait.ended(self.began);
            wait.set(KIND, self.work.key.kind().to_owned());
            wait.set(KEY, self.work.key.to_string());
        }
        let mut span = self.tracer.child(&newest, &names::RECONCILE)?;
        causes.deliveries.iter().for_each(|delivery| span.link(delivery.context));
        Some(span)
    }

    /// Where a write left off.
    fn goes_on(&self, written: &str) -> Option<Span> {
        let mut span = self.tracer.child(written, &names::RECONCILE)?;
        Context::parse(written).into_iter().for_each(|written| span.link(written));
        Some(span)
    }

    fn deliver(&self, delivery: &Delivery) {
        let Some((stamped, arrived)) = delivery.took else { return };
        if delivery.told.swap(true, Relaxed) {
            return;
        }
        let Some(mut span) = self.tracer.child(&delivery.context.to_string(), &names::WATCH_DELIVER) else { return };
        span.began(stamped);
        span.ended(arrived);
        span.set(MESSAGING_SYSTEM, "driftless");
        span.set(MESSAGING_OPERATION, "deliver");
        span.set(MESSAGING_TYPE, "receive");
        span.set(MESSAGING_DESTINATION, "watch");
        span.set(MESSAGING_COUNT, delivery.changes as i64);
        span.set(REVISION, delivery.revision.0);
    }

    /// Nobody declared anything: a sweep, a time or a report found that it isn't so any more.
    fn root(&self, root: Context, declared: &str) -> Option<Span> {
        let mut span = self.tracer.first(root, &names::RECONCILE)?;
        Context::parse(declared).into_iter().for_each(|declared| span.link(declared));
        Some(span)
    }

    fn describe(&self, span: &mut Span, verb: String, writes: usize, cause: Option<&Cause>) {
        span.began(self.began);
        span.set(MESSAGING_SYSTEM, "driftless");
        span.set(MESSAGING_OPERATION, "reconcile");
        span.set(MESSAGING_TYPE, "process");
        span.set(KIND, self.work.key.kind().to_owned());
        span.set(KEY, self.work.key.to_string());
        span.set(SHARD, i64::from(self.own.shard));
        span.set(CLAIM, self.claim.to_owned());
        span.set(EPOCH, epoch(self.fence));
        span.set(VERB, verb);
        span.set(WHY, self.next.why().reason.to_string());
        span.set(WRITES, writes as i64);
        let count = match cause {
            Some(Cause::Sampled(causes)) => causes.count,
            Some(Cause::Unsampled) | None => 0,
        };
        span.set(CAUSES, count);
    }

    /// What is another's than the reconciled resource's stays in the trace that it's in. Nothing else goes back that was
    /// only read.
    fn mark(&self, traced: &mut Traced, transaction: &mut Transaction) {
        let mut placements: HashMap<u128, (String, i64)> = HashMap::new();
        for write in &mut transaction.writes {
            let Write::Put(resource) = write else { continue };
            let is_own = Key::of(resource.metadata.get_or_insert_default()) == self.work.key;
            let metadata = resource.metadata.get_or_insert_default();
            let before = metadata.last_writer.take().unwrap_or_default().traceparent;
            if is_own || !self.serves_many() {
                continue;
            }
            let traceparent = match Context::parse(&before).filter(|before| before.sampled) {
                Some(context) => {
                    let placed = placements.entry(context.trace);
                    let placed = placed.or_insert_with(|| (traced.place(self.tracer, context), 0));
                    placed.1 += 1;
                    placed.0.clone()
                }
                None => unsampled(metadata.traceparent.clone()),
            };
            metadata.last_writer = Some(v1::Writer { traceparent, ..Default::default() });
        }
        for span in &mut traced.placements {
            span.set(WRITES, placements.get(&span.context().trace).map_or(0, |placed| placed.1));
            span.set(CLAIM, self.claim.to_owned());
            span.set(EPOCH, epoch(self.fence));
            span.set(WHY, self.next.why().reason.to_string());
        }
    }
}

/// The newest of the writes that aren't the key's own.
fn bound_under(writes: &[Write], own: &Key) -> Option<String> {
    let contexts = writes.iter().filter(|write| write.key() != *own).filter_map(|write| match write {
        Write::Put(resource) => {
            let metadata = resource.metadata.as_ref()?;
            let written = &metadata.last_writer.as_ref()?.traceparent;
            is_sampled(written).then_some((metadata.revision, written))
        }
        Write::Remove { .. } => None,
    });
    contexts.max().map(|(_, written)| written.clone())
}

fn epoch(fence: &Fence) -> i64 {
    match fence {
        Fence::Claim { epoch, .. } => i64::try_from(epoch.0).unwrap_or(i64::MAX),
        Fence::Session { .. } => 0,
    }
}

impl Traced {
    /// The span in the trace of something that is bound, under which it goes on.
    fn place(&mut self, tracer: &Tracer, written: Context) -> String {
        let reconcile = self.span.as_ref().map(Span::context);
        let same = reconcile.filter(|reconcile| reconcile.trace == written.trace);
        let under = same.unwrap_or(written).to_string();
        let Some(mut span) = tracer.child(&under, &names::PLACEMENT) else { return under };
        reconcile.filter(|_| same.is_none()).into_iter().for_each(|reconcile| span.link(reconcile));
        let context = span.context().to_string();
        self.placements.push(span);
        context
    }

    /// Its commit was answered. What has to be looked at again has the same cause then.
    pub fn end(self, waiting: &Waiting, work: &Work, result: &Result<Revision>, next: &Next) {
        let Self { span, placements, cause } = self;
        drop(placements);
        if let Some(mut span) = span {
            match result {
                Ok(revision) => {
                    span.set(OUTCOME, next.outcome());
                    span.set(REVISION, revision.0);
                }
                Err(error) => {
                    span.set(OUTCOME, format!("{:?}", error.class()).to_lowercase());
                    span.fail(error);
                }
            }
        }
        if let (Err(error), Some(cause)) = (result, cause)
            && error.class() != Class::Fenced
        {
            waiting.put_back(work, cause);
        }
    }
}

#[cfg(test)]
mod tests;
