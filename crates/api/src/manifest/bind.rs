//! From a tree to a message, by its descriptor. Says everything that is wrong, and never stops at the first.

use std::{collections::HashMap, ops::RangeInclusive, str::FromStr};

use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value as Bound};
use prost_types::{Duration, Timestamp};

use super::{
    Place, Range,
    near::nearest,
    tree::{Entry, Node, Value},
};
use crate::{DURATION, brief, duration};

/// What was found at a field.
#[derive(Debug)]
pub struct Finding {
    pub place: Place,
    pub field: String,
    pub message: String,
}

pub struct Binder<'k> {
    pub findings: Vec<Finding>,
    ranges: &'k [Range<'k>],
}

impl<'k> Binder<'k> {
    pub fn new(ranges: &'k [Range<'k>]) -> Self {
        Self { findings: Vec::new(), ranges }
    }

    pub fn find(&mut self, place: Place, field: &str, message: impl Into<String>) {
        self.findings.push(Finding { place, field: field.to_owned(), message: message.into() });
    }

    /// The message; where there are findings, it's not to be used.
    pub fn message(&mut self, descriptor: &MessageDescriptor, at: &str, node: &Node) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        let Value::Map(entries) = &node.value else {
            let fields = field_names(descriptor).join(", ");
            self.find(node.place, at, format!("expected a map with {fields}; found {}", node.value.kind()));
            return message;
        };
        let mut seen: HashMap<u32, Place> = HashMap::new();
        for entry in entries {
            let path = join(at, &entry.key);
            let Some(field) = self.field(descriptor, &path, entry) else { continue };
            if let Some(first) = seen.insert(field.number(), entry.place) {
                self.find(entry.place, &path, twice(first));
                continue;
            }
            self.exclusive(&message, &field, &path, entry);
            if let Some(value) = self.value(&field, &path, &entry.node) {
                message.set_field(&field, value);
            }
        }
        message
    }

    fn field(&mut self, descriptor: &MessageDescriptor, path: &str, entry: &Entry) -> Option<FieldDescriptor> {
        let key = entry.key.as_str();
        let field = descriptor.get_field_by_name(key).or_else(|| descriptor.get_field_by_json_name(key));
        if field.is_none() {
            let names = field_names(descriptor);
            self.find(entry.place, path, unknown("field", key, &names));
        }
        field
    }

    /// At most one member of a oneof.
    fn exclusive(&mut self, message: &DynamicMessage, field: &FieldDescriptor, path: &str, entry: &Entry) {
        let Some(oneof) = field.containing_oneof() else { return };
        if let Some(other) = oneof.fields().find(|f| message.has_field(f)) {
            self.find(entry.place, path, format!("excludes {}, which is set too", other.name()));
        }
    }

    /// None: absent (null), or a finding.
    fn value(&mut self, field: &FieldDescriptor, at: &str, node: &Node) -> Option<Bound> {
        if node.value == Value::Null {
            return None;
        }
        if field.is_map() {
            return self.map(field, at, node);
        }
        if !field.is_list() {
            return self.single(field, &field.kind(), at, node);
        }
        let Value::List(items) = &node.value else {
            self.find(node.place, at, format!("expected a list; found {}", node.value.kind()));
            return None;
        };
        let items = items
            .iter()
            .enumerate()
            .filter_map(|(i, item)| self.single(field, &field.kind(), &format!("{at}[{i}]"), item));
        Some(Bound::List(items.collect()))
    }

    fn map(&mut self, field: &FieldDescriptor, at: &str, node: &Node) -> Option<Bound> {
        let Value::Map(entries) = &node.value else {
            self.find(node.place, at, format!("expected a map; found {}", node.value.kind()));
            return None;
        };
        let Kind::Message(pair) = field.kind() else { return None };
        let kind = pair.map_entry_value_field().kind();
        let mut places: HashMap<&str, Place> = HashMap::new();
        let mut map = HashMap::new();
        for entry in entries {
            let path = join(at, &entry.key);
            if let Some(first) = places.insert(&entry.key, entry.place) {
                self.find(entry.place, &path, twice(first));
            } else if let Some(value) = self.single(field, &kind, &path, &entry.node) {
                map.insert(MapKey::String(entry.key.clone()), value);
            }
        }
        Some(Bound::Map(map))
    }

    /// A value that is the field's own, or one of many.
    fn single(&mut self, field: &FieldDescriptor, kind: &Kind, at: &str, node: &Node) -> Option<Bound> {
        match kind {
            Kind::Message(descriptor) => match descriptor.full_name() {
                "google.protobuf.Duration" => {
                    self.parsed(descriptor, at, node, &format!("a duration, {DURATION}"), declared_duration)
                }
                "google.protobuf.Timestamp" => {
                    self.parsed(descriptor, at, node, TIMESTAMP, |text| Timestamp::from_str(text).ok())
                }
                _ => Some(Bound::Message(self.message(descriptor, at, node))),
            },
            Kind::Enum(descriptor) => self.enumerated(descriptor, at, node),
            kind => match scalar(kind, &node.value) {
                Ok(value) => Some(value),
                Err(expected) => {
                    let range = self.ranges.iter().find(|(name, _)| *name == field.full_name()).map(|(_, range)| range);
                    let expected = range.map_or(expected.to_owned(), within);
                    self.find(node.place, at, format!("expected {expected}; found {}", node.value.kind()));
                    None
                }
            },
        }
    }

    /// A well-known type that is written as text.
    fn parsed<T: prost::Message + Default>(
        &mut self,
        descriptor: &MessageDescriptor,
        at: &str,
        node: &Node,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<Bound> {
        let value = match &node.value {
            Value::Text(text) => read(text),
            _ => None,
        };
        let Some(value) = value else {
            self.find(node.place, at, format!("expected {expected}; found {}", node.value.kind()));
            return None;
        };
        let mut message = DynamicMessage::new(descriptor.clone());
        message.transcode_from(&value).expect("the same type");
        Some(Bound::Message(message))
    }

    fn enumerated(&mut self, descriptor: &EnumDescriptor, at: &str, node: &Node) -> Option<Bound> {
        let number = match &node.value {
            Value::Text(name) => descriptor.get_value_by_name(name).map(|v| v.number()),
            Value::Int(n) => i32::try_from(*n).ok(),
            _ => None,
        };
        if number.is_none() {
            let names: Vec<String> = descriptor.values().map(|v| v.name().to_owned()).collect();
            self.find(node.place, at, format!("expected one of {}; found {}", names.join(", "), node.value.kind()));
        }
        number.map(Bound::EnumNumber)
    }
}

const TIMESTAMP: &str = "a time, such as \"2026-01-31T12:00:00Z\"";

/// As people write it, or as it's printed: by the canonical mapping, in seconds, which may be negative.
fn declared_duration(text: &str) -> Option<Duration> {
    let written = duration(text).and_then(|read| Duration::try_from(read).ok());
    written.or_else(|| Duration::from_str(text).ok())
}

fn within(range: &RangeInclusive<i32>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

/// A scalar of that kind, or what was expected.
fn scalar(kind: &Kind, value: &Value) -> Result<Bound, &'static str> {
    match kind {
        Kind::Bool => match value {
            Value::Bool(b) => Ok(Bound::Bool(*b)),
            _ => Err("true or false"),
        },
        Kind::String => match value {
            Value::Text(text) => Ok(Bound::String(text.clone())),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => Err("a text (put it in quotes)"),
            _ => Err("a text"),
        },
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            integer(value).map(Bound::I32).ok_or(match value {
                // It's one, but for its size.
                Value::Int(_) => "a whole number from -2147483648 to 2147483647",
                _ => "a whole number",
            })
        }
        Kind::Uint32 | Kind::Fixed32 => integer(value).map(Bound::U32).ok_or("a whole number from 0 to 4294967295"),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            integer(value).map(Bound::I64).ok_or("a whole number of 64 bits")
        }
        Kind::Uint64 | Kind::Fixed64 => integer(value).map(Bound::U64).ok_or("a whole number of 64 bits, not negative"),
        Kind::Double => number(value).map(Bound::F64).ok_or("a number"),
        Kind::Float => number(value).map(|n| Bound::F32(n as f32)).ok_or("a number"),
        Kind::Bytes | Kind::Message(_) | Kind::Enum(_) => Err("nothing here: bytes have no form in a manifest"),
    }
}

/// The canonical mapping also takes integers as text, and as floats without a fraction.
fn integer<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    let wide = match value {
        Value::Int(n) => *n,
        Value::Text(text) => text.parse().ok()?,
        Value::Float(n) if n.fract() == 0.0 && n.abs() < 1e18 => *n as i128,
        _ => return None,
    };
    T::try_from(wide).ok()
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Float(n) => Some(*n),
        Value::Int(n) => Some(*n as f64),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    }
}

pub fn join(at: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    match (at, plain) {
        ("", true) => key.to_owned(),
        (at, true) => format!("{at}.{key}"),
        (at, false) => format!("{at}[{key:?}]"),
    }
}

pub fn twice(first: Place) -> String {
    match first.line {
        0 => "is there twice".into(),
        line => format!("is there twice; first in line {line}"),
    }
}

/// "unknown field; did you mean replicas?".
pub fn unknown(what: &str, word: &str, names: &[String]) -> String {
    let near = nearest(word, names.iter().map(String::as_str));
    let word = brief(word);
    match near {
        Some(near) => format!("unknown {what} {word:?}; did you mean {near:?}?"),
        None => format!("unknown {what} {word:?}; there is {}", names.join(", ")),
    }
}

fn field_names(descriptor: &MessageDescriptor) -> Vec<String> {
    descriptor.fields().map(|f| f.name().to_owned()).collect()
}
