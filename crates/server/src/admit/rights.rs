//! What becomes of a resource that somebody wrote: the fields that are the writer's are taken over, what the server
//! stamps is stamped, and everything else stays as it was. What is another's and differs is refused, by its name; what
//! is another's and left out is left alone.

use std::collections::BTreeMap;

use api::v1;
use bytes::Bytes;
use kinds::{Kind, Rights, SPEC_BYTES_MAX};
use model::{Domain, Key, Object, Revision, Time, Violation, fields};
use prost_types::Any;
use store::{Error, Result};

use super::{message, syntax};
use crate::record::Record;

/// What an instance's spec says beside its template: its node, slot and version.
const BESIDE_BYTES_MAX: usize = 1024;

/// Who writes, and what the server stamps for it.
#[derive(Clone, Debug)]
pub struct Author {
    pub domain: Domain,
    pub actor: String,
    pub step_id: String,
    pub now: Time,
    /// Of what it makes.
    pub traceparent: String,
}

/// What a new resource inherits from its owner.
#[derive(Clone, Debug)]
pub struct Lineage {
    pub shard: u32,
    pub root_uid: String,
}

impl Author {
    pub fn writer(&self) -> v1::Writer {
        v1::Writer { actor: self.actor.clone(), step_id: self.step_id.clone(), traceparent: String::new() }
    }

    pub fn denied<T>(&self, key: &Key, what: &str) -> Result<T> {
        let who = match self.domain {
            Domain::User => "a user",
            Domain::Shard => "the owner of a shard",
            Domain::Leader => "the leader",
            Domain::Agent => "an agent",
        };
        Err(Error::Denied(format!("{who} may not {what} of {key}")))
    }
}

/// What may be created at all, and as what.
pub fn create(
    author: &Author,
    kind: &dyn Kind,
    mut next: v1::Resource,
    uid: String,
    lineage: &Lineage,
) -> Result<v1::Resource> {
    let metadata = next.metadata.take().unwrap_or_default();
    let key = Key::of(&metadata);
    let info = kind.info();
    let rights = kind.rights(author.domain);
    if !rights.create {
        return author.denied(&key, "make a resource");
    }
    check_metadata(info, &metadata)?;
    let empty = v1::Resource::default();
    let spec = merged_spec(author, kind, rights, &key, &empty, next.spec.as_ref())?;
    let template = kind.admit(&spec).map_err(Error::Invalid)?;
    let status = merged_status(author, kind, rights, &key, &empty, next.status.as_ref())?;
    let stamped = v1::Metadata {
        uid,
        generation: 1,
        revision: 0,
        shard: lineage.shard,
        root_uid: lineage.root_uid.clone(),
        deletion_time: None,
        created_time: Some(author.now.into()),
        updated_time: Some(author.now.into()),
        traceparent: author.traceparent.clone(),
        last_writer: Some(author.writer()),
        field_owners: BTreeMap::new(),
        template_hash: template.hash,
        ..metadata
    };
    Ok(v1::Resource { metadata: Some(stamped), spec: Some(wrap(info.spec_type, spec)), status })
}

/// The stored resource after the writer had its say. Always a write, though nothing but the stamps may differ: a step
/// writes its own record.
pub fn update(author: &Author, kind: &dyn Kind, current: v1::Resource, next: v1::Resource) -> Result<v1::Resource> {
    let rights = kind.rights(author.domain);
    let before = current.metadata.clone().unwrap_or_default();
    let key = Key::of(&before);
    let spec = merged_spec(author, kind, rights, &key, &current, next.spec.as_ref())?;
    let status = merged_status(author, kind, rights, &key, &current, next.status.as_ref())?;
    let mut metadata = merged_metadata(author, rights, &key, before, next.metadata.unwrap_or_default())?;
    let before = current.spec.map(|spec| Bytes::from(spec.value)).unwrap_or_default();
    if spec != before {
        metadata.generation += 1;
        metadata.template_hash = kind.admit(&spec).map_err(Error::Invalid)?.hash;
    }
    metadata.updated_time = Some(author.now.into());
    metadata.last_writer = Some(author.writer());
    Ok(v1::Resource { metadata: Some(metadata), spec: Some(wrap(kind.info().spec_type, spec)), status })
}

/// Whether the record may go.
pub fn remove(author: &Author, kind: &dyn Kind, key: &Key, record: &Record) -> Result<()> {
    if !kind.rights(author.domain).remove {
        return author.denied(key, "remove the record");
    }
    if record.finalized {
        return Err(Error::conflict(key, "it has finalizers, which must be taken off first"));
    }
    Ok(())
}

/// The record as a resource at its revision.
pub fn read(key: &Key, record: &Record) -> Result<v1::Resource> {
    let object: Object = record.object(key);
    object.resource().map_err(|error| Error::Corrupt(format!("{key}: {error}")))
}

/// The base of a write that expects that revision.
pub fn at<'a>(key: &Key, record: Option<&'a Record>, revision: Revision) -> Result<&'a Record> {
    match record {
        Some(record) if record.revision == revision => Ok(record),
        Some(record) => {
            let now = record.revision;
            Err(Error::conflict(key, format!("expected at revision {revision}, but it is at {now}")))
        }
        None => Err(Error::conflict(key, format!("expected at revision {revision}, but it doesn't exist"))),
    }
}

fn check_metadata(info: &kinds::Info, metadata: &v1::Metadata) -> Result<()> {
    let mut violations: Vec<Violation> =
        syntax::name("metadata.name", &metadata.name, syntax::NAME_MAX).into_iter().collect();
    match (info.namespaced, metadata.namespace.as_str()) {
        (true, namespace) => violations.extend(syntax::name("metadata.namespace", namespace, syntax::NAME_MAX)),
        (false, "") => {}
        (false, _) => violations.push(Violation::new("metadata.namespace", format!("a {} has none", info.kind))),
    }
    violations.extend(syntax::labels("metadata.labels", &metadata.labels));
    violations.extend(syntax::annotations("metadata.annotations", &metadata.annotations));
    if violations.is_empty() { Ok(()) } else { Err(Error::Invalid(violations)) }
}

fn merged_metadata(
    author: &Author,
    rights: Rights,
    key: &Key,
    mut metadata: v1::Metadata,
    next: v1::Metadata,
) -> Result<v1::Metadata> {
    if next.uid != metadata.uid {
        let (expected, found) = (&next.uid, &metadata.uid);
        return Err(Error::conflict(key, format!("expected uid {expected:?}, but it has {found:?}: it was made anew")));
    }
    if next.owner.is_some() && next.owner != metadata.owner {
        return author.denied(key, "change the owner, which is fixed at create,");
    }
    // Labels and annotations are the maker's.
    for (field, current, next) in [
        ("metadata.labels", &mut metadata.labels, next.labels),
        ("metadata.annotations", &mut metadata.annotations, next.annotations),
    ] {
        if rights.create {
            *current = next;
        } else if !next.is_empty() && *current != next {
            return author.denied(key, &format!("write {field}"));
        }
    }
    if rights.delete || rights.remove {
        metadata.finalizers = next.finalizers;
    } else if !next.finalizers.is_empty() && metadata.finalizers != next.finalizers {
        return author.denied(key, "write metadata.finalizers");
    }
    if next.deletion_time.is_some() && metadata.deletion_time.is_none() {
        if !rights.delete {
            return author.denied(key, "ask for the deletion");
        }
        metadata.deletion_time = Some(author.now.into());
    }
    Ok(metadata)
}

/// A message of that type, as a spec or status.
pub fn wrap(type_name: &str, value: Bytes) -> Any {
    Any { type_url: format!("type.googleapis.com/{type_name}"), value: value.into() }
}

/// The message inside, if it's of the declared type.
pub fn unwrap(field: &str, any: &Any, type_name: &str) -> Result<Bytes, Violation> {
    match any.type_url.rsplit('/').next() {
        Some(name) if name == type_name => Ok(Bytes::copy_from_slice(&any.value)),
        _ => Err(Violation::new(field, format!("is a {:?}; must be a {type_name}", any.type_url))),
    }
}

fn merged_spec(
    author: &Author,
    kind: &dyn Kind,
    rights: Rights,
    key: &Key,
    current: &v1::Resource,
    next: Option<&Any>,
) -> Result<Bytes> {
    let type_name = kind.info().spec_type;
    let current = current.spec.as_ref().map(|spec| Bytes::copy_from_slice(&spec.value)).unwrap_or_default();
    let Some(next) = next else { return Ok(current) };
    let next = unwrap("spec", next, type_name).map_err(|violation| Error::Invalid(vec![violation]))?;
    let corrupt = |error: prost::DecodeError| Error::invalid("spec", error.to_string());
    let changed = message::changed(type_name, &current, &next).map_err(corrupt)?;
    let said = fields::split(&next).map_err(corrupt)?;
    let foreign = changed.iter().find(|n| !rights.spec.contains(**n) && said.iter().any(|(number, _)| number == *n));
    if let Some(number) = foreign {
        return author.denied(key, &format!("write spec.{}", message::field_name(type_name, *number)));
    }
    if !changed.iter().any(|number| rights.spec.contains(*number)) {
        return Ok(current);
    }
    if next.len() > SPEC_BYTES_MAX + BESIDE_BYTES_MAX {
        return Err(Error::TooLarge(format!("the spec of {key} has {} bytes; at most {SPEC_BYTES_MAX}", next.len())));
    }
    fields::replace(&current, &next, rights.spec).map_err(corrupt)
}

fn merged_status(
    author: &Author,
    kind: &dyn Kind,
    rights: Rights,
    key: &Key,
    current: &v1::Resource,
    next: Option<&Any>,
) -> Result<Option<Any>> {
    let type_name = kind.info().status_type;
    let Some(next) = next else { return Ok(current.status.clone()) };
    let before = current.status.as_ref().map(|status| Bytes::copy_from_slice(&status.value)).unwrap_or_default();
    let next = unwrap("status", next, type_name).map_err(|violation| Error::Invalid(vec![violation]))?;
    let corrupt = |error: prost::DecodeError| Error::invalid("status", error.to_string());
    if let Some(field) = foreign_status(type_name, rights, &before, &next).map_err(corrupt)? {
        return author.denied(key, &format!("write status.{field}"));
    }
    let merged = fields::merge_status(&before, &next, rights.status, rights.conditions, author.now).map_err(corrupt)?;
    // An equal one keeps its bytes, so that an unchanged status is seen as such.
    let value = if message::same(type_name, &before, &merged) { before } else { merged };
    Ok((current.status.is_some() || !value.is_empty()).then(|| wrap(type_name, value)))
}

/// What it says of others' fields and conditions that isn't so.
fn foreign_status(
    type_name: &str,
    rights: Rights,
    current: &Bytes,
    next: &Bytes,
) -> Result<Option<String>, prost::DecodeError> {
    let said = fields::split(next)?;
    let foreign = message::changed(type_name, current, next)?.into_iter().find(|n| {
        *n != fields::CONDITIONS && !rights.status.contains(*n) && said.iter().any(|(number, _)| number == n)
    });
    if let Some(number) = foreign {
        return Ok(Some(message::field_name(type_name, number)));
    }
    let known = fields::conditions_of(current)?;
    let others =
        fields::conditions_of(next)?.into_iter().find(|c| !rights.conditions.contains(&c.r#type) && !known.contains(c));
    Ok(others.map(|condition| format!("conditions[{}]", condition.r#type)))
}
