//! What an agent saw becomes status: merged onto the newest records, many in one transaction, fenced by the agent's
//! session. What is so already is not written.

use std::{collections::VecDeque, sync::Arc};

use api::v1;
use kinds::{any, instance, node};
use model::{Domain, Fence, Key, Revision, Why};
use prost::Message;
use prost_types::Any;
use store::{Caller, Error, Note, Result, Write};
use telemetry::trace::received;

use crate::{
    admit::{
        entry::Done,
        rights::{self, Author},
    },
    byhand::meant,
    commit::{known_kind, put},
    heads::Heads,
    reads::barrier,
    record::Record,
    shared::Shared,
    unfenced::{ATTEMPTS_MAX, Step, author},
};

/// Records in one transaction.
const WRITES_MAX: usize = 100;
/// Their encoded bytes. History entries repeat them, and 1 MiB is the most.
const BYTES_MAX: usize = 400 * 1024;
/// Different things that one entry tells of in words.
const NEWS_SHOWN: usize = 3;
/// Reports in one batch.
const REPORTS_MAX: usize = 10_000;

/// One thing that was reported.
struct Report {
    key: Key,
    /// None: whichever it is (the node itself, whose name the session proves).
    uid: Option<String>,
    status: Option<Any>,
    gone: bool,
    traceparent: String,
}

/// Returns the revision of the last commit (or the one seen, where nothing was written), and what was refused.
pub async fn report(
    shared: &Shared,
    heads: &Heads,
    caller: &Caller,
    fence: Fence,
    node: &str,
    batch: v1::ReportBatch,
) -> Result<(Revision, Vec<Key>)> {
    shared.ready()?;
    if !matches!(fence, Fence::Session { .. }) {
        return Err(Error::Denied("reports are made under an agent's session".into()));
    }
    if batch.instances.len() > REPORTS_MAX {
        let count = batch.instances.len();
        return Err(Error::TooLarge(format!("{count} reports in one batch; at most {REPORTS_MAX}")));
    }
    let mut run = Run { shared, heads, caller, fence, node, fresh: false, refused: Vec::new() };
    let mut left: VecDeque<Report> = reports(node, batch).into();
    let mut revision = shared.cache().revision;
    while !left.is_empty() {
        if let Some(committed) = run.chunk(&mut left).await? {
            revision = committed;
        }
    }
    Ok((revision, run.refused))
}

fn reports(node: &str, batch: v1::ReportBatch) -> Vec<Report> {
    let own = batch.node.map(|status| Report {
        key: Key::new(node::KIND, "", node),
        uid: None,
        status: Some(any(node::STATUS, &status)),
        gone: false,
        traceparent: String::new(),
    });
    let instances = batch.instances.into_iter().map(|report| Report {
        key: report.key.as_ref().map(|key| meant(&Key::from(key))).unwrap_or_else(|| Key::new(instance::KIND, "", "")),
        uid: Some(report.uid),
        status: report.status.as_ref().map(|status| any(instance::STATUS, status)),
        gone: report.gone,
        traceparent: received(&report.traceparent),
    });
    own.into_iter().chain(instances).collect()
}

struct Run<'a> {
    shared: &'a Shared,
    heads: &'a Heads,
    caller: &'a Caller,
    fence: Fence,
    node: &'a str,
    /// The cache was seen to be as new as the store since the batch came.
    fresh: bool,
    refused: Vec<Key>,
}

impl Run<'_> {
    /// Commits as many from the front as fit into one transaction. Computed anew where somebody else wrote meanwhile.
    async fn chunk(&mut self, left: &mut VecDeque<Report>) -> Result<Option<Revision>> {
        for _ in 0..ATTEMPTS_MAX {
            let author = author(self.shared, self.caller, Domain::Agent);
            let Chunk { step, taken, refused, known, news } = self.gather(&author, left)?;
            if (!refused.is_empty() || known) && !self.fresh {
                // It may be newer than what this server has seen; and what is so already may not be so any more, such as
                // where the report before this one said something else a moment ago.
                self.freshen().await?;
                continue;
            }
            let committed = match step.is_empty() {
                true => Ok(None),
                false => {
                    let note = note(self.caller, &news);
                    step.commit(self.shared, &author, Some(self.fence.clone()), note).await.map(Some)
                }
            };
            match committed {
                Ok(revision) => {
                    // What was just written isn't seen yet.
                    self.fresh &= revision.is_none();
                    left.drain(..taken);
                    self.refused.extend(refused);
                    return Ok(revision);
                }
                Err(Error::Conflict { .. }) => {
                    self.shared.counters.retries.add(1);
                    self.freshen().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unavailable(format!("the reported resources kept changing; {ATTEMPTS_MAX} attempts were made")))
    }

    async fn freshen(&mut self) -> Result<()> {
        self.fresh = true;
        barrier(self.shared, self.heads, Revision::ZERO).await
    }

    fn gather(&self, author: &Author, left: &VecDeque<Report>) -> Result<Chunk> {
        let mut chunk = Chunk { step: Step::begin(self.shared), ..Chunk::default() };
        let records = self.records(left);
        let mut bytes = 0;
        for (report, record) in left.iter().zip(records) {
            let Some(record) = record.filter(|record| self.is_own(report, record)) else {
                chunk.taken += 1;
                chunk.refused.push(report.key.clone());
                continue;
            };
            let merged = merged(author, report, &record)?;
            chunk.known |= merged.is_none();
            if let Some((write, done, news)) = merged {
                bytes += size(&write);
                if chunk.step.writes.len() == WRITES_MAX || (bytes > BYTES_MAX && !chunk.step.is_empty()) {
                    break;
                }
                chunk.step.add(write, done);
                chunk.news.push((report.key.name().to_owned(), news));
            }
            chunk.taken += 1;
        }
        Ok(chunk)
    }

    /// Of the reports from the front, as of one moment; no more of them than one transaction may hold, since the others
    /// may have changed by their turn.
    fn records(&self, left: &VecDeque<Report>) -> Vec<Option<Arc<Record>>> {
        let cache = self.shared.cache();
        let mut seen = std::collections::HashSet::new();
        // A second report of the same resource needs the first one's outcome.
        let once = left.iter().take(4 * WRITES_MAX).take_while(|report| seen.insert(&report.key));
        once.map(|report| cache.get(&report.key).cloned()).collect()
    }

    /// Whether it's the very resource that was meant, and this node's.
    fn is_own(&self, report: &Report, record: &Record) -> bool {
        report.uid.as_ref().is_none_or(|uid| uid == record.uid()) && record.node() == Some(self.node)
    }
}

#[derive(Default)]
struct Chunk {
    step: Step,
    /// Reports that are dealt with once it's committed.
    taken: usize,
    refused: Vec<Key>,
    /// Something among them is so already, as far as this server has seen.
    known: bool,
    /// What the step tells of each resource, by its name.
    news: Vec<(String, Why)>,
}

fn size(write: &Write) -> usize {
    match write {
        Write::Put(resource) => resource.encoded_len(),
        Write::Remove { key, .. } => key.text().len(),
    }
}

/// None where nothing is new.
fn merged(author: &Author, report: &Report, record: &Record) -> Result<Option<(Write, Done, Why)>> {
    let key = &report.key;
    let kind = known_kind(key)?;
    let (uid, replaced) = (record.uid().to_owned(), record.revision);
    let done = |after| Done {
        key: key.clone(),
        uid: uid.clone(),
        root_uid: record.root_uid().to_owned(),
        replaced,
        after,
        traceparent: report.traceparent.clone(),
    };
    let before = rights::read(key, record)?;
    if report.gone && record.deleting {
        rights::remove(author, kind, key, record)?;
        let write = Write::Remove { key: key.clone(), uid: uid.clone(), revision: replaced };
        return Ok(Some((write, done(None), kind.news(&before, None))));
    }
    let next = v1::Resource { status: report.status.clone(), ..before.clone() };
    let after = rights::update(author, kind, before.clone(), next)?;
    if after.status == before.status {
        return Ok(None);
    }
    let news = kind.news(&before, Some(&after));
    Ok(Some((put(after.clone(), replaced), done(Some(after)), news)))
}

/// Who is told of the same counts together.
fn note(caller: &Caller, news: &[(String, Why)]) -> Note {
    let mut alike: Vec<(&Why, Vec<&str>)> = Vec::new();
    for (name, why) in news {
        match alike.iter_mut().find(|(known, _)| known == &why) {
            Some((_, names)) => names.push(name),
            None => alike.push((why, vec![name])),
        }
    }
    let words = |(why, names): &(&Why, Vec<&str>)| match names.as_slice() {
        [name] => format!("{name}: {}", why.message),
        names => format!("{} resources: {}", names.len(), why.message),
    };
    let mut message = match alike.as_slice() {
        // The entry names it.
        [(why, names)] if names.len() == 1 => why.message.clone(),
        some => some.iter().take(NEWS_SHOWN).map(words).collect::<Vec<_>>().join("; "),
    };
    if alike.len() > NEWS_SHOWN {
        message += &format!("; and {} more", alike.len() - NEWS_SHOWN);
    }
    let reason = match alike.as_slice() {
        [(why, _)] => why.reason,
        _ => "Observed",
    };
    let why = v1::Why { reason: reason.into(), message };
    Note { verb: "report".into(), why, traceparent: caller.traceparent.clone() }
}
