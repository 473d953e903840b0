//! Reads the history back: which entries concern what was asked for.

use api::v1;
use model::{Key, Revision, Time};
use prost::Message;
use store::{Error, HISTORY_MAX, HistoryQuery, LogRecord, Result};

use crate::{admit::entry::MANY, byhand::meant, shared::Shared};

const LIMIT_DEFAULT: usize = 1000;

pub async fn entries(shared: &Shared, request: v1::HistoryRequest) -> Result<v1::HistoryResponse> {
    shared.ready()?;
    let mut asked = Asked::of(shared, &request)?;
    let after = Revision(request.after_revision.max(0));
    let mut records = match &asked.root_uid {
        None => read(shared, None, after).await?,
        Some(root) => {
            let mut records = read(shared, Some(root), after).await?;
            records.extend(read(shared, Some(MANY), after).await?);
            records
        }
    };
    records.sort_by_key(|record| record.revision);
    let mut entries = records.into_iter().map(decoded).collect::<Result<Vec<_>>>()?;
    asked.find_gone(&entries);
    entries.retain(|entry| asked.concerns(entry));
    let surplus = entries.len().saturating_sub(asked.limit);
    Ok(v1::HistoryResponse { entries: entries.split_off(surplus) })
}

async fn read(shared: &Shared, root: Option<&str>, after: Revision) -> Result<Vec<LogRecord>> {
    let query = HistoryQuery { root_uid: root.map(ToOwned::to_owned), after, limit: HISTORY_MAX, up_to: None };
    shared.backend.history(query).await
}

pub fn decoded(record: LogRecord) -> Result<v1::HistoryEntry> {
    let revision = record.revision;
    let entry = v1::HistoryEntry::decode(record.entry.bytes)
        .map_err(|error| Error::Corrupt(format!("the history entry of revision {revision}: {error}")))?;
    Ok(v1::HistoryEntry { revision: revision.0, ..entry })
}

/// What was asked for.
struct Asked {
    key: Option<Key>,
    root_uid: Option<String>,
    /// The key is a root's: all that concerns the root concerns it.
    whole_root: bool,
    since: Option<Time>,
    limit: usize,
}

impl Asked {
    fn of(shared: &Shared, request: &v1::HistoryRequest) -> Result<Self> {
        let limit = usize::try_from(request.limit).map_err(|_| Error::invalid("limit", "must not be negative"))?;
        let key = request.key.as_ref().map(|key| meant(&Key::from(key)));
        let cache = shared.cache();
        let record = key.as_ref().and_then(|key| cache.get(key));
        let root_uid = match request.root_uid.as_str() {
            "" => record.map(|record| record.root_uid().to_owned()),
            root => Some(root.to_owned()),
        };
        Ok(Self {
            whole_root: key.is_none() || record.is_some_and(|record| record.root_uid() == record.uid()),
            key,
            root_uid,
            since: request.since.as_ref().map(Time::from),
            limit: if limit == 0 { LIMIT_DEFAULT } else { limit.min(HISTORY_MAX) },
        })
    }

    /// A root that is gone is told by what was last written under its name.
    fn find_gone(&mut self, entries: &[v1::HistoryEntry]) {
        let (Some(key), None) = (&self.key, &self.root_uid) else { return };
        let last = entries.iter().rev().find_map(|entry| {
            let touched = entry.touched.iter().find(|touched| is(touched, key))?;
            Some((entry.root_uid.as_str(), touched.uid.as_str()))
        });
        if let Some((root, uid)) = last
            && root == uid
        {
            self.root_uid = Some(uid.to_owned());
            self.whole_root = true;
        }
    }

    fn concerns(&self, entry: &v1::HistoryEntry) -> bool {
        let time = entry.time.as_ref().map(Time::from).unwrap_or_default();
        if self.since.is_some_and(|since| time < since) {
            return false;
        }
        if self.whole_root {
            return self.root_uid.as_ref().is_none_or(|root| of_root(entry, root));
        }
        self.key.as_ref().is_none_or(|key| entry.touched.iter().any(|touched| is(touched, key)))
    }
}

fn is(touched: &v1::Touched, key: &Key) -> bool {
    touched.key.as_ref().is_some_and(|touched| Key::from(touched) == *key)
}

fn of_root(entry: &v1::HistoryEntry, root: &str) -> bool {
    let below = |touched: &v1::Touched| {
        let metadata = touched.after.as_ref().and_then(|after| after.metadata.as_ref());
        touched.uid == root || metadata.is_some_and(|metadata| metadata.root_uid == root)
    };
    entry.root_uid == root || entry.touched.iter().any(below)
}
