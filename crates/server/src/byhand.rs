//! Deletions and statuses by hand: what users, and whoever acts as one, ask of single resources.

use std::sync::Arc;

use api::v1;
use bytes::Bytes;
use kinds::Kind;
use model::{Conditions, Domain, Filter, Key, Revision, fields::Fields};
use prost_types::Any;
use store::{Caller, Error, Expect, Note, Result, Write};

use crate::{
    admit::{
        declare::DEFAULT_NAMESPACE,
        entry::Done,
        message,
        rights::{self, Author},
    },
    commit::{known_kind, put},
    heads::Heads,
    members::Members,
    reads::barrier,
    record::Record,
    shared::Shared,
    unfenced::{ATTEMPTS_MAX, Step, author},
};

/// The key that a person means, who may leave the default namespace out.
pub fn meant(key: &Key) -> Key {
    match kinds::kind(key.kind()) {
        Some(kind) if kind.info().namespaced && key.namespace().is_empty() => {
            Key::new(key.kind(), DEFAULT_NAMESPACE, key.name())
        }
        _ => key.clone(),
    }
}

fn named(key: Option<&v1::ResourceKey>) -> Result<Key> {
    key.map(|key| meant(&Key::from(key))).ok_or_else(|| Error::invalid("key", "missing"))
}

/// What the caller says it read of the resource; empty and zero say nothing.
struct Precondition<'a> {
    uid: &'a str,
    revision: Revision,
}

impl Precondition<'_> {
    fn check(&self, key: &Key, record: &Record) -> Result<()> {
        if !self.uid.is_empty() && self.uid != record.uid() {
            let (expected, found) = (self.uid, record.uid());
            return Err(Error::conflict(key, format!("expected uid {expected:?}, but it has {found:?}")));
        }
        if self.revision != Revision::ZERO && self.revision != record.revision {
            let (expected, found) = (self.revision, record.revision);
            return Err(Error::conflict(key, format!("expected at revision {expected}, but it is at {found}")));
        }
        Ok(())
    }

    /// Whether a conflict is the caller's own to solve.
    fn is_pinned(&self) -> bool {
        self.revision != Revision::ZERO
    }
}

pub async fn delete(
    shared: &Shared,
    heads: &Heads,
    members: &Members,
    caller: &Caller,
    request: v1::DeleteRequest,
) -> Result<v1::DeleteResponse> {
    let key = named(request.key.as_ref())?;
    let kind = known_kind(&key)?;
    let expected = Precondition { uid: &request.uid, revision: Revision(request.revision) };
    let mut attempt = 1;
    loop {
        let mut step = Step::begin(shared);
        let record = current(shared, heads, &key).await?;
        expected.check(&key, &record)?;
        if !request.now {
            step.expects.extend(unused(shared, members, kind, &key, &record)?);
        }
        let author = author(shared, caller, Domain::User);
        let before = rights::read(&key, &record)?;
        let after = match asked_to_go(&author, kind, &key, &record, &before, request.now)? {
            Asked::Already => {
                return Ok(v1::DeleteResponse { resource: Some(before), revision: record.revision.0 });
            }
            Asked::Waits(resource) => Some(*resource),
            Asked::Gone => None,
        };
        let step = with(step, &author, &key, &record, after.clone());
        match step.commit(shared, &author, None, note(caller, "delete", &key)).await {
            Ok(revision) => {
                return Ok(v1::DeleteResponse { resource: after.map(|r| revised(r, revision)), revision: revision.0 });
            }
            Err(error) => again(shared, &key, &expected, &mut attempt, error)?,
        }
    }
}

/// Refuses what would pull away the ground from below others. Where no agent is there it has happened already. Returns what
/// the commit must find unchanged, so that nothing is bound to it meanwhile. An agent that comes back in this very moment
/// isn't compared with: it registers its Node anew, as that of a node whose record was deleted does.
fn unused(shared: &Shared, members: &Members, kind: &dyn Kind, key: &Key, record: &Record) -> Result<Option<Expect>> {
    let Some(node) = record.node().filter(|node| !members.agents(node).is_empty()) else { return Ok(None) };
    let cache = shared.cache();
    let there = Filter { node: node.into(), ..Filter::default() };
    let mut bound = cache.matching(&there, None).map(|object| object.key);
    if let Some(message) = kind.in_use(key, &mut bound) {
        return Err(Error::InUse { key: key.clone(), message });
    }
    let unchanged = kind.bound_with().and_then(|key| Some((cache.get(&key)?.revision, key)));
    Ok(unchanged.map(|(revision, key)| Expect { key, revision }))
}

/// What a deletion comes to.
enum Asked {
    /// Somebody asked before.
    Already,
    /// It goes when what it has or runs is gone.
    Waits(Box<v1::Resource>),
    /// Its record can go at once.
    Gone,
}

fn asked_to_go(
    author: &Author,
    kind: &dyn Kind,
    key: &Key,
    record: &Record,
    before: &v1::Resource,
    now: bool,
) -> Result<Asked> {
    if record.deleting {
        return Ok(Asked::Already);
    }
    let rights = kind.rights(author.domain);
    let mut next = before.clone();
    match evict_field(kind, record).filter(|_| !now) {
        Some(number) => {
            let status = before.status.as_ref().map(|status| Bytes::copy_from_slice(&status.value)).unwrap_or_default();
            let asked: Option<v1::Eviction> = message::read_field(&status, number).ok().flatten();
            // A drain may be taken back, and what it asked for with it; this isn't.
            if asked.is_some_and(|evict| !kinds::node::is_drain(&evict.requested_by)) {
                return Ok(Asked::Already);
            }
            let eviction = v1::Eviction { requested_by: author.actor.clone(), time: Some(author.now.into()) };
            next.status = Some(rights::wrap(kind.info().status_type, message::holding(number, &eviction)));
        }
        None if rights.remove && !record.finalized => return Ok(Asked::Gone),
        None if rights.delete => next.metadata.get_or_insert_default().deletion_time = Some(author.now.into()),
        None => return author.denied(key, "ask for the deletion"),
    }
    let mut after = rights::update(author, kind, before.clone(), next)?;
    let metadata = after.metadata.get_or_insert_default();
    if metadata.deletion_time.is_some() {
        metadata.traceparent = author.traceparent.clone();
    }
    Ok(Asked::Waits(Box::new(after)))
}

/// Where a user's request for eviction stands in the status: what has an owner that keeps a disruption budget goes when
/// that allows it.
fn evict_field(kind: &dyn Kind, record: &Record) -> Option<u32> {
    let number = message::field_number(kind.info().status_type, "evict")?;
    (kind.rights(Domain::User).status.contains(number) && !record.owner_uid().is_empty()).then_some(number)
}

pub async fn update_status(
    shared: &Shared,
    heads: &Heads,
    caller: &Caller,
    request: v1::UpdateStatusRequest,
) -> Result<v1::UpdateStatusResponse> {
    let key = named(request.key.as_ref())?;
    let kind = known_kind(&key)?;
    let allowed = kind.rights(Domain::User);
    if allowed.status == Fields::NONE && allowed.conditions == Conditions::NONE {
        let kind = kind.info().kind;
        return Err(Error::Denied(format!(
            "nothing in the status of a {kind} is a user's: controllers write theirs by Commit, agents by Report"
        )));
    }
    if request.uid.is_empty() {
        return Err(Error::invalid("uid", "missing: a status is said of one resource, not of a name"));
    }
    let expected = Precondition { uid: &request.uid, revision: Revision(request.revision) };
    let mut attempt = 1;
    loop {
        let step = Step::begin(shared);
        let record = current(shared, heads, &key).await?;
        expected.check(&key, &record)?;
        let author = author(shared, caller, Domain::User);
        let before = rights::read(&key, &record)?;
        let next = v1::Resource { status: overlaid(&before, request.status.as_ref())?, ..before.clone() };
        let after = rights::update(&author, kind, before.clone(), next)?;
        if after.status == before.status {
            return Ok(v1::UpdateStatusResponse { resource: Some(before) });
        }
        let step = with(step, &author, &key, &record, Some(after.clone()));
        match step.commit(shared, &author, None, note(caller, "status", &key)).await {
            Ok(revision) => return Ok(v1::UpdateStatusResponse { resource: Some(revised(after, revision)) }),
            Err(error) => again(shared, &key, &expected, &mut attempt, error)?,
        }
    }
}

/// What isn't set stays.
fn overlaid(before: &v1::Resource, set: Option<&Any>) -> Result<Option<Any>> {
    let (Some(current), Some(set)) = (&before.status, set) else { return Ok(set.cloned()) };
    let of = |any: &Any| Bytes::copy_from_slice(&any.value);
    let value =
        message::overlay(&of(current), &of(set)).map_err(|error| Error::invalid("status", error.to_string()))?;
    Ok(Some(Any { type_url: set.type_url.clone(), value: value.into() }))
}

/// As it is now, linearizably.
async fn current(shared: &Shared, heads: &Heads, key: &Key) -> Result<Arc<Record>> {
    barrier(shared, heads, Revision::ZERO).await?;
    shared.cache().get(key).cloned().ok_or_else(|| Error::NotFound(key.clone()))
}

fn with(mut step: Step, author: &Author, key: &Key, record: &Record, after: Option<v1::Resource>) -> Step {
    let replaced = record.revision;
    let (key, uid, root_uid) = (key.clone(), record.uid().to_owned(), record.root_uid().to_owned());
    let write = match &after {
        Some(resource) => put(resource.clone(), replaced),
        None => Write::Remove { key: key.clone(), uid: uid.clone(), revision: replaced },
    };
    let traceparent = author.traceparent.clone();
    step.add(write, Done { key, uid, root_uid, replaced, after, traceparent });
    step
}

fn note(caller: &Caller, verb: &str, key: &Key) -> Note {
    let why = v1::Why { reason: "AskedFor".into(), message: format!("{verb} {key}") };
    Note { verb: verb.into(), why, traceparent: caller.traceparent.clone() }
}

fn revised(mut resource: v1::Resource, revision: Revision) -> v1::Resource {
    resource.metadata.get_or_insert_default().revision = revision.0;
    resource
}

/// Conflicts with others are looked at again, a bounded number of times.
fn again(shared: &Shared, key: &Key, expected: &Precondition<'_>, attempt: &mut usize, error: Error) -> Result<()> {
    let pinned = |on: &Key| on == key && expected.is_pinned();
    if !matches!(&error, Error::Conflict { key: on, .. } if !pinned(on)) || *attempt == ATTEMPTS_MAX {
        return Err(error);
    }
    *attempt += 1;
    shared.counters.retries.add(1);
    Ok(())
}
