//! History entries: what one transaction did, as it concerns each root resource.

use std::collections::BTreeMap;

use api::v1;
use model::{Fence, Key, Revision};
use prost::Message;
use store::{LogEntry, Note, PUTS_MAX};

use super::rights::Author;
use crate::folds::{Fold, Folding};

/// Where a transaction touches more roots than there's room for entries, one entry tells of all of them. It's kept
/// under this name, and found again by what it touched.
pub const MANY: &str = "many";
/// Folded entries of one transaction: each is one put more, and there should be room for the others.
const FOLDED_MAX: usize = 15;

/// One write as the history tells it.
#[derive(Clone, Debug)]
pub struct Done {
    pub key: Key,
    pub uid: String,
    pub root_uid: String,
    pub replaced: Revision,
    /// None: removed.
    pub after: Option<v1::Resource>,
    /// What it came under, which may be another trace than the note's.
    pub traceparent: String,
}

/// What folds, by `folding`, gets an entry of its own, in its slot; there is no room for that where very much is written
/// at once.
pub fn entries(
    author: &Author,
    fence: Option<&Fence>,
    note: &Note,
    done: Vec<Done>,
    folding: &Folding,
) -> Vec<LogEntry> {
    let writes = done.len();
    let mut roots: BTreeMap<String, Vec<Done>> = BTreeMap::new();
    let mut folded = Vec::new();
    for one in done {
        match folding.fold(&one.uid).filter(|_| folded.len() < FOLDED_MAX) {
            Some(fold) => folded.push((fold, one)),
            None => roots.entry(one.root_uid.clone()).or_default().push(one),
        }
    }
    // `head` is the one more.
    if writes + roots.len() + folded.len() + 1 > PUTS_MAX {
        let all = roots.into_values().flatten().chain(folded.into_iter().map(|(_, one)| one)).collect();
        return vec![entry(author, fence, note, MANY, all, None)];
    }
    let folded = folded.into_iter().map(|(fold, one)| {
        let root = one.root_uid.clone();
        entry(author, fence, note, &root, vec![one], Some(fold))
    });
    let whole = roots.into_iter().map(|(root, done)| entry(author, fence, note, &root, done, None));
    folded.chain(whole).collect()
}

fn entry(
    author: &Author,
    fence: Option<&Fence>,
    note: &Note,
    root: &str,
    done: Vec<Done>,
    fold: Option<&Fold>,
) -> LogEntry {
    let (claim, epoch) = match fence {
        Some(Fence::Claim { claim, epoch, .. }) => (claim.clone(), epoch.0),
        _ => Default::default(),
    };
    let own = done.iter().map(|one| &one.traceparent).find(|own| !own.is_empty());
    let traceparent = own.unwrap_or(&note.traceparent).clone();
    let entry = v1::HistoryEntry {
        revision: 0,
        time: Some(author.now.into()),
        actor: author.actor.clone(),
        claim,
        epoch,
        step_id: author.step_id.clone(),
        verb: note.verb.clone(),
        why: Some(note.why.clone()),
        traceparent,
        touched: done.into_iter().map(touched).collect(),
        root_uid: if root == MANY { String::new() } else { root.to_owned() },
        folded: fold.map_or(0, |fold| fold.count),
        folded_since: fold.map_or(0, |fold| fold.since.0),
    };
    LogEntry {
        root_uid: root.to_owned(),
        step_id: author.step_id.clone(),
        bytes: entry.encode_to_vec().into(),
        slot: fold.map_or_else(String::new, |fold| fold.slot.clone()),
    }
}

fn touched(done: Done) -> v1::Touched {
    let after = done.after.map(|mut resource| {
        if let Some(metadata) = &mut resource.metadata {
            metadata.revision = 0;
        }
        resource
    });
    v1::Touched { key: Some((&done.key).into()), uid: done.uid, replaced_revision: done.replaced.0, after }
}
