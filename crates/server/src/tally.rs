//! How many resources there are of each kind by their condition Ready, and instances by phase. Kept with every change of
//! the cache, so that a page of metrics doesn't look through everything.

use std::{collections::BTreeMap, ops::Range};

use kinds::instance::{self, PHASES};
use model::Key;

use crate::{
    record::Record,
    scan::{Value, fields},
};

/// Numbers of the fields that are looked at; see `proto/driftless/v1/kinds.proto`. The first two are every status's.
const STATUS_OBSERVED_GENERATION: u32 = 1;
const STATUS_CONDITIONS: u32 = 2;
const INSTANCE_PHASE: u32 = 3;
const INSTANCE_RESTARTS: u32 = 7;
const CONDITION_TYPE: u32 = 1;
const CONDITION_STATUS: u32 = 2;

/// What a resource's condition Ready says, of the declared generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    True,
    False,
    #[default]
    Unknown,
}

impl Ready {
    pub const ALL: [Self; 3] = [Self::True, Self::False, Self::Unknown];

    pub fn word(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::Unknown => "unknown",
        }
    }
}

/// What is counted of one resource.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    pub ready: Ready,
    /// Of `PHASES`. What nobody said anything of is the first one, as is what a newer build may say.
    phase: u8,
    restarts: i32,
}

impl Standing {
    /// Of what stands there in the bytes: a status of that kind, where the resource has one.
    pub fn of(kind: &str, generation: i64, bytes: &[u8], status: Range<usize>) -> Self {
        let (mut observed, mut said, mut standing) = (0, None, Self::default());
        for (number, value) in fields(bytes, status) {
            match (number, value) {
                (STATUS_OBSERVED_GENERATION, Value::Varint(value)) => observed = value,
                (STATUS_CONDITIONS, Value::Bytes(range)) if said.is_none() => said = status_of_ready(bytes, range),
                (INSTANCE_PHASE, Value::Bytes(range)) if kind == instance::KIND => {
                    standing.phase = phase(&bytes[range])
                }
                (INSTANCE_RESTARTS, Value::Varint(value)) if kind == instance::KIND => {
                    standing.restarts = i32::try_from(value).unwrap_or_default();
                }
                _ => {}
            }
        }
        standing.ready = match said {
            Some(b"True") if u64::try_from(generation) == Ok(observed) => Ready::True,
            Some(b"True" | b"False") => Ready::False,
            _ => Ready::Unknown,
        };
        standing
    }
}

/// Nothing where it's another condition.
fn status_of_ready(bytes: &[u8], condition: Range<usize>) -> Option<&[u8]> {
    let (mut kind, mut status): (&[u8], &[u8]) = (b"", b"");
    for (number, value) in fields(bytes, condition) {
        match (number, value) {
            (CONDITION_TYPE, Value::Bytes(range)) => kind = &bytes[range],
            (CONDITION_STATUS, Value::Bytes(range)) => status = &bytes[range],
            _ => {}
        }
    }
    (kind == b"Ready").then_some(status)
}

fn phase(word: &[u8]) -> u8 {
    let found = PHASES.iter().position(|phase| phase.as_bytes() == word);
    found.and_then(|place| u8::try_from(place).ok()).unwrap_or_default()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    by_ready: BTreeMap<&'static str, [i64; Ready::ALL.len()]>,
    by_phase: [i64; PHASES.len()],
    restarts: i64,
}

impl Tally {
    pub fn enter(&mut self, key: &Key, record: &Record) {
        self.count(key, record, 1);
    }

    pub fn leave(&mut self, key: &Key, record: &Record) {
        self.count(key, record, -1);
    }

    /// What this build has no name for isn't counted.
    fn count(&mut self, key: &Key, record: &Record, by: i64) {
        let Some(kind) = kinds::kind(key.kind()).map(|kind| kind.info().kind) else { return };
        let standing = record.standing;
        self.by_ready.entry(kind).or_default()[standing.ready as usize] += by;
        if kind == instance::KIND {
            self.by_phase[usize::from(standing.phase)] += by;
            self.restarts += by * i64::from(standing.restarts);
        }
    }

    /// Kind, what it says of being ready, and how many there are; what there is none of is left out.
    pub fn by_ready(&self) -> impl Iterator<Item = ([&'static str; 2], i64)> {
        let rows = self.by_ready.iter().flat_map(|(kind, counts)| {
            Ready::ALL.into_iter().zip(counts).map(|(ready, count)| ([*kind, ready.word()], *count))
        });
        rows.filter(|(_, count)| *count != 0)
    }

    pub fn by_phase(&self) -> impl Iterator<Item = ([&'static str; 1], i64)> {
        PHASES.into_iter().map(|phase| [phase]).zip(self.by_phase)
    }

    pub fn restarts(&self) -> i64 {
        self.restarts
    }
}
