//! A stored resource, as bytes.

use api::v1;
use bytes::Bytes;
use prost::Message;

use crate::{Key, Revision};

/// A record as stores keep it: an encoded `Resource` whose `metadata.revision` is unset, since it's only known after
/// the commit. The bytes are shared, never copied on their way to watchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub key: Key,
    pub revision: Revision,
    pub bytes: Bytes,
}

impl Object {
    /// Decoded, with its revision filled in.
    pub fn resource(&self) -> Result<v1::Resource, prost::DecodeError> {
        let mut resource = v1::Resource::decode(self.bytes.clone())?;
        resource.metadata.get_or_insert_default().revision = self.revision.0;
        Ok(resource)
    }

    /// Encodes a resource for a store: without its revision.
    pub fn encode(mut resource: v1::Resource) -> Bytes {
        if let Some(metadata) = &mut resource.metadata {
            metadata.revision = 0;
        }
        resource.encode_to_vec().into()
    }

    /// Bytes to append to an encoded resource so that decoding it yields this revision: protobuf merges a repeated
    /// occurrence of an embedded message (`metadata = 1 { revision = 9 }`), in every language.
    pub fn revision_suffix(revision: Revision) -> Vec<u8> {
        let metadata = v1::Metadata { revision: revision.0, ..Default::default() };
        v1::Resource { metadata: Some(metadata), ..Default::default() }.encode_to_vec()
    }

    /// Undoes the above, on what came over a wire.
    pub fn without_suffix(bytes: Bytes, revision: Revision) -> Bytes {
        let suffix = Self::revision_suffix(revision);
        match bytes.ends_with(&suffix) {
            true => bytes.slice(..bytes.len() - suffix.len()),
            false => bytes,
        }
    }
}
