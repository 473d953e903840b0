//! What a decision sees: values, and one point in time.

use std::{
    any::Any as StdAny,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::v1;
use bytes::Bytes;
use model::{Key, Object, Revision, Time, Violation};
use prost_types::Any;

use crate::kind;

/// One resource, read once and shared.
#[derive(Clone)]
pub struct Item {
    pub key: Key,
    pub revision: Revision,
    pub resource: v1::Resource,
    /// As stored (without the revision): what digests are made of.
    pub bytes: Bytes,
    body: Arc<dyn StdAny + Send + Sync>,
}

/// Stands for a body that could not be read; the record is kept all the same.
struct Unreadable(Violation);

impl Item {
    pub fn read(object: &Object) -> Result<Self, Violation> {
        let resource = object.resource().map_err(|e| Violation::new("", format!("{}: {e}", object.key)))?;
        Self::of(resource, object.bytes.clone())
    }

    /// From a resource that carries its revision.
    pub fn of(resource: v1::Resource, bytes: Bytes) -> Result<Self, Violation> {
        let metadata = resource.metadata.as_ref().ok_or_else(|| Violation::new("metadata", "missing"))?;
        let key = Key::of(metadata);
        let revision = Revision(metadata.revision);
        let body = match kind(key.kind()).map(|kind| kind.parse(&resource)) {
            Some(Ok(body)) => body,
            Some(Err(violation)) => Arc::new(Unreadable(violation)),
            None => Arc::new(Unreadable(Violation::new("kind", format!("unknown kind {}", key.kind())))),
        };
        Ok(Self { key, revision, resource, bytes, body })
    }

    pub fn metadata(&self) -> &v1::Metadata {
        self.resource.metadata.as_ref().expect("checked when it was read")
    }

    pub fn uid(&self) -> &str {
        &self.metadata().uid
    }

    pub fn deleting(&self) -> bool {
        self.metadata().deletion_time.is_some()
    }

    pub fn status(&self) -> Option<&Any> {
        self.resource.status.as_ref()
    }

    /// The kind's own values; none where `T` is another kind's.
    pub fn body<T: 'static>(&self) -> Option<&T> {
        self.body.downcast_ref()
    }

    /// Why no plan can work on it, where a newer or broken writer stored something this build can't read.
    pub fn unreadable(&self) -> Option<&Violation> {
        self.body::<Unreadable>().map(|Unreadable(violation)| violation)
    }

    pub fn owner_uid(&self) -> &str {
        self.metadata().owner.as_ref().map_or("", |o| o.uid.as_str())
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.key, self.revision)
    }
}

/// Everything known, with the indexes that decisions look things up by.
#[derive(Clone, Debug, Default)]
pub struct World {
    items: BTreeMap<Key, Arc<Item>>,
    /// Keys by their owner's uid.
    children: BTreeMap<String, BTreeSet<Key>>,
    /// Names of nodes whose agent has a session.
    agents: BTreeSet<String>,
}

impl World {
    /// Returns what was there before.
    pub fn put(&mut self, item: Arc<Item>) -> Option<Arc<Item>> {
        let before = self.remove(&item.key);
        if let Some(owner) = &item.metadata().owner {
            self.children.entry(owner.uid.clone()).or_default().insert(item.key.clone());
        }
        self.items.insert(item.key.clone(), item);
        before
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<Item>> {
        let item = self.items.remove(key)?;
        if let Some(siblings) = self.children.get_mut(item.owner_uid()) {
            siblings.remove(key);
            if siblings.is_empty() {
                self.children.remove(item.owner_uid());
            }
        }
        Some(item)
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Item>> {
        self.items.get(key)
    }

    pub fn items(&self) -> impl Iterator<Item = &Arc<Item>> {
        self.items.values()
    }

    /// In key order.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Arc<Item>> {
        let start = Key::new(kind, "", "");
        self.items.range(start..).map(|(_, item)| item).take_while(move |item| item.key.kind() == kind)
    }

    /// In key order.
    pub fn children(&self, uid: &str) -> impl Iterator<Item = &Arc<Item>> {
        self.children.get(uid).into_iter().flatten().filter_map(|key| self.items.get(key))
    }

    pub fn agents(&self) -> &BTreeSet<String> {
        &self.agents
    }

    /// Returns the names that came or went.
    pub fn set_agents(&mut self, agents: BTreeSet<String>) -> Vec<String> {
        let changed = self.agents.symmetric_difference(&agents).cloned().collect();
        self.agents = agents;
        changed
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// The world at one time, as a plan sees it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub world: &'a World,
    /// The servers' clock.
    pub now: Time,
    /// Since when this view has been fed without a gap. Silence before that proves nothing: deadlines about silence
    /// count from the later of both.
    pub live_since: Time,
}

/// Typed access, by the body's type.
pub trait Lookup<'a> {
    fn all<T: 'static>(self, kind: &'a str) -> impl Iterator<Item = (&'a Item, &'a T)>;
    fn children_of<T: 'static>(self, uid: &'a str) -> impl Iterator<Item = (&'a Item, &'a T)>;
}

impl<'a> Lookup<'a> for &View<'a> {
    fn all<T: 'static>(self, kind: &'a str) -> impl Iterator<Item = (&'a Item, &'a T)> {
        self.world.of_kind(kind).filter_map(|item| Some((item.as_ref(), item.body::<T>()?)))
    }

    fn children_of<T: 'static>(self, uid: &'a str) -> impl Iterator<Item = (&'a Item, &'a T)> {
        self.world.children(uid).filter_map(|item| Some((item.as_ref(), item.body::<T>()?)))
    }
}
