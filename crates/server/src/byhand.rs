//! Deletions and statuses by hand: what users, and whoever acts as one, ask of single resources.

use std::sync::Arc;

use api::v1;
use kinds::Kind;
use model::{Conditions, Domain, Key, Revision, fields::Fields};
use store::{Caller, Error, Note, Result, Write};

use crate::{
    admit::{
        declare::DEFAULT_NAMESPACE,
        entry::Done,
        rights::{self, Author},
    },
    commit::{known_kind, put},
    heads::Heads,
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

fn asked(key: Option<&v1::ResourceKey>) -> Result<Key> {
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
    caller: &Caller,
    request: v1::DeleteRequest,
) -> Result<v1::DeleteResponse> {
    let key = asked(request.key.as_ref())?;
    let kind = known_kind(&key)?;
    let expected = Precondition { uid: &request.uid, revision: Revision(request.revision) };
    let mut attempt = 1;
    loop {
        let record = current(shared, heads, &key).await?;
        expected.check(&key, &record)?;
        let author = author(shared, caller, Domain::User);
        let before = rights::read(&key, &record)?;
        if record.deleting {
            return Ok(v1::DeleteResponse { resource: Some(before), revision: record.revision.0 });
        }
        let after = deleted(&author, kind, &key, &record, before)?;
        let step = step(&key, &record, after.clone());
        match step.commit(shared, &author, None, note(caller, "delete", &key)).await {
            Ok(revision) => {
                return Ok(v1::DeleteResponse { resource: after.map(|r| revised(r, revision)), revision: revision.0 });
            }
            Err(error) => again(shared, &expected, &mut attempt, error)?,
        }
    }
}

/// The resource as it waits for its end; none where its record can go at once.
fn deleted(
    author: &Author,
    kind: &dyn Kind,
    key: &Key,
    record: &Record,
    before: v1::Resource,
) -> Result<Option<v1::Resource>> {
    let rights = kind.rights(author.domain);
    if rights.remove && !record.finalized {
        return Ok(None);
    }
    if !rights.delete {
        return author.denied(key, "ask for the deletion");
    }
    let mut next = before.clone();
    next.metadata.get_or_insert_default().deletion_time = Some(author.now.into());
    rights::update(author, kind, before, next).map(Some)
}

pub async fn update_status(
    shared: &Shared,
    heads: &Heads,
    caller: &Caller,
    request: v1::UpdateStatusRequest,
) -> Result<v1::UpdateStatusResponse> {
    let key = asked(request.key.as_ref())?;
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
        let record = current(shared, heads, &key).await?;
        expected.check(&key, &record)?;
        let author = author(shared, caller, Domain::User);
        let before = rights::read(&key, &record)?;
        let next = v1::Resource { status: request.status.clone(), ..before.clone() };
        let after = rights::update(&author, kind, before.clone(), next)?;
        if after.status == before.status {
            return Ok(v1::UpdateStatusResponse { resource: Some(before) });
        }
        let step = step(&key, &record, Some(after.clone()));
        match step.commit(shared, &author, None, note(caller, "status", &key)).await {
            Ok(revision) => return Ok(v1::UpdateStatusResponse { resource: Some(revised(after, revision)) }),
            Err(error) => again(shared, &expected, &mut attempt, error)?,
        }
    }
}

/// As it is now, linearizably.
async fn current(shared: &Shared, heads: &Heads, key: &Key) -> Result<Arc<Record>> {
    barrier(shared, heads, Revision::ZERO).await?;
    shared.cache().get(key).cloned().ok_or_else(|| Error::NotFound(key.clone()))
}

fn step(key: &Key, record: &Record, after: Option<v1::Resource>) -> Step {
    let replaced = record.revision;
    let (key, uid, root_uid) = (key.clone(), record.uid().to_owned(), record.root_uid().to_owned());
    let write = match &after {
        Some(resource) => put(resource.clone(), replaced),
        None => Write::Remove { key: key.clone(), uid: uid.clone(), revision: replaced },
    };
    let mut step = Step::default();
    step.add(write, Done { key, uid, root_uid, replaced, after });
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
fn again(shared: &Shared, expected: &Precondition<'_>, attempt: &mut usize, error: Error) -> Result<()> {
    if !matches!(error, Error::Conflict { .. }) || expected.is_pinned() || *attempt == ATTEMPTS_MAX {
        return Err(error);
    }
    *attempt += 1;
    shared.counters.retries.add(1);
    Ok(())
}
