//! From resources to what people and programs read. Fields come in the protos' order, map entries by name, so equal
//! resources print alike.

use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, ReflectMessage, Value as Bound};
use prost_types::{Any, Duration, Timestamp};

use super::{
    Kinds,
    document::API_VERSION,
    tree::{Entry, Node, Value},
};
use crate::{descriptors, v1};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
}

/// One resource, ending with a line break.
pub fn one(resource: &v1::Resource, kinds: &Kinds<'_>, format: Format) -> String {
    print(&tree(resource, kinds), format)
}

/// `{"items": [...], "revision": "..."}`, ending with a line break.
pub fn list(resources: &[v1::Resource], revision: i64, kinds: &Kinds<'_>, format: Format) -> String {
    let items = resources.iter().map(|r| Node::from(tree(r, kinds))).collect();
    let entries =
        vec![Entry::new("items", Value::List(items)), Entry::new("revision", Value::Text(revision.to_string()))];
    print(&Value::Map(entries), format)
}

/// The fields of one spec or status as YAML, but for those named; empty where there are none.
pub fn body(any: &Any, type_name: &str, without: &[&str]) -> String {
    match contents(any, Some(type_name)) {
        Value::Map(mut entries) => {
            entries.retain(|e| !without.contains(&e.key.as_str()));
            if entries.is_empty() { String::new() } else { print(&Value::Map(entries), Format::Yaml) }
        }
        other => print(&other, Format::Yaml),
    }
}

/// Any message of this package, encoded, by its full name.
pub fn message(type_name: &str, bytes: &[u8], format: Format) -> String {
    let any = Any { type_url: format!("/{type_name}"), value: bytes.to_vec() };
    print(&contents(&any, Some(type_name)), format)
}

/// Anything with text keys, ending with a line break.
pub fn print(value: &impl serde::Serialize, format: Format) -> String {
    match format {
        Format::Json => serde_json::to_string_pretty(value).expect("text keys and finite numbers") + "\n",
        Format::Yaml => {
            let text = serde_saphyr::to_string(value).expect("text keys and scalars");
            if text.ends_with('\n') { text } else { text + "\n" }
        }
    }
}

fn tree(resource: &v1::Resource, kinds: &Kinds<'_>) -> Value {
    let metadata = resource.metadata.clone().unwrap_or_default();
    let types = (kinds.types)(&metadata.kind);
    let kind = metadata.kind.clone();
    let mut entries =
        vec![Entry::new("apiVersion", Value::Text(API_VERSION.into())), Entry::new("kind", Value::Text(kind))];
    let descriptor = descriptors().get_message_by_name("driftless.v1.Metadata").expect("ours");
    let mut dynamic = DynamicMessage::new(descriptor);
    dynamic.transcode_from(&v1::Metadata { kind: String::new(), ..metadata }).expect("the same type");
    entries.push(Entry::new("metadata", fields(&dynamic)));
    let parts = [
        ("spec", &resource.spec, types.as_ref().map(|t| t.spec.as_str())),
        ("status", &resource.status, types.as_ref().map(|t| t.status.as_str())),
    ];
    for (name, any, type_name) in parts {
        if let Some(value) = any.as_ref().map(|any| contents(any, type_name)) {
            entries.push(Entry::new(name, value));
        }
    }
    Value::Map(entries)
}

/// What is of a type that this binary doesn't know is said to be so, since it can't be read.
pub fn contents(any: &Any, type_name: Option<&str>) -> Value {
    let named = any.type_url.rsplit('/').next().unwrap_or_default();
    let descriptor: Option<MessageDescriptor> = descriptors().get_message_by_name(type_name.unwrap_or(named));
    match descriptor.map(|d| DynamicMessage::decode(d, any.value.as_slice())) {
        Some(Ok(dynamic)) => fields(&dynamic),
        _ => Value::Text(format!("{} bytes of {named}, unknown here", any.value.len())),
    }
}

fn fields(dynamic: &DynamicMessage) -> Value {
    match dynamic.descriptor().full_name() {
        "google.protobuf.Duration" => text::<Duration>(dynamic),
        "google.protobuf.Timestamp" => text::<Timestamp>(dynamic),
        _ => Value::Map(
            dynamic.fields().map(|(field, bound)| Entry::new(field.json_name(), value(&field.kind(), bound))).collect(),
        ),
    }
}

fn text<T: prost::Message + Default + ToString>(dynamic: &DynamicMessage) -> Value {
    Value::Text(dynamic.transcode_to::<T>().expect("the same type").to_string())
}

fn value(kind: &Kind, bound: &Bound) -> Value {
    match bound {
        Bound::Bool(b) => Value::Bool(*b),
        Bound::I32(n) => Value::Int((*n).into()),
        Bound::U32(n) => Value::Int((*n).into()),
        // 64 bits are text in the canonical mapping: JavaScript's numbers don't hold them.
        Bound::I64(n) => Value::Text(n.to_string()),
        Bound::U64(n) => Value::Text(n.to_string()),
        Bound::F32(n) => Value::Float((*n).into()),
        Bound::F64(n) => Value::Float(*n),
        Bound::String(s) => Value::Text(s.clone()),
        Bound::Bytes(bytes) => Value::Text(format!("{} bytes", bytes.len())),
        Bound::EnumNumber(number) => match kind {
            Kind::Enum(e) => {
                e.get_value(*number).map_or(Value::Int((*number).into()), |v| Value::Text(v.name().into()))
            }
            _ => Value::Int((*number).into()),
        },
        Bound::Message(dynamic) => fields(dynamic),
        Bound::List(items) => Value::List(items.iter().map(|item| value(kind, item).into()).collect()),
        Bound::Map(map) => {
            let Kind::Message(pair) = kind else { return Value::Null };
            let kind = pair.map_entry_value_field().kind();
            let mut entries: Vec<Entry> = map.iter().map(|(k, v)| Entry::new(&key_text(k), value(&kind, v))).collect();
            entries.sort_by(|a, b| a.key.cmp(&b.key));
            Value::Map(entries)
        }
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(k) => k.to_string(),
        MapKey::I32(k) => k.to_string(),
        MapKey::I64(k) => k.to_string(),
        MapKey::U32(k) => k.to_string(),
        MapKey::U64(k) => k.to_string(),
        MapKey::String(k) => k.clone(),
    }
}
