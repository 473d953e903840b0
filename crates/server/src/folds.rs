//! Keeps a crash loop from flooding the history: changes that differ from earlier ones in counters and times alone are
//! folded into one entry, which tells of the newest of them, how many they were, and since which revision.
//!
//! A server remembers which shapes of a resource it wrote lately: what it says but for its digits. The first few of a
//! shape have entries of their own; from then on each takes the place of the one before, in the transaction of the
//! change itself. Only what agents report and what controllers say of it in a status is folded, never a step. To forget
//! what is remembered here costs a few entries more, and nothing else: it lives in memory alone.

use std::{collections::HashMap, time::Duration};

use api::v1;
use kinds::kind;
use model::{Revision, Time};
use prost::Message;
use store::Note;
use xxhash_rust::xxh3::Xxh3;

use crate::{Stamps, admit::entry::Done};

/// Changes of one shape that are kept as they are.
const KEPT: i32 = 2;
/// A shape that was not seen for so long begins anew. Longer than the longest backoff between two starts.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1_800);
/// Shapes remembered of one resource: a crash loop has about four.
const SHAPES_MAX: usize = 8;
/// Resources remembered; the one that was quiet for longest goes.
const RESOURCES_MAX: usize = 10_000;
/// What controllers call a write of nothing but a status, and agents theirs.
const VERBS: [&str; 2] = ["status", "report"];

/// Where a change goes that is like others before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    pub slot: String,
    /// It included.
    pub count: i32,
    /// What the first of them replaced.
    pub since: Revision,
}

#[derive(Clone, Debug)]
struct Shape {
    hash: u64,
    /// How often it was seen.
    times: i32,
    last: Time,
    fold: Option<Fold>,
}

/// What one transaction folds; to be remembered once it is committed.
#[derive(Debug, Default)]
pub struct Folding(Vec<(String, Shape)>);

impl Folding {
    pub fn fold(&self, uid: &str) -> Option<&Fold> {
        self.0.iter().find(|(known, _)| known == uid)?.1.fold.as_ref()
    }
}

#[derive(Default)]
pub struct Folds(HashMap<String, Vec<Shape>>);

impl Folds {
    /// How these changes are to be told. Changes nothing yet.
    pub fn look(&self, stamps: &dyn Stamps, note: &Note, done: &[Done]) -> Folding {
        if !VERBS.contains(&note.verb.as_str()) {
            return Folding::default();
        }
        let now = stamps.now();
        let shape = |one: &Done| {
            let hash = shape(one.after.as_ref()?)?;
            let known = self.0.get(&one.uid).into_iter().flatten().find(|shape| shape.hash == hash);
            let recent = known.filter(|shape| now.since(shape.last) < FORGOTTEN_AFTER);
            let times = recent.map_or(1, |shape| shape.times.saturating_add(1));
            let fold = (times > KEPT).then(|| match recent.and_then(|shape| shape.fold.clone()) {
                Some(fold) => Fold { count: fold.count.saturating_add(1), ..fold },
                None => Fold { slot: stamps.uid(), count: 1, since: one.replaced },
            });
            Some((one.uid.clone(), Shape { hash, times, last: now, fold }))
        };
        Folding(done.iter().filter_map(shape).collect())
    }

    /// They are committed.
    pub fn keep(&mut self, folding: Folding) {
        for (uid, shape) in folding.0 {
            if !self.0.contains_key(&uid) && self.0.len() >= RESOURCES_MAX {
                self.forget_quietest();
            }
            let shapes = self.0.entry(uid).or_default();
            shapes.retain(|known| known.hash != shape.hash);
            if shapes.len() == SHAPES_MAX {
                shapes.remove(0);
            }
            shapes.push(shape);
        }
    }

    fn forget_quietest(&mut self) {
        let last = |shapes: &Vec<Shape>| shapes.last().map(|shape| shape.last).unwrap_or_default();
        let quietest = self.0.iter().min_by_key(|(_, shapes)| last(shapes)).map(|(uid, _)| uid.clone());
        quietest.and_then(|uid| self.0.remove(&uid));
    }
}

/// What the resource says, but for digits; whatever is declared or asked of it counts in full.
fn shape(resource: &v1::Resource) -> Option<u64> {
    let metadata = resource.metadata.as_ref()?;
    let info = kind(&metadata.kind)?.info();
    let status = api::manifest::body(resource.status.as_ref()?, info.status_type, &[]);
    let words: String = status.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect();
    let spec = resource.spec.as_ref().map_or(&[][..], |spec| spec.value.as_slice());
    let declared = v1::Metadata {
        generation: metadata.generation,
        deletion_time: metadata.deletion_time,
        finalizers: metadata.finalizers.clone(),
        labels: metadata.labels.clone(),
        ..Default::default()
    };
    let mut hasher = Xxh3::new();
    for part in [words.as_bytes(), spec, &declared.encode_to_vec()] {
        hasher.update(&part.len().to_le_bytes());
        hasher.update(part);
    }
    Some(hasher.digest())
}

#[cfg(test)]
mod tests;
