//! What a move makes of a resource: the one place that says so, for the controllers' commits and for simulations alike.

use std::collections::BTreeMap;

use api::v1;
use bytes::Bytes;
use model::{Domain, Draft, Key, Move, Revision, Time, fields};
use prost_types::Any;

use crate::{Item, Rights, World, kind};

/// A resource after a move.
#[derive(Clone, Debug, PartialEq)]
pub enum After {
    /// It's this; its metadata's revision is what it replaces (0: it's new).
    Put(Box<v1::Resource>),
    Removed {
        key: Key,
        uid: String,
        revision: Revision,
    },
}

/// None where it's not there any more: whoever decided will see that at the next look.
pub fn apply(world: &World, domain: Domain, own: &Item, change: &Move, now: Time) -> Option<After> {
    if let Move::Create(draft) = change {
        return Some(After::Put(Box::new(created(own, draft))));
    }
    let item = world.get(change.key())?;
    let rights = kind(item.key.kind())?.rights(domain);
    let mut resource = item.resource.clone();
    match change {
        Move::Create(_) => return None,
        Move::Remove { key, uid } => {
            return Some(After::Removed { key: key.clone(), uid: uid.clone(), revision: item.revision });
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
    Some(After::Put(Box::new(resource)))
}

/// The status as it should be stored, where it differs from what is.
pub fn status_to_write(domain: Domain, own: &Item, status: Option<&Any>, now: Time) -> Option<Any> {
    let rights = kind(own.key.kind())?.rights(domain);
    let merged = merged_status(rights, own, status?, now)?;
    let current = own.status().map_or(&[][..], |status| status.value.as_slice());
    (current != merged.value).then_some(merged)
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
