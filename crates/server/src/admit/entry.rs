//! History entries: what one transaction did, as it concerns each root resource.

use std::collections::BTreeMap;

use api::v1;
use model::{Fence, Key, Revision};
use prost::Message;
use store::{LogEntry, Note, PUTS_MAX};

use super::rights::Author;

/// Where a transaction touches more roots than there's room for entries, one entry tells of all of them. It's kept
/// under this name, and found again by what it touched.
pub const MANY: &str = "many";

/// One write as the history tells it.
#[derive(Clone, Debug)]
pub struct Done {
    pub key: Key,
    pub uid: String,
    pub root_uid: String,
    pub replaced: Revision,
    /// None: removed.
    pub after: Option<v1::Resource>,
}

pub fn entries(author: &Author, fence: Option<&Fence>, note: &Note, done: Vec<Done>) -> Vec<LogEntry> {
    let writes = done.len();
    let mut roots: BTreeMap<String, Vec<Done>> = BTreeMap::new();
    for one in done {
        roots.entry(one.root_uid.clone()).or_default().push(one);
    }
    // `head` is the one more.
    if writes + roots.len() + 1 > PUTS_MAX {
        let all = roots.into_values().flatten().collect();
        return vec![entry(author, fence, note, MANY, all)];
    }
    roots.into_iter().map(|(root, done)| entry(author, fence, note, &root, done)).collect()
}

fn entry(author: &Author, fence: Option<&Fence>, note: &Note, root: &str, done: Vec<Done>) -> LogEntry {
    let (claim, epoch) = match fence {
        Some(Fence::Claim { claim, epoch, .. }) => (claim.clone(), epoch.0),
        _ => Default::default(),
    };
    let entry = v1::HistoryEntry {
        revision: 0,
        time: Some(author.now.into()),
        actor: author.actor.clone(),
        claim,
        epoch,
        step_id: author.step_id.clone(),
        verb: note.verb.clone(),
        why: Some(note.why.clone()),
        traceparent: note.traceparent.clone(),
        touched: done.into_iter().map(touched).collect(),
        root_uid: if root == MANY { String::new() } else { root.to_owned() },
    };
    LogEntry { root_uid: root.to_owned(), step_id: author.step_id.clone(), bytes: entry.encode_to_vec().into() }
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
