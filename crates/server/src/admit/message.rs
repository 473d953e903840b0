//! Looks into specs and statuses by their descriptors, without knowing any kind.

use bytes::{Bytes, BytesMut};
use model::fields;
use prost::{
    Message,
    encoding::{WireType, decode_key, encode_key},
};
use prost_reflect::{DynamicMessage, MessageDescriptor};

fn descriptor(type_name: &str) -> Option<MessageDescriptor> {
    api::descriptors().get_message_by_name(type_name)
}

/// "replicas"; "field 17" where this build doesn't know it.
pub fn field_name(type_name: &str, number: u32) -> String {
    let field = descriptor(type_name).and_then(|d| d.get_field(number));
    field.map_or_else(|| format!("field {number}"), |field| field.name().to_owned())
}

pub fn field_number(type_name: &str, name: &str) -> Option<u32> {
    Some(descriptor(type_name)?.get_field_by_name(name)?.number())
}

/// Whether two encodings say the same, in whatever order their fields and map entries stand; unknown fields count.
pub fn same(type_name: &str, a: &Bytes, b: &Bytes) -> bool {
    if a == b {
        return true;
    }
    let Some(descriptor) = descriptor(type_name) else { return false };
    let decode = |bytes: &Bytes| DynamicMessage::decode(descriptor.clone(), bytes.clone()).ok();
    matches!((decode(a), decode(b)), (Some(a), Some(b)) if a == b)
}

/// The numbers of the fields in which two messages of that type differ, whatever the order of their map entries.
pub fn changed(type_name: &str, a: &Bytes, b: &Bytes) -> Result<Vec<u32>, prost::DecodeError> {
    if same(type_name, a, b) {
        return Ok(Vec::new());
    }
    let alone = |bytes: &Bytes, number: u32| -> Result<Bytes, prost::DecodeError> { only(bytes, |n| n == number) };
    let mut numbers = Vec::new();
    for number in fields::changed(a, b)? {
        if !same(type_name, &alone(a, number)?, &alone(b, number)?) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// The message without all other fields.
pub fn only(bytes: &Bytes, keep: impl Fn(u32) -> bool) -> Result<Bytes, prost::DecodeError> {
    let kept = fields::split(bytes)?.into_iter().filter(|(number, _)| keep(*number));
    Ok(join(kept))
}

/// The numbers on the way to a field: "rollout.pause". None where that message has no such field.
pub fn path(type_name: &str, path: &str) -> Option<Vec<u32>> {
    let mut message = Some(descriptor(type_name)?);
    let step = |name: &str| {
        let field = message.take()?.get_field_by_name(name)?;
        message = field.kind().as_message().cloned();
        Some(field.number())
    };
    path.split('.').map(step).collect()
}

/// The field at the end of that way, as it's encoded; empty where it isn't set.
pub fn at(message: &Bytes, path: &[u32]) -> Result<Bytes, prost::DecodeError> {
    match path {
        [first, rest @ ..] if !rest.is_empty() => at(&fields::inner(message, *first)?, rest),
        last => only(message, |n| last.contains(&n)),
    }
}

/// The message with that field, as `at` gives it, at the end of the way.
pub fn with(message: &Bytes, path: &[u32], field: &Bytes) -> Result<Bytes, prost::DecodeError> {
    match path {
        [first, rest @ ..] if !rest.is_empty() => {
            let inner = with(&fields::inner(message, *first)?, rest, field)?;
            fields::with_inner(message, *first, &inner)
        }
        _ => overlay(message, field),
    }
}

/// `current` with every field that `set` has taken from there.
pub fn overlay(current: &Bytes, set: &Bytes) -> Result<Bytes, prost::DecodeError> {
    let set = fields::split(set)?;
    let kept = fields::split(current)?.into_iter().filter(|(n, _)| !set.iter().any(|(number, _)| number == n));
    let mut all: Vec<(u32, Bytes)> = kept.chain(set.clone()).collect();
    all.sort_by_key(|(number, _)| *number);
    Ok(join(all))
}

/// A message that holds nothing but that message in that field.
pub fn holding<M: Message>(number: u32, nested: &M) -> Bytes {
    let mut out = BytesMut::new();
    encode_key(number, WireType::LengthDelimited, &mut out);
    nested.encode_length_delimited(&mut out).expect("a BytesMut grows");
    out.freeze()
}

/// A message within it.
pub fn read_field<M: Message + Default>(bytes: &Bytes, number: u32) -> Result<Option<M>, prost::DecodeError> {
    let Some((_, mut field)) = fields::split(bytes)?.into_iter().find(|(n, _)| *n == number) else { return Ok(None) };
    decode_key(&mut field)?;
    M::decode_length_delimited(field).map(Some)
}

fn join(fields: impl IntoIterator<Item = (u32, Bytes)>) -> Bytes {
    let join = |mut out: BytesMut, (_, field): (u32, Bytes)| {
        out.extend_from_slice(&field);
        out
    };
    fields.into_iter().fold(BytesMut::new(), join).freeze()
}
