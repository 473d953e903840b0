//! From a decision to one transaction. Pure: the commit itself is the worker's.

use std::collections::BTreeMap;

use api::v1;
use bytes::Bytes;
use kinds::{Item, Reconciler, Rights, Scope, World, kind};
use model::{Domain, Draft, Fence, Move, Step, Time, Why, fields};
use prost::Message;
use prost_types::Any;
use store::{Note, Transaction, Write};
use xxhash_rust::xxh3::xxh3_64;

/// Moves in one transaction: with the own record, its history entry and `head` well below 120 puts.
pub const MOVES_MAX: usize = 100;
/// Encoded resources in one transaction. The history entry repeats them, and 1 MiB is the most.
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
    pub fence: Fence,
    pub actor: &'a str,
    pub now: Time,
    /// Moves to take at most: halved after a conflict.
    pub moves_max: usize,
}

/// The status as it should be stored, where it differs from what is.
pub fn status_to_write(domain: Domain, own: &Item, status: Option<&Any>, now: Time) -> Option<Any> {
    let status = status?;
    let rights = kind(own.key.kind())?.rights(domain);
    let merged = merged_status(rights, own, status, now)?;
    let same = own.status().is_some_and(|current| current.value == merged.value);
    let empty = own.status().is_none() && merged.value.is_empty();
    (!same && !empty).then_some(merged)
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
    let mut writes: Vec<Write> = Vec::new();
    let mut bytes = 0;
    for change in wanted.step.iter().flat_map(|step| &step.moves).take(under.moves_max.min(MOVES_MAX)) {
        let Some(write) = write(world, domain, wanted.own, change, under.now) else { continue };
        bytes += size(&write);
        if bytes > BYTES_MAX && !writes.is_empty() {
            break;
        }
        writes.push(write);
    }
    if !writes.iter().any(|write| write.key() == wanted.own.key) {
        writes.insert(0, own_record(domain, wanted, under.now));
    }
    let verb = wanted.step.map_or("status", |step| step.verb);
    Transaction {
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
    if let Some(status) = status_to_write(domain, wanted.own, wanted.status, now) {
        resource.status = Some(status);
    }
    Write::Put(Box::new(resource))
}

/// None where it's there no more: the next look sees that.
fn write(world: &World, domain: Domain, own: &Item, change: &Move, now: Time) -> Option<Write> {
    if let Move::Create(draft) = change {
        return Some(Write::Put(Box::new(created(own, draft))));
    }
    let item = world.get(change.key())?;
    let rights = kind(item.key.kind())?.rights(domain);
    let mut resource = item.resource.clone();
    match change {
        Move::Create(_) => return None,
        Move::Remove { key, uid } => {
            return Some(Write::Remove { key: key.clone(), uid: uid.clone(), revision: item.revision });
        }
        Move::Delete { .. } => resource.metadata.get_or_insert_default().deletion_time = Some(now.into()),
        Move::SetStatus { status, .. } => resource.status = merged_status(rights, item, status, now),
        Move::SetSpec { spec, status, .. } => {
            let current = resource.spec.take().unwrap_or_default();
            let value = fields::replace(&current.value.into(), &spec.value.clone().into(), rights.spec).ok()?;
            resource.spec = Some(Any { type_url: current.type_url, value: value.into() });
            if let Some(status) = status {
                resource.status = merged_status(rights, item, status, now);
            }
        }
    }
    Some(Write::Put(Box::new(resource)))
}

fn created(own: &Item, draft: &Draft) -> v1::Resource {
    let metadata = v1::Metadata {
        kind: draft.key.kind().into(),
        namespace: draft.key.namespace().into(),
        name: draft.key.name().into(),
        labels: draft.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
        owner: Some(v1::OwnerReference {
            kind: own.key.kind().into(),
            namespace: own.key.namespace().into(),
            name: own.key.name().into(),
            uid: own.uid().into(),
        }),
        ..Default::default()
    };
    v1::Resource { metadata: Some(metadata), spec: Some(draft.spec.clone()), status: draft.status.clone() }
}

fn merged_status(rights: Rights, item: &Item, status: &Any, now: Time) -> Option<Any> {
    let current = Bytes::from(item.status().map(|s| s.value.clone()).unwrap_or_default());
    let next = Bytes::from(status.value.clone());
    let value = fields::merge_status(&current, &next, rights.status, rights.conditions, now).ok()?;
    Some(Any { type_url: status.type_url.clone(), value: value.into() })
}

fn size(write: &Write) -> usize {
    match write {
        Write::Put(resource) => resource.encoded_len(),
        Write::Remove { key, .. } => key.text().len(),
    }
}
