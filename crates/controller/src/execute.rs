//! From a decision to one transaction. Pure: the commit itself is the worker's.

use kinds::{Item, Reconciler, Scope, World, moves, moves::After};
use model::{Domain, Fence, Step, Time, Why};
use prost::Message;
use prost_types::Any;
use store::{Note, Transaction, Write};
use xxhash_rust::xxh3::xxh3_64;

/// Moves in one transaction: with the own record, its history entry and `head` well below 120 puts.
pub const MOVES_MAX: usize = 100;
/// Encoded resources in one transaction, the reconciled one's among them. The history entry repeats them, and 1 MiB is the
/// most. One move goes in any case; `kinds::SPEC_BYTES_MAX` sees to it that it fits.
const BYTES_MAX: usize = 450 * 1024;

/// What one look wants written.
pub struct Wanted<'a> {
    pub reconciler: &'a dyn Reconciler,
    pub own: &'a Item,
    pub step: Option<&'a Step>,
    pub status: Option<&'a Any>,
    pub why: &'a Why,
}

/// What it is written under.
pub struct Under<'a> {
    /// Of the store that the decision saw: in another one the same revisions may stand for something else.
    pub incarnation: &'a str,
    pub fence: Fence,
    pub actor: &'a str,
    pub now: Time,
    /// Moves to take at most: halved after a conflict.
    pub moves_max: usize,
}

pub fn domain(reconciler: &dyn Reconciler) -> Domain {
    match reconciler.scope() {
        Scope::Shard => Domain::Shard,
        Scope::Leader => Domain::Leader,
    }
}

/// One transaction: the longest prefix of the step within all bounds, and always the reconciled resource's own record,
/// so that a step whose outcome was unknown can't commit after a newer one.
pub fn transaction(world: &World, wanted: &Wanted<'_>, under: &Under<'_>) -> Transaction {
    let domain = domain(wanted.reconciler);
    let own = own_record(domain, wanted, under.now);
    let mut writes: Vec<Write> = Vec::new();
    let mut bytes = size(&own);
    for change in wanted.step.iter().flat_map(|step| &step.moves).take(under.moves_max.min(MOVES_MAX)) {
        let Some(after) = moves::apply(world, domain, wanted.own, change, under.now) else { continue };
        let write = write(after);
        bytes += size(&write);
        if bytes > BYTES_MAX && !writes.is_empty() {
            break;
        }
        writes.push(write);
    }
    if !writes.iter().any(|write| write.key() == wanted.own.key) {
        writes.insert(0, own);
    }
    let verb = wanted.step.map_or("status", |step| step.verb);
    Transaction {
        incarnation: under.incarnation.to_owned(),
        fence: Some(under.fence.clone()),
        actor: model::Actor::parse(under.actor),
        step_id: step_id(&under.fence, wanted.own, verb),
        note: Some(Note {
            verb: verb.into(),
            why: wanted.why.into(),
            traceparent: wanted.own.metadata().traceparent.clone(),
        }),
        writes,
        ..Transaction::default()
    }
}

/// The same in a retry: made of the claim's epoch and the state that the decision saw.
fn step_id(fence: &Fence, own: &Item, verb: &str) -> String {
    format!(
        "{:016x}",
        xxh3_64(format!("{fence}\0{}\0{}\0{}\0{verb}", own.key.text(), own.uid(), own.revision).as_bytes())
    )
}

fn own_record(domain: Domain, wanted: &Wanted<'_>, now: Time) -> Write {
    let mut resource = wanted.own.resource.clone();
    if let Some(status) = moves::status_to_write(domain, wanted.own, wanted.status, now) {
        resource.status = Some(status);
    }
    Write::Put(Box::new(resource))
}

fn write(after: After) -> Write {
    match after {
        After::Put(resource) => Write::Put(resource),
        After::Removed { key, uid, revision } => Write::Remove { key, uid, revision },
    }
}

fn size(write: &Write) -> usize {
    match write {
        Write::Put(resource) => resource.encoded_len(),
        Write::Remove { key, .. } => key.text().len(),
    }
}

#[cfg(test)]
mod tests;
