//! The tree that both directions go through: YAML and JSON as maps, lists and scalars, with where each one stands.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_saphyr::Spanned;

use super::{DEPTH_MAX, DOCUMENTS_MAX, FILE_BYTES_MAX};

/// Line and column, from 1; `UNKNOWN` is line 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub line: u64,
    pub column: u64,
}

impl Place {
    pub const UNKNOWN: Self = Self { line: 0, column: 0 };
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// As written: in order, duplicates included.
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self { place: Place::UNKNOWN, value }
    }
}

impl Entry {
    pub fn new(key: &str, value: Value) -> Self {
        Self { key: key.to_owned(), place: Place::UNKNOWN, node: value.into() }
    }
}

impl Value {
    /// "a number", for errors.
    pub fn kind(&self) -> String {
        match self {
            Self::Null => "nothing".into(),
            Self::Bool(b) => format!("the boolean {b}"),
            Self::Int(n) => format!("the number {n}"),
            Self::Float(n) => format!("the number {n}"),
            Self::Text(text) if text.chars().count() <= 40 => format!("the text {text:?}"),
            Self::Text(_) => "a text".into(),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a map".into(),
        }
    }
}

/// Why the text is no tree.
#[derive(Debug)]
pub struct ParseError {
    pub place: Place,
    pub message: String,
}

/// The documents of a text that is not longer than `FILE_BYTES_MAX`.
///
/// JSON is read as the YAML that it nearly always is, since that knows lines; what only JSON allows (pairs of escaped
/// surrogates, tabs) is read by the JSON parser, without lines.
pub fn parse(text: &str) -> Result<Vec<Node>, ParseError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let yaml = match serde_saphyr::from_multiple_with_options::<Node>(text, options()) {
        Ok(nodes) => return Ok(nodes),
        Err(error) => error,
    };
    let may_be_json = text.trim_start().starts_with(['{', '[']) && json_depth(text) <= DEPTH_MAX;
    match may_be_json.then(|| serde_json::from_str::<Node>(text)) {
        Some(Ok(node)) => Ok(vec![node]),
        _ => Err(parse_error(&yaml)),
    }
}

/// How deep brackets nest outside of strings.
fn json_depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn parse_error(error: &serde_saphyr::Error) -> ParseError {
    let place = error.location().map_or(Place::UNKNOWN, |l| Place { line: l.line(), column: l.column() });
    let message = error.without_snippet().to_string();
    // The parser ends its sentences with the place, which is told apart here.
    let message = message.split(" at line ").next().unwrap_or_default().trim_end_matches(':').to_owned();
    ParseError { place, message: format!("not readable as YAML or JSON: {message}") }
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // Whoever binds the tree names the field that is there twice.
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
        },
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_documents: DOCUMENTS_MAX,
            max_total_scalar_bytes: 4 * FILE_BYTES_MAX,
            max_aliases: 1_000,
        },
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        let place = Place { line: spanned.referenced.line(), column: spanned.referenced.column() };
        Ok(Self { place, value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map, a list or a scalar")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Node>()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let place = Place { line: key.referenced.line(), column: key.referenced.column() };
            entries.push(Entry { key: key.value, place, node: map.next_value()? });
        }
        Ok(Value::Map(entries))
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => match i64::try_from(*value) {
                Ok(value) => serializer.serialize_i64(value),
                Err(_) => serializer.serialize_i128(*value),
            },
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(items) => items.serialize(serializer),
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for entry in entries {
                    map.serialize_entry(&entry.key, &entry.node)?;
                }
                map.end()
            }
        }
    }
}
