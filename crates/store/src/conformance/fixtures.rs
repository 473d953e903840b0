//! Resources and transactions to try a store with.

use api::v1;
use model::{Key, Object, Revision};
use prost_types::Any;

use crate::{Store, Transaction, Write};

/// A service of that name with the uid `uid-<name>`, which belongs to shard 7.
pub fn resource(name: &str) -> v1::Resource {
    let metadata = v1::Metadata {
        kind: "Service".into(),
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        labels: [("app".to_owned(), name.to_owned())].into(),
        shard: 7,
        ..v1::Metadata::default()
    };
    let spec = Any { type_url: "type.googleapis.com/driftless.v1.ServiceSpec".into(), value: name.into() };
    v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None }
}

/// Its name.
pub fn key(name: &str) -> Key {
    Key::new("Service", "default", name)
}

/// Writes it over that revision; `Revision::ZERO` creates it.
pub fn put(mut resource: v1::Resource, over: Revision) -> Write {
    resource.metadata.get_or_insert_default().revision = over.0;
    Write::Put(Box::new(resource))
}

pub fn remove(name: &str, revision: Revision) -> Write {
    Write::Remove { key: key(name), uid: format!("uid-{name}"), revision }
}

pub fn writes(writes: impl IntoIterator<Item = Write>) -> Transaction {
    Transaction { writes: writes.into_iter().collect(), ..Transaction::default() }
}

/// Creates the service of that name.
pub async fn create(store: &dyn Store, name: &str) -> Revision {
    store.commit(writes([put(resource(name), Revision::ZERO)])).await.unwrap_or_else(|e| panic!("creating {name}: {e}"))
}

/// What is stored under that name.
pub async fn current(store: &dyn Store, name: &str) -> Option<Object> {
    store.get(&key(name)).await.unwrap_or_else(|e| panic!("getting {name}: {e}"))
}

/// Objects as `Service/default/a@3`, for messages and comparisons.
pub fn shown(objects: &[Object]) -> Vec<String> {
    objects.iter().map(|o| format!("{}@{}", o.key.text(), o.revision)).collect()
}

/// Their names alone.
pub fn names(objects: &[Object]) -> Vec<&str> {
    objects.iter().map(|o| o.key.name()).collect()
}
