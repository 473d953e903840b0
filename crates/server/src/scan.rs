//! Walks the fields of an encoded message without decoding it: <https://protobuf.dev/programming-guides/encoding/>.
//! What can't be read ends the walk.

use std::ops::Range;

/// What stands in a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Varint(u64),
    /// A text, bytes or message, by its place.
    Bytes(Range<usize>),
    /// Fixed-size numbers, which nobody here looks at.
    Other,
}

/// The fields that stand in that range, each with its number.
pub fn fields(bytes: &[u8], range: Range<usize>) -> Fields<'_> {
    Fields { bytes: bytes.get(..range.end).unwrap_or_default(), at: range.start }
}

pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Iterator for Fields<'_> {
    type Item = (u32, Value);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.skip(8).map(|_| Value::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Value::Other)?,
            _ => return None,
        };
        Some((number, value))
    }
}

impl Fields<'_> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn skip(&mut self, length: usize) -> Option<Range<usize>> {
        let range = self.at..self.at.checked_add(length)?;
        self.bytes.get(range.clone())?;
        self.at = range.end;
        Some(range)
    }
}
