//! What caused a look, and the spans of the look once it writes something. A look that changes nothing makes none.
//!
//! Beside the queue and not in it: the queue knows nothing of causes, and no decision depends on them. Only sampled
//! writes are noted here, so without them it costs one load of an atomic.
//!
//! A look under causes is a child of the newest, with links to all. One without, of a resource that is not what was
//! declared yet, goes on where its last write left off: so a trace survives a lost event and a change of owner. Any other is
//! a trace of its own: something drifted.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use api::v1;
use bytes::Bytes;
use kinds::{Item, RECONCILERS, Scope};
use model::{Fence, Key, Next, Revision, Time, fields};
use store::{Result, Transaction, Write};
use telemetry::trace::{
    Context, Span, Tracer, is_sampled,
    names::{self, *},
    unsampled,
};

use crate::{cache::Changed, queue::Work};

/// Keys whose causes are remembered. Beyond, a trace has a gap.
const KEYS_MAX: usize = 8_192;
/// Causes of one look that are linked; the others are counted.
const CAUSES_MAX: usize = 16;

/// A sampled commit, as its change came in.
#[derive(Debug)]
struct Delivery {
    context: Context,
    revision: Revision,
    /// When the server stamped it and when it was here. None: it came with a snapshot or a list, any time later.
    took: Option<(SystemTime, SystemTime)>,
    changes: usize,
    /// Its span was made: each commit's is made once, by the first look that acts on it.
    told: AtomicBool,
}

/// Why a key is looked at.
#[derive(Debug)]
pub struct Causes {
    since: SystemTime,
    /// Newest last.
    deliveries: Vec<Arc<Delivery>>,
    count: i64,
}

#[derive(Default)]
pub struct Waiting {
    keys: Mutex<HashMap<Work, Causes>>,
    /// As many keys.
    count: AtomicUsize,
}

impl Waiting {
    fn with<T>(&self, change: impl FnOnce(&mut HashMap<Work, Causes>) -> T) -> T {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut keys);
        self.count.store(keys.len(), Relaxed);
        changed
    }

    /// These changes wake those keys. `live`: they have just come through the watch.
    pub fn note(&self, changed: &[Changed], live: bool, wakes: impl Fn(&Item) -> Vec<Work>) {
        let mut deliveries: HashMap<&str, (Delivery, Vec<Work>)> = HashMap::new();
        for (before, after) in changed {
            // What is gone was let go by its last write.
            let Some(item) = after.as_ref().or(before.as_ref()) else { continue };
            let Some(context) = last_write(item).and_then(|written| Some((written, Context::parse(written)?))) else {
                continue;
            };
            let (delivery, woken) = deliveries.entry(context.0).or_insert_with(|| {
                let took = live.then(|| (stamped(item), SystemTime::now()));
                let (context, revision, told) = (context.1, item.revision, AtomicBool::new(false));
                (Delivery { context, revision, took, changes: 0, told }, Vec::new())
            });
            delivery.changes += 1;
            woken.extend(wakes(item));
        }
        if !deliveries.is_empty() {
            self.with(|keys| deliveries.into_values().for_each(|(delivery, woken)| note(keys, delivery, woken)));
        }
    }

    /// The key is being looked at.
    pub fn take(&self, work: &Work) -> Option<Causes> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.with(|keys| keys.remove(work))
    }

    /// The look came to nothing: what caused it causes the next one.
    fn put_back(&self, work: &Work, causes: Causes) {
        self.with(|keys| {
            let newer = keys.remove(work);
            let causes = newer.into_iter().flat_map(|newer| newer.deliveries).fold(causes, Causes::and);
            keys.insert(work.clone(), causes);
        });
    }

    /// Nothing is this replica's any more.
    pub fn clear(&self) {
        self.with(HashMap::clear);
    }
}

fn note(keys: &mut HashMap<Work, Causes>, delivery: Delivery, mut woken: Vec<Work>) {
    woken.sort();
    woken.dedup();
    let delivery = Arc::new(delivery);
    for work in woken {
        if let Some(causes) = keys.remove(&work) {
            keys.insert(work, causes.and(delivery.clone()));
        } else if keys.len() < KEYS_MAX {
            keys.insert(work, Causes { since: SystemTime::now(), deliveries: vec![delivery.clone()], count: 1 });
        }
    }
}

impl Causes {
    fn and(mut self, delivery: Arc<Delivery>) -> Self {
        if self.deliveries.len() == CAUSES_MAX {
            self.deliveries.remove(0);
        }
        self.deliveries.push(delivery);
        self.deliveries.sort_by_key(|delivery| delivery.revision);
        self.count += 1;
        self
    }
}

/// The context of the item's last write, where it's sampled.
fn last_write(item: &Item) -> Option<&str> {
    let writer = item.metadata().last_writer.as_ref()?;
    Some(writer.traceparent.as_str()).filter(|written| is_sampled(written))
}

fn stamped(item: &Item) -> SystemTime {
    let time = item.metadata().updated_time.as_ref().map(Time::from).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0.max(0).unsigned_abs())
}

/// What a trace needs to know of the resource that a step is for.
#[derive(Default)]
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
            written: last_write(item).map(str::to_owned),
            settled: settled && !item.deleting(),
        }
    }
}

/// A look that writes.
pub struct Traced {
    span: Option<Span>,
    placements: Vec<Span>,
    causes: Option<Causes>,
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
    pub fn begin(&self, causes: Option<Causes>, transaction: &mut Transaction) -> Traced {
        let mut traced = Traced { span: None, placements: Vec::new(), causes };
        let Some(note) = &mut transaction.note else { return traced };
        if !self.tracer.is_on() {
            note.traceparent = unsampled(std::mem::take(&mut note.traceparent));
            return traced;
        }
        let declared = std::mem::take(&mut note.traceparent);
        let bound = || bound_under(&transaction.writes, &self.work.key);
        traced.span = match (&traced.causes, &self.own.written) {
            (Some(causes), _) => self.under(causes),
            (None, Some(written)) if !self.own.settled => self.goes_on(written),
            (None, _) if self.is_leaders() => bound().and_then(|under| self.goes_on(&under)),
            (None, None) if !self.own.settled => None,
            (None, _) => {
                let root = self.tracer.root();
                note.traceparent = root.to_string();
                self.root(root, &declared)
            }
        };
        if let Some(span) = &mut traced.span {
            note.traceparent = span.context().to_string();
            let verb = note.verb.clone();
            self.describe(span, verb, transaction.writes.len(), traced.causes.as_ref());
        } else if note.traceparent.is_empty() {
            note.traceparent = unsampled(declared);
        }
        self.mark(&mut traced, transaction);
        traced
    }

    fn is_leaders(&self) -> bool {
        RECONCILERS[self.work.reconciler].scope() == Scope::Leader
    }

    /// A child of the newest, and what came between.
    fn under(&self, causes: &Causes) -> Option<Span> {
        let newest = causes.deliveries.last()?.context.to_string();
        causes.deliveries.iter().for_each(|delivery| self.deliver(delivery));
        if let Some(mut wait) = self.tracer.child(&newest, &names::QUEUE_WAIT) {
            wait.began(causes.since);
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

    fn describe(&self, span: &mut Span, verb: String, writes: usize, causes: Option<&Causes>) {
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
        span.set(CAUSES, causes.map_or(0, |causes| causes.count));
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
            if is_own || !self.is_leaders() {
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

    /// Its commit was answered. What has to be looked at again has the same causes then.
    pub fn end(self, waiting: &Waiting, work: &Work, result: &Result<Revision>, next: &Next) {
        let Self { span, placements, causes } = self;
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
        if let (Err(_), Some(causes)) = (result, causes) {
            waiting.put_back(work, causes);
        }
    }
}
