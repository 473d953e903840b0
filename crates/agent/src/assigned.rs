//! What the store says of this node: the instances assigned to it, and whether that is all of them.
//!
//! Fed by the watch. Absence means something only once a snapshot has come to its end; until then the node knows nothing,
//! which is not the same as knowing that there is nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::v1;
use model::{Key, Object};
use prost::Message;
use store::{Change, WatchItem};

use crate::{driver::Id, template::Template};

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

/// The spec of an Instance.
pub fn spec(resource: &v1::Resource) -> Option<v1::InstanceSpec> {
    v1::InstanceSpec::decode(resource.spec.as_ref()?.value.as_slice()).ok()
}

#[derive(Debug, Default)]
pub struct View {
    pub instances: BTreeMap<Arc<str>, Assigned>,
    /// Of the last complete snapshot.
    pub incarnation: Option<String>,
    /// A snapshot that isn't complete yet.
    staged: Option<Staged>,
    /// Records that are there, but can't be read: never taken to be absent.
    pub unreadable: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Staged {
    incarnation: String,
    instances: BTreeMap<Arc<str>, Assigned>,
    unreadable: BTreeSet<Arc<str>>,
}

/// What an item of the watch changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Look at these again.
    pub uids: BTreeSet<Arc<str>>,
    /// A snapshot came to its end: look at everything.
    pub complete: bool,
}

const INSTANCE: &str = "Instance";

impl View {
    pub fn apply(&mut self, item: WatchItem) -> Changed {
        let mut changed = Changed::default();
        match item {
            WatchItem::SnapshotStart { incarnation, .. } => {
                self.staged = Some(Staged { incarnation, ..Staged::default() });
            }
            WatchItem::Snapshot(objects) => objects.into_iter().for_each(|object| self.stage(object)),
            WatchItem::SnapshotEnd { .. } => {
                if let Some(staged) = self.staged.take() {
                    self.instances = staged.instances;
                    self.unreadable = staged.unreadable;
                    self.incarnation = Some(staged.incarnation);
                    changed.complete = true;
                }
            }
            WatchItem::Changes(group) => {
                changed.uids = group.changes.into_iter().filter_map(|c| self.change(c)).collect()
            }
            WatchItem::Bookmark(_) | WatchItem::End { .. } => {}
        }
        changed
    }

    /// The watch broke: what was staged is of no use.
    pub fn broken(&mut self) {
        self.staged = None;
    }

    fn stage(&mut self, object: Object) {
        let Some(staged) = &mut self.staged else { return };
        match read(&object) {
            Some(Ok(assigned)) => drop(staged.instances.insert(assigned.id.uid.clone(), assigned)),
            Some(Err(uid)) => drop(staged.unreadable.insert(uid)),
            None => {}
        }
    }

    fn change(&mut self, change: Change) -> Option<Arc<str>> {
        match change {
            Change::Put(object) => match read(&object)? {
                Ok(assigned) => {
                    let uid = assigned.id.uid.clone();
                    self.unreadable.remove(&uid);
                    self.instances.insert(uid.clone(), assigned);
                    Some(uid)
                }
                Err(uid) => {
                    self.unreadable.insert(uid);
                    None
                }
            },
            Change::Deleted { key, uid, .. } if key.kind() == INSTANCE => {
                self.unreadable.remove(uid.as_str());
                self.instances.remove(uid.as_str());
                Some(uid.as_str().into())
            }
            Change::Deleted { .. } => None,
        }
    }
}

/// None: not an instance. Err: one that this build can't read.
fn read(object: &Object) -> Option<Result<Assigned, Arc<str>>> {
    if object.key.kind() != INSTANCE {
        return None;
    }
    let resource = object.resource().ok()?;
    let uid = resource.metadata.as_ref()?.uid.as_str().into();
    Some(Assigned::read(resource).ok_or(uid))
}
