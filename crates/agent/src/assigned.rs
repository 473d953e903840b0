//! What the store says of this node: the instances assigned to it, and whether that is all of them.
//!
//! Fed by the watch. Absence means something only once a snapshot has come to its end; until then the node knows nothing,
//! which is not the same as knowing that there is nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::v1;
use model::{Key, Object, Revision};
use prost::Message;
use store::{Change, WatchItem};

use crate::{driver::Id, node::Confirmation, template::Template};

/// An instance as its record has it.
#[derive(Clone, Debug)]
pub struct Assigned {
    pub id: Id,
    pub generation: i64,
    /// Somebody asked for its end.
    pub deleting: bool,
    pub resource: Arc<v1::Resource>,
    pub template: Arc<Template>,
}

impl Assigned {
    /// None: it can't be read, so nothing can be said of it.
    pub fn read(resource: v1::Resource) -> Option<Self> {
        let metadata = resource.metadata.as_ref()?;
        let id = Id { uid: metadata.uid.as_str().into(), key: Key::of(metadata) };
        let template = Template::from(&spec(&resource)?.template.unwrap_or_default());
        Some(Self {
            id,
            generation: metadata.generation,
            deleting: metadata.deletion_time.is_some(),
            resource: Arc::new(resource),
            template: Arc::new(template),
        })
    }
}

/// An instance of which nothing is known but what its folder is called. Nothing of it is started, not even again.
pub fn unread(namespace: String, name: String, uid: String) -> v1::Resource {
    let metadata = v1::Metadata { kind: INSTANCE.into(), namespace, name, uid, ..Default::default() };
    let template = v1::InstanceTemplate { restart: "Never".into(), ..Default::default() };
    let spec = v1::InstanceSpec { template: Some(template), ..Default::default() };
    let spec = prost_types::Any { type_url: String::new(), value: spec.encode_to_vec() };
    v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None }
}

/// The spec of an Instance.
pub fn spec(resource: &v1::Resource) -> Option<v1::InstanceSpec> {
    typed(resource)
}

/// Word that an instance was given up and replaced while this node was silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub key: Key,
    pub uid: String,
    pub revision: Revision,
    /// Of which machine it speaks; empty where nobody knew.
    pub machine: String,
}

impl Release {
    /// Another machine may have had this node's name, and what it runs is not known here.
    pub fn is_for(&self, machine: &str) -> bool {
        self.machine.is_empty() || self.machine == machine
    }
}

pub const INSTANCE: &str = "Instance";
pub const NODE: &str = "Node";
pub const RELEASE: &str = "Release";

#[derive(Debug, Default)]
pub struct View {
    pub records: Records,
    /// Of the last complete snapshot.
    pub incarnation: Option<String>,
    /// A snapshot that isn't complete yet, and of which incarnation.
    staged: Option<(String, Records)>,
}

#[derive(Debug, Default)]
pub struct Records {
    pub instances: BTreeMap<Arc<str>, Assigned>,
    /// Instances whose records are there, but can't be read: never taken to be absent. By their names, since what can't be
    /// read at all doesn't even say its uid.
    pub unreadable: BTreeSet<Key>,
    /// By the uid of the instance that they name.
    pub releases: BTreeMap<Arc<str>, Release>,
    /// What a user vouched for.
    pub confirmed: Confirmation,
    /// The Node's own record is there.
    pub node: bool,
    /// It says that the node is silent.
    pub silent: bool,
}

/// What an item of the watch changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Look at these again.
    pub uids: BTreeSet<Arc<str>>,
    /// A snapshot came to its end: look at everything.
    pub complete: bool,
}

impl View {
    pub fn apply(&mut self, item: WatchItem) -> Changed {
        let mut changed = Changed::default();
        match item {
            WatchItem::SnapshotStart { incarnation, .. } => self.staged = Some((incarnation, Records::default())),
            WatchItem::Snapshot(objects) => {
                if let Some((_, records)) = &mut self.staged {
                    objects.into_iter().for_each(|object| drop(records.put(object)));
                }
            }
            WatchItem::SnapshotEnd { .. } => {
                if let Some((incarnation, records)) = self.staged.take() {
                    self.records = records;
                    self.incarnation = Some(incarnation);
                    changed.complete = true;
                }
            }
            WatchItem::Changes(group) => {
                changed.uids = group.changes.into_iter().filter_map(|change| self.records.change(change)).collect();
            }
            WatchItem::Bookmark(_) | WatchItem::End { .. } => {}
        }
        changed
    }

    /// The watch broke: what was staged is of no use.
    pub fn broken(&mut self) {
        self.staged = None;
    }

    /// What is said now is said of the store that the records are of: no snapshot of another one has begun.
    pub fn is_current(&self) -> bool {
        self.staged.as_ref().is_none_or(|(incarnation, _)| Some(incarnation) == self.incarnation.as_ref())
    }

    /// The last complete snapshot, or what changed since, has a record of it; one that can't be read holds its name.
    pub fn names(&self, id: &Id) -> bool {
        self.incarnation.is_some() && !self.absent(id)
    }

    /// Nothing says that there is such a record; before a complete snapshot that means nothing.
    pub fn absent(&self, id: &Id) -> bool {
        !self.records.instances.contains_key(&id.uid) && !self.records.unreadable.contains(&id.key)
    }
}

impl Records {
    /// The instance that it's about.
    fn put(&mut self, object: Object) -> Option<Arc<str>> {
        let read = object.resource().ok().and_then(|r| Some((r.metadata.as_ref()?.uid.as_str().into(), r)));
        let Some((uid, resource)): Option<(Arc<str>, v1::Resource)> = read else {
            if object.key.kind() == INSTANCE {
                self.unreadable.insert(object.key);
            }
            return None;
        };
        match object.key.kind() {
            INSTANCE => {
                self.put_instance(object.key, &uid, resource);
                Some(uid)
            }
            RELEASE => {
                let spec: v1::ReleaseSpec = typed(&resource)?;
                let (uid, machine) = (uid.to_string(), spec.machine_id);
                let release = Release { key: object.key, uid, revision: object.revision, machine };
                let instance: Arc<str> = spec.instance_uid.into();
                self.releases.insert(instance.clone(), release);
                Some(instance)
            }
            _ => {
                self.node = true;
                let status = resource.status.as_ref().map(|status| v1::NodeStatus::decode(status.value.as_slice()));
                // What can't be read vouches for nothing.
                self.silent = status.is_some_and(|status| status.map_or(true, |status| status.silent_since.is_some()));
                self.confirmed = Confirmation::of(&typed(&resource).unwrap_or_default());
                None
            }
        }
    }

    fn put_instance(&mut self, key: Key, uid: &Arc<str>, resource: v1::Resource) {
        match Assigned::read(resource) {
            Some(assigned) => {
                self.unreadable.remove(&key);
                self.instances.insert(uid.clone(), assigned);
            }
            None => drop(self.unreadable.insert(key)),
        }
    }

    fn change(&mut self, change: Change) -> Option<Arc<str>> {
        match change {
            Change::Put(object) => self.put(object),
            Change::Deleted { key, uid, .. } if key.kind() == INSTANCE => {
                self.unreadable.remove(&key);
                self.instances.remove(uid.as_str());
                Some(uid.as_str().into())
            }
            Change::Deleted { key, .. } if key.kind() == NODE => {
                self.node = false;
                None
            }
            Change::Deleted { key, .. } => {
                self.releases.retain(|_, release| release.key != key);
                None
            }
        }
    }
}

fn typed<T: Message + Default>(resource: &v1::Resource) -> Option<T> {
    match &resource.spec {
        Some(spec) => T::decode(spec.value.as_slice()).ok(),
        None => Some(T::default()),
    }
}
