//! Writing: by hand where an object's bytes go through, by prost for the rest.

use api::v1;
use bytes::{Buf, BufMut};
use model::{Object, Revision};
use prost::{
    Message,
    encoding::{encode_varint, encoded_len_varint},
};
use store::{Change, Group, WatchItem};

use super::{Item, One, Rows, read};
use crate::{codec::Payload, convert};

/// Wire types of protobuf. Every field number here is below 16, so a key is one byte.
const VARINT: u8 = 0;
const LENGTH: u8 = 2;

impl Payload for Item {
    fn write(&self, buf: &mut impl BufMut) {
        match &self.0 {
            WatchItem::Snapshot(objects) => {
                let length = objects.iter().map(object_field_length).sum();
                header(2, length, buf);
                objects.iter().for_each(|o| object_field(1, o, buf));
            }
            WatchItem::Changes(group) => changes(group, buf),
            small => convert::response(small).encode(buf).expect("a growing buffer has room"),
        }
    }

    fn read(buf: &mut impl Buf) -> Result<Self, String> {
        read::item(buf).map(Self)
    }
}

impl Payload for One {
    fn write(&self, buf: &mut impl BufMut) {
        object_field(1, &self.0, buf);
    }

    fn read(buf: &mut impl Buf) -> Result<Self, String> {
        read::one(buf).map(Self)
    }
}

impl Payload for Rows {
    fn write(&self, buf: &mut impl BufMut) {
        self.objects.iter().for_each(|o| object_field(1, o, buf));
        let rest = v1::ListResponse {
            resources: Vec::new(),
            next_page_token: self.next_page_token.clone(),
            revision: self.revision.0,
        };
        rest.encode(buf).expect("a growing buffer has room");
    }

    fn read(buf: &mut impl Buf) -> Result<Self, String> {
        read::rows(buf)
    }
}

/// `ChangeGroup` as field 4 of `WatchResponse`.
fn changes(group: &Group, buf: &mut impl BufMut) {
    let frames: Vec<Frame<'_>> = group.changes.iter().map(Frame::new).collect();
    let scalars =
        v1::ChangeGroup { from: group.from.0, to: group.to.0, coalesced: group.coalesced, changes: Vec::new() };
    let length = scalars.encoded_len() + frames.iter().map(|f| field_length(f.length)).sum::<usize>();
    header(4, length, buf);
    scalars.encode(buf).expect("a growing buffer has room");
    for frame in frames {
        header(4, frame.length, buf);
        match frame.change {
            Framed::Put(object) => object_field(1, object, buf),
            Framed::Deleted(deletion) => message(2, &deletion, buf),
        }
    }
}

/// One `Change` and how long it will be.
struct Frame<'a> {
    length: usize,
    change: Framed<'a>,
}

enum Framed<'a> {
    Put(&'a Object),
    Deleted(v1::Deletion),
}

impl<'a> Frame<'a> {
    fn new(change: &'a Change) -> Self {
        match change {
            Change::Put(object) => Self { length: object_field_length(object), change: Framed::Put(object) },
            Change::Deleted { key, uid, revision, left } => {
                let deletion =
                    v1::Deletion { key: Some(key.into()), uid: uid.clone(), revision: revision.0, left: *left };
                Self { length: field_length(deletion.encoded_len()), change: Framed::Deleted(deletion) }
            }
        }
    }
}

/// A message as a field.
pub fn message(tag: u8, message: &impl Message, buf: &mut impl BufMut) {
    header(tag, message.encoded_len(), buf);
    message.encode_raw(buf);
}

fn object_field(tag: u8, object: &Object, buf: &mut impl BufMut) {
    header(tag, object_length(object), buf);
    buf.put_slice(&object.bytes);
    revision_suffix(object.revision, buf);
}

fn object_field_length(object: &Object) -> usize {
    field_length(object_length(object))
}

fn object_length(object: &Object) -> usize {
    object.bytes.len() + 2 + revision_length(object.revision)
}

/// What `Object::revision_suffix` makes, without allocating: `metadata = 1 { revision = 9 }`.
fn revision_suffix(revision: Revision, buf: &mut impl BufMut) {
    header(1, revision_length(revision), buf);
    if revision != Revision::ZERO {
        buf.put_u8(9 << 3 | VARINT);
        encode_varint(revision.0.cast_unsigned(), buf);
    }
}

fn revision_length(revision: Revision) -> usize {
    match revision {
        Revision::ZERO => 0,
        Revision(r) => 1 + encoded_len_varint(r.cast_unsigned()),
    }
}

/// Key and length of a field that is a message.
fn header(tag: u8, length: usize, buf: &mut impl BufMut) {
    buf.put_u8(tag << 3 | LENGTH);
    encode_varint(length as u64, buf);
}

fn field_length(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}
