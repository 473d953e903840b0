//! One cached resource: the bytes as the backend handed them out, and where in them the facts stand that filters and
//! admission ask for. Nothing of the resource is copied, so a hundred thousand of them cost little beyond their bytes.

use std::ops::Range;

use bytes::Bytes;
use kinds::kind;
use model::{Digest, Facts, Key, Labels, Object, Revision};

use crate::{
    scan::{Value, fields},
    tally::Standing,
};

/// Numbers of the fields that are looked at; see `proto/driftless/v1/resource.proto`.
const RESOURCE_METADATA: u32 = 1;
const RESOURCE_STATUS: u32 = 3;
const ANY_VALUE: u32 = 2;
const METADATA_UID: u32 = 4;
const METADATA_LABELS: u32 = 5;
const METADATA_OWNER: u32 = 7;
const METADATA_GENERATION: u32 = 8;
const METADATA_SHARD: u32 = 10;
const METADATA_FINALIZERS: u32 = 11;
const METADATA_DELETION_TIME: u32 = 12;
const METADATA_ROOT_UID: u32 = 17;
const OWNER_UID: u32 = 4;
const ENTRY_KEY: u32 = 1;
const ENTRY_VALUE: u32 = 2;

/// Where a text stands in the bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    end: u32,
}

/// A resource as the cache keeps it.
#[derive(Debug)]
pub struct Record {
    pub revision: Revision,
    pub bytes: Bytes,
    pub shard: u32,
    pub generation: i64,
    /// Its kind is read by every shard.
    pub global: bool,
    pub deleting: bool,
    pub finalized: bool,
    pub standing: Standing,
    uid: Span,
    owner_uid: Span,
    root_uid: Span,
    labels: Box<[(Span, Span)]>,
    node: Option<Box<str>>,
}

impl Record {
    /// Reads the facts. Bytes that are no resource have none, and are kept all the same: the store is the truth.
    pub fn new(object: &Object) -> Self {
        let kind = kind(object.key.kind());
        let mut record = Self {
            revision: object.revision,
            bytes: object.bytes.clone(),
            shard: 0,
            generation: 0,
            global: kind.is_some_and(|k| k.info().global),
            deleting: false,
            finalized: false,
            standing: Standing::default(),
            uid: Span::default(),
            owner_uid: Span::default(),
            root_uid: Span::default(),
            labels: Box::default(),
            node: kind.and_then(|k| k.node(&object.resource().ok()?)).map(Into::into),
        };
        record.scan(&object.bytes);
        record.standing = Standing::of(object.key.kind(), record.generation, &record.bytes, record.status_range());
        record
    }

    fn scan(&mut self, bytes: &Bytes) {
        let mut labels = Vec::new();
        for (number, value) in fields(bytes, 0..bytes.len()) {
            if let (RESOURCE_METADATA, Value::Bytes(range)) = (number, value) {
                self.scan_metadata(bytes, range, &mut labels);
            }
        }
        self.labels = labels.into();
    }

    fn scan_metadata(&mut self, bytes: &Bytes, metadata: Range<usize>, labels: &mut Vec<(Span, Span)>) {
        for (number, value) in fields(bytes, metadata) {
            match (number, value) {
                (METADATA_UID, Value::Bytes(range)) => self.uid = Span::of(&range),
                (METADATA_ROOT_UID, Value::Bytes(range)) => self.root_uid = Span::of(&range),
                (METADATA_SHARD, Value::Varint(shard)) => self.shard = u32::try_from(shard).unwrap_or(u32::MAX),
                (METADATA_GENERATION, Value::Varint(count)) => {
                    self.generation = i64::try_from(count).unwrap_or(i64::MAX)
                }
                (METADATA_DELETION_TIME, _) => self.deleting = true,
                (METADATA_FINALIZERS, _) => self.finalized = true,
                (METADATA_OWNER, Value::Bytes(range)) => self.owner_uid = text_of(bytes, range, OWNER_UID),
                (METADATA_LABELS, Value::Bytes(range)) => {
                    labels.push((text_of(bytes, range.clone(), ENTRY_KEY), text_of(bytes, range, ENTRY_VALUE)));
                }
                _ => {}
            }
        }
    }

    pub fn uid(&self) -> &str {
        self.text(self.uid)
    }

    pub fn owner_uid(&self) -> &str {
        self.text(self.owner_uid)
    }

    pub fn root_uid(&self) -> &str {
        self.text(self.root_uid)
    }

    /// Where the encoded status stands; nowhere where there is none.
    fn status_range(&self) -> Range<usize> {
        let status = fields(&self.bytes, 0..self.bytes.len()).filter_map(|(number, value)| match value {
            Value::Bytes(range) if number == RESOURCE_STATUS => Some(range),
            _ => None,
        });
        let span = status.last().map_or_else(Span::default, |status| text_of(&self.bytes, status, ANY_VALUE));
        span.start as usize..span.end as usize
    }

    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    pub fn facts<'a>(&'a self, key: &'a Key) -> Facts<'a> {
        Facts {
            key,
            labels: self,
            owner_uid: self.owner_uid(),
            shard: self.shard,
            global: self.global,
            node: self.node(),
        }
    }

    pub fn object(&self, key: &Key) -> Object {
        Object { key: key.clone(), revision: self.revision, bytes: self.bytes.clone() }
    }

    /// What it contributes to its shard's and kind's digest.
    pub fn term(&self, key: &Key) -> u128 {
        Digest::term(key, self.uid(), self.revision, &self.bytes)
    }

    fn text(&self, span: Span) -> &str {
        let bytes = self.bytes.get(span.start as usize..span.end as usize).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl Labels for Record {
    fn label(&self, name: &str) -> Option<&str> {
        // The last one counts, as it does for whoever decodes the map.
        self.labels.iter().rev().find(|(key, _)| self.text(*key) == name).map(|(_, value)| self.text(*value))
    }
}

impl Span {
    fn of(range: &Range<usize>) -> Self {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { start: small(range.start), end: small(range.end) }
    }
}

/// The text field of that number in a nested message.
fn text_of(bytes: &Bytes, message: Range<usize>, wanted: u32) -> Span {
    let found = fields(bytes, message).filter_map(|(number, value)| match value {
        Value::Bytes(range) if number == wanted => Some(Span::of(&range)),
        _ => None,
    });
    found.last().unwrap_or_default()
}
