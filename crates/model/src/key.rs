//! A resource's name: kind, namespace, name.

use std::{borrow::Borrow, fmt, sync::Arc};

use api::v1;

/// Names one resource, or one that could exist. Orders by kind, then namespace, then name.
///
/// One allocation, cheap to clone; its text (`Service/default/web`, `Node//n1`) is also what stores key records by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    text: Arc<str>,
}

impl Key {
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { text: format!("{kind}/{namespace}/{name}").into() }
    }

    /// Reads what `text` writes.
    pub fn parse(text: &str) -> Option<Self> {
        (text.split('/').count() == 3).then(|| Self { text: text.into() })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn kind(&self) -> &str {
        self.part(0)
    }

    pub fn namespace(&self) -> &str {
        self.part(1)
    }

    pub fn name(&self) -> &str {
        self.part(2)
    }

    fn part(&self, index: usize) -> &str {
        self.text.split('/').nth(index).unwrap_or_default()
    }

    /// The same place, another kind.
    pub fn sibling(&self, kind: &str, name: &str) -> Self {
        Self::new(kind, self.namespace(), name)
    }

    pub fn of(metadata: &v1::Metadata) -> Self {
        Self::new(&metadata.kind, &metadata.namespace, &metadata.name)
    }

    pub fn of_owner(owner: &v1::OwnerReference) -> Self {
        Self::new(&owner.kind, &owner.namespace, &owner.name)
    }
}

/// A key orders and hashes as its text does, so that maps can be asked for a range by a prefix of it.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace() {
            "" => write!(f, "{}/{}", self.kind(), self.name()),
            _ => f.write_str(&self.text),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<&v1::ResourceKey> for Key {
    fn from(key: &v1::ResourceKey) -> Self {
        Self::new(&key.kind, &key.namespace, &key.name)
    }
}

impl From<&Key> for v1::ResourceKey {
    fn from(key: &Key) -> Self {
        Self { kind: key.kind().into(), namespace: key.namespace().into(), name: key.name().into() }
    }
}
