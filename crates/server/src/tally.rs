//! How many resources there are of each kind by their condition Ready, instances by phase, and what wakes somebody: nodes in
//! trouble, and the brake. Kept with every change of the cache, so that a page of metrics doesn't look through everything.
//!
//! What an instance says counts while its node is heard. On a node that is Unknown, or has no record, it was only once so.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use kinds::{
    instance::{self, FINISHED, PHASES},
    node, placement,
};
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

/// The phase that instances on silent nodes are counted under.
pub const UNHEARD: &str = "Unknown";

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
    /// Of a node: bits by `node::TROUBLES`, each set where that isn't so by its own word.
    troubles: u8,
    /// Of the placement: the brake holds.
    braked: bool,
}

impl Standing {
    /// Of what stands there in the bytes: a status of that kind, where the resource has one.
    pub fn of(kind: &str, generation: i64, bytes: &[u8], status: Range<usize>) -> Self {
        let (mut observed, mut said, mut standing) = (0, None::<&[u8]>, Self::default());
        for (number, value) in fields(bytes, status) {
            match (number, value) {
                (STATUS_OBSERVED_GENERATION, Value::Varint(value)) => observed = value,
                (STATUS_CONDITIONS, Value::Bytes(range)) => match condition(bytes, range) {
                    (b"Ready", status) => said = said.or(Some(status)),
                    (name, b"False") => standing.is_not(kind, name),
                    _ => {}
                },
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

    /// A condition of that name is False.
    fn is_not(&mut self, kind: &str, name: &[u8]) {
        match kind {
            node::KIND => {
                let place = node::TROUBLES.iter().position(|trouble| trouble.as_bytes() == name);
                self.troubles |= place.map_or(0, |place| 1 << place);
            }
            placement::KIND => self.braked |= name == placement::REACHABLE.as_bytes(),
            _ => {}
        }
    }
}

/// Its type and status.
fn condition(bytes: &[u8], condition: Range<usize>) -> (&[u8], &[u8]) {
    let (mut kind, mut status): (&[u8], &[u8]) = (b"", b"");
    for (number, value) in fields(bytes, condition) {
        match (number, value) {
            (CONDITION_TYPE, Value::Bytes(range)) => kind = &bytes[range],
            (CONDITION_STATUS, Value::Bytes(range)) => status = &bytes[range],
            _ => {}
        }
    }
    (kind, status)
}

fn phase(word: &[u8]) -> u8 {
    let found = PHASES.iter().position(|phase| phase.as_bytes() == word);
    found.and_then(|place| u8::try_from(place).ok()).unwrap_or_default()
}

#[derive(Debug, Default)]
pub struct Tally {
    totals: Totals,
    nodes: HashMap<Box<str>, OnNode>,
}

/// What a page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    by_ready: BTreeMap<&'static str, [i64; Ready::ALL.len()]>,
    by_phase: [i64; PHASES.len()],
    unheard: i64,
    restarts: i64,
    troubles: [i64; node::TROUBLES.len()],
    braked: i64,
}

/// The instances that are bound to a node and not finished: what they say of themselves.
#[derive(Debug, Default)]
struct OnNode {
    heard: bool,
    instances: i64,
    by_ready: [i64; Ready::ALL.len()],
    by_phase: [i64; PHASES.len()],
}

impl Tally {
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    pub fn enter(&mut self, key: &Key, record: &Record) {
        self.count(key, record, 1);
    }

    pub fn leave(&mut self, key: &Key, record: &Record) {
        self.count(key, record, -1);
    }

    /// What this build has no name for isn't counted.
    fn count(&mut self, key: &Key, record: &Record, by: i64) {
        let Some(kind) = kinds::kind(key.kind()).map(|kind| kind.info().kind) else { return };
        match kind {
            instance::KIND => return self.count_instance(record, by),
            node::KIND => self.hear(key.name(), by > 0 && record.standing.ready != Ready::Unknown),
            _ => {}
        }
        self.totals.count(kind, record.standing, by);
    }

    fn count_instance(&mut self, record: &Record, by: i64) {
        let standing = record.standing;
        self.totals.restarts += by * i64::from(standing.restarts);
        match record.node() {
            // What is finished stays so, whoever is heard.
            Some(node) if PHASES[usize::from(standing.phase)] != FINISHED => {
                let on = self.nodes.entry(node.into()).or_default();
                on.count(standing, by);
                let (ready, phase) = if on.heard { (standing.ready, Some(standing.phase)) } else { Default::default() };
                self.totals.instances(ready, phase, by);
                self.forget(node);
            }
            _ => self.totals.instances(standing.ready, Some(standing.phase), by),
        }
    }

    /// Whether that node is heard; what is on it counts accordingly.
    fn hear(&mut self, node: &str, heard: bool) {
        let on = self.nodes.entry(node.into()).or_default();
        if on.heard != heard {
            on.heard = heard;
            self.totals.shift(on, if heard { 1 } else { -1 });
        }
        self.forget(node);
    }

    /// Nobody says anything of it any more.
    fn forget(&mut self, node: &str) {
        if self.nodes.get(node).is_some_and(|on| !on.heard && on.instances == 0) {
            self.nodes.remove(node);
        }
    }
}

impl OnNode {
    fn count(&mut self, standing: Standing, by: i64) {
        self.instances += by;
        self.by_ready[standing.ready as usize] += by;
        self.by_phase[usize::from(standing.phase)] += by;
    }
}

impl Totals {
    fn count(&mut self, kind: &'static str, standing: Standing, by: i64) {
        self.by_ready.entry(kind).or_default()[standing.ready as usize] += by;
        self.braked += by * i64::from(standing.braked);
        for (place, count) in self.troubles.iter_mut().enumerate() {
            *count += by * i64::from(standing.troubles >> place & 1);
        }
    }

    /// Without a phase: it isn't known.
    fn instances(&mut self, ready: Ready, phase: Option<u8>, by: i64) {
        self.by_ready.entry(instance::KIND).or_default()[ready as usize] += by;
        match phase {
            Some(phase) => self.by_phase[usize::from(phase)] += by,
            None => self.unheard += by,
        }
    }

    /// From Unknown to what they say, or back.
    fn shift(&mut self, on: &OnNode, by: i64) {
        let ready = self.by_ready.entry(instance::KIND).or_default();
        ready[Ready::Unknown as usize] -= by * on.instances;
        ready.iter_mut().zip(on.by_ready).for_each(|(count, here)| *count += by * here);
        self.unheard -= by * on.instances;
        self.by_phase.iter_mut().zip(on.by_phase).for_each(|(count, here)| *count += by * here);
    }

    /// Kind, what it says of being ready, and how many there are; what there is none of is left out.
    pub fn by_ready(&self) -> impl Iterator<Item = ([&'static str; 2], i64)> {
        let rows = self.by_ready.iter().flat_map(|(kind, counts)| {
            Ready::ALL.into_iter().zip(counts).map(|(ready, count)| ([*kind, ready.word()], *count))
        });
        rows.filter(|(_, count)| *count != 0)
    }

    pub fn by_phase(&self) -> impl Iterator<Item = ([&'static str; 1], i64)> {
        PHASES.into_iter().map(|phase| [phase]).zip(self.by_phase).chain([([UNHEARD], self.unheard)])
    }

    pub fn restarts(&self) -> i64 {
        self.restarts
    }

    pub fn troubles(&self) -> impl Iterator<Item = ([&'static str; 1], i64)> {
        node::TROUBLES.into_iter().map(|trouble| [trouble]).zip(self.troubles)
    }

    pub fn braked(&self) -> bool {
        self.braked > 0
    }
}

#[cfg(test)]
mod tests;
