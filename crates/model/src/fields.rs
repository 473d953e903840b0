//! Replaces some top-level fields of an encoded message and leaves every other byte alone, so that fields which this
//! build doesn't know survive (prost would drop them).
//!
//! The wire format: <https://protobuf.dev/programming-guides/encoding/>.

use api::v1;
use bytes::{Buf, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field},
};

use crate::{Conditions, Time, with_conditions};

/// A set of field numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    Only(&'static [u32]),
    AllBut(&'static [u32]),
}

impl Fields {
    pub const NONE: Self = Self::Only(&[]);
    pub const ALL: Self = Self::AllBut(&[]);

    pub fn contains(self, number: u32) -> bool {
        match self {
            Self::Only(numbers) => numbers.contains(&number),
            Self::AllBut(numbers) => !numbers.contains(&number),
        }
    }
}

/// By convention `conditions` has this number in every status message, and `observed_generation` is 1.
pub const CONDITIONS: u32 = 2;

/// The top-level fields in the order they stand, each with its tag.
pub fn split(message: &Bytes) -> Result<Vec<(u32, Bytes)>, prost::DecodeError> {
    let mut fields = Vec::new();
    let mut rest = message.clone();
    while rest.has_remaining() {
        let before = rest.clone();
        let (number, wire_type) = decode_key(&mut rest)?;
        skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
        fields.push((number, before.slice(..before.len() - rest.len())));
    }
    Ok(fields)
}

/// `current` with the fields of `own` taken from `next`; a field that `next` lacks is cleared.
pub fn replace(current: &Bytes, next: &Bytes, own: Fields) -> Result<Bytes, prost::DecodeError> {
    let kept = split(current)?.into_iter().filter(|(n, _)| !own.contains(*n));
    let taken = split(next)?.into_iter().filter(|(n, _)| own.contains(*n));
    let mut all: Vec<(u32, Bytes)> = kept.chain(taken).collect();
    all.sort_by_key(|(number, _)| *number);
    Ok(all
        .into_iter()
        .fold(BytesMut::new(), |mut out, (_, field)| {
            out.extend_from_slice(&field);
            out
        })
        .freeze())
}

/// The message in that field. Where it's there several times, all of them together, as the wire format asks for.
pub fn inner(message: &Bytes, number: u32) -> Result<Bytes, prost::DecodeError> {
    let mut inner = BytesMut::new();
    for (_, mut field) in split(message)?.into_iter().filter(|(n, _)| *n == number) {
        decode_key(&mut field)?;
        decode_varint(&mut field)?;
        inner.extend_from_slice(&field);
    }
    Ok(inner.freeze())
}

/// `message` with that one in that field, instead of what it has there.
pub fn with_inner(message: &Bytes, number: u32, inner: &Bytes) -> Result<Bytes, prost::DecodeError> {
    let mut out = BytesMut::new();
    split(message)?.iter().filter(|(n, _)| *n != number).for_each(|(_, field)| out.extend_from_slice(field));
    encode_key(number, WireType::LengthDelimited, &mut out);
    encode_varint(inner.len() as u64, &mut out);
    out.extend_from_slice(inner);
    Ok(out.freeze())
}

/// The numbers of the fields in which two messages differ.
pub fn changed(a: &Bytes, b: &Bytes) -> Result<Vec<u32>, prost::DecodeError> {
    let (a, b) = (split(a)?, split(b)?);
    let of = |fields: &[(u32, Bytes)], number: u32| -> Vec<Bytes> {
        fields.iter().filter(|(n, _)| *n == number).map(|(_, f)| f.clone()).collect()
    };
    let mut numbers: Vec<u32> = a.iter().chain(&b).map(|(n, _)| *n).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.retain(|n| of(&a, *n) != of(&b, *n));
    Ok(numbers)
}

/// A status after one writer had its say: its fields replaced, its condition types merged, all else untouched.
pub fn merge_status(
    current: &Bytes,
    next: &Bytes,
    own: Fields,
    conditions: Conditions,
    now: Time,
) -> Result<Bytes, prost::DecodeError> {
    let merged = with_conditions(&conditions_of(current)?, conditions_of(next)?, conditions, now);
    let mut out = BytesMut::new();
    let mut pending = Some(merged);
    for (number, field) in split(&replace(current, next, own)?)? {
        if number >= CONDITIONS
            && let Some(merged) = pending.take()
        {
            encode_conditions(&merged, &mut out);
        }
        if number != CONDITIONS {
            out.extend_from_slice(&field);
        }
    }
    if let Some(merged) = pending {
        encode_conditions(&merged, &mut out);
    }
    Ok(out.freeze())
}

/// `observed_generation` of any status; 0 where there is none.
pub fn observed_generation(status: &[u8]) -> i64 {
    let read = || -> Option<i64> {
        let fields = split(&Bytes::copy_from_slice(status)).ok()?;
        let (_, mut field) = fields.into_iter().find(|(number, _)| *number == 1)?;
        decode_key(&mut field).ok()?;
        decode_varint(&mut field).ok().map(u64::cast_signed)
    };
    read().unwrap_or(0)
}

/// The conditions of any status.
pub fn conditions_of(status: &Bytes) -> Result<Vec<v1::Condition>, prost::DecodeError> {
    let fields = split(status)?;
    fields
        .into_iter()
        .filter(|(n, _)| *n == CONDITIONS)
        .map(|(_, mut field)| {
            decode_key(&mut field)?;
            v1::Condition::decode_length_delimited(field)
        })
        .collect()
}

fn encode_conditions(conditions: &[v1::Condition], out: &mut BytesMut) {
    for condition in conditions {
        encode_key(CONDITIONS, WireType::LengthDelimited, out);
        encode_varint(condition.encoded_len() as u64, out);
        condition.encode(out).expect("a BytesMut grows");
    }
}
