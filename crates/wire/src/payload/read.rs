//! Reading: the outer messages are decoded, a resource stays the bytes it came as.
//!
//! The messages here mirror those of `resource_service.proto`, with `bytes` where the proto has a `Resource`: on the
//! wire both are the same.

use bytes::{Buf, Bytes};
use model::{Key, Object, Revision};
use prost::{DecodeError, Message};
use store::{Change, Group, WatchItem};

use super::Rows;
use crate::convert;

#[derive(Clone, PartialEq, Message)]
struct WatchResponse {
    #[prost(oneof = "watch_response::Item", tags = "1, 2, 3, 4, 5, 6")]
    item: Option<watch_response::Item>,
}

mod watch_response {
    use api::v1;

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Item {
        #[prost(message, tag = "1")]
        SnapshotStart(v1::SnapshotStart),
        #[prost(message, tag = "2")]
        SnapshotPart(super::SnapshotPart),
        #[prost(message, tag = "3")]
        SnapshotEnd(v1::SnapshotEnd),
        #[prost(message, tag = "4")]
        Changes(super::ChangeGroup),
        #[prost(message, tag = "5")]
        Bookmark(v1::Bookmark),
        #[prost(message, tag = "6")]
        End(v1::WatchEnd),
    }
}

#[derive(Clone, PartialEq, Message)]
struct SnapshotPart {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    resources: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ChangeGroup {
    #[prost(int64, tag = "1")]
    from: i64,
    #[prost(int64, tag = "2")]
    to: i64,
    #[prost(bool, tag = "3")]
    coalesced: bool,
    #[prost(message, repeated, tag = "4")]
    changes: Vec<ChangeRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct ChangeRecord {
    #[prost(oneof = "change_record::Change", tags = "1, 2")]
    change: Option<change_record::Change>,
}

mod change_record {
    use api::v1;

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Change {
        #[prost(bytes = "bytes", tag = "1")]
        Put(bytes::Bytes),
        #[prost(message, tag = "2")]
        Deleted(v1::Deletion),
    }
}

#[derive(Clone, PartialEq, Message)]
struct GetResponse {
    #[prost(bytes = "bytes", tag = "1")]
    resource: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct ListResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    resources: Vec<Bytes>,
    #[prost(string, tag = "2")]
    next_page_token: String,
    #[prost(int64, tag = "3")]
    revision: i64,
}

/// As much of a resource as a key and a revision need.
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(message, tag = "1")]
    metadata: Option<HeadMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct HeadMetadata {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(int64, tag = "9")]
    revision: i64,
}

pub fn item(buf: &mut impl Buf) -> Result<WatchItem, String> {
    use watch_response::Item;
    let response: WatchResponse = decode(buf)?;
    Ok(match response.item.ok_or("a watch item of a kind that this version doesn't know")? {
        Item::SnapshotStart(start) => convert::snapshot_start(start),
        Item::SnapshotPart(part) => WatchItem::Snapshot(objects(part.resources)?),
        Item::SnapshotEnd(end) => WatchItem::SnapshotEnd { revision: Revision(end.revision) },
        Item::Changes(group) => WatchItem::Changes(changes(group)?),
        Item::Bookmark(bookmark) => WatchItem::Bookmark(convert::bookmark(bookmark)),
        Item::End(end) => WatchItem::End { reason: end.reason, message: end.message },
    })
}

pub fn one(buf: &mut impl Buf) -> Result<Object, String> {
    let response: GetResponse = decode(buf)?;
    object(response.resource).map_err(|error| error.to_string())
}

pub fn rows(buf: &mut impl Buf) -> Result<Rows, String> {
    let response: ListResponse = decode(buf)?;
    Ok(Rows {
        objects: objects(response.resources)?,
        next_page_token: response.next_page_token,
        revision: Revision(response.revision),
    })
}

fn decode<T: Message + Default>(buf: &mut impl Buf) -> Result<T, String> {
    // Taking the bytes out of the receive buffer costs no copy, nor do slices of them.
    T::decode(buf.copy_to_bytes(buf.remaining())).map_err(|error| error.to_string())
}

fn changes(group: ChangeGroup) -> Result<Group, String> {
    use change_record::Change as Wire;
    let change = |record: ChangeRecord| match record.change {
        Some(Wire::Put(bytes)) => object(bytes).map(Change::Put).map_err(|error| error.to_string()),
        Some(Wire::Deleted(deletion)) => Ok(convert::deletion(deletion)),
        None => Err("a change of a kind that this version doesn't know".to_owned()),
    };
    Ok(Group {
        from: Revision(group.from),
        to: Revision(group.to),
        coalesced: group.coalesced,
        changes: group.changes.into_iter().map(change).collect::<Result<_, _>>()?,
        head: None,
    })
}

fn objects(resources: Vec<Bytes>) -> Result<Vec<Object>, String> {
    resources.into_iter().map(|bytes| object(bytes).map_err(|error| error.to_string())).collect()
}

fn object(bytes: Bytes) -> Result<Object, DecodeError> {
    let metadata = Head::decode(bytes.clone())?.metadata.unwrap_or_default();
    let revision = Revision(metadata.revision);
    let stored = Object::without_suffix(bytes, revision);
    Ok(Object {
        key: Key::new(&metadata.kind, &metadata.namespace, &metadata.name),
        revision,
        // A copy of its own: a slice would keep the whole receive buffer alive for as long as a cache keeps the object.
        bytes: Bytes::copy_from_slice(&stored),
    })
}
