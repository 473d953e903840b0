//! History entries: written by commits, read in the store's order, forgotten from the old end. No watch covers them.

use bytes::Bytes;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, SortOrder, SortTarget, Txn, TxnOp};
use model::Revision;
use prost::Message;
use store::{Error, HISTORY_MAX, HistoryQuery, LogEntry, LogRecord, PUTS_MAX, Result};

use crate::{Failure, backend::Inner, layout::range_end};

/// Deletes in one transaction.
const TRIM_BATCH: usize = 100;

/// How an entry is kept: the key's text is for people, this is for reading back.
#[derive(Clone, PartialEq, prost::Message)]
struct Stored {
    #[prost(string, tag = "1")]
    root_uid: String,
    #[prost(string, tag = "2")]
    step_id: String,
    #[prost(bytes = "bytes", tag = "3")]
    bytes: Bytes,
    /// Its place among the entries of its commit.
    #[prost(uint32, tag = "4")]
    index: u32,
}

pub fn encode(entry: &LogEntry, index: usize) -> Vec<u8> {
    let LogEntry { root_uid, step_id, bytes, .. } = entry.clone();
    let index = u32::try_from(index).expect("at most PUTS_MAX");
    Stored { root_uid, step_id, bytes, index }.encode_to_vec()
}

/// Its place among the entries of its commit, and the entry.
fn decode(kv: KeyValue) -> Result<(u32, LogRecord)> {
    let revision = Revision(kv.mod_revision());
    let (key, value) = kv.into_key_value();
    let Stored { root_uid, step_id, bytes, index } = Stored::decode(value.as_slice())
        .map_err(|e| Error::Corrupt(format!("the history entry {:?}: {e}", String::from_utf8_lossy(&key))))?;
    Ok((index, LogRecord { revision, entry: LogEntry { root_uid, step_id, bytes, slot: String::new() } }))
}

/// Some of the history, from one end of it.
pub struct Part {
    /// With their places among the entries of their commits.
    pub records: Vec<(u32, LogRecord)>,
    pub more: bool,
    /// No more than so many fit into one answer.
    rows: usize,
}

impl Inner {
    pub async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        let limit = if query.limit == 0 { HISTORY_MAX } else { query.limit.min(HISTORY_MAX) };
        let prefix = self.layout.history(query.root_uid.as_deref());
        let mut records = Vec::new();
        let (mut up_to, mut rows) = (query.up_to.unwrap_or(Revision(i64::MAX)), limit + PUTS_MAX);
        // From the newest on, in whole commits.
        while records.len() < limit && up_to > query.after {
            let mut some = self.some_history(&prefix, SortOrder::Descend, (query.after, up_to), rows).await?;
            let last = some.records.last().map_or(query.after, |(_, record)| record.revision);
            if some.more {
                // The oldest commit of these may be cut.
                some.records.retain(|(_, record)| record.revision > last);
            }
            (up_to, rows) = match (some.more, some.records.is_empty()) {
                (false, _) => (query.after, some.rows),
                (true, false) => (last, some.rows),
                // Not even one commit's were taken at once, so it's read by itself.
                (true, true) => {
                    let alone = (Revision(last.0 - 1), last);
                    some.records = self.some_history(&prefix, SortOrder::Descend, alone, PUTS_MAX).await?.records;
                    (alone.0, some.rows)
                }
            };
            records.append(&mut some.records);
        }
        records.sort_by_key(|(index, record)| (record.revision, *index));
        let first = records.len().saturating_sub(limit);
        Ok(records.drain(first..).map(|(_, record)| record).collect())
    }

    /// Entries of commits after one and up to another: so many of one end, or as many as fit into one answer.
    pub async fn some_history(
        &self,
        prefix: &str,
        order: SortOrder,
        (after, up_to): (Revision, Revision),
        mut rows: usize,
    ) -> Result<Part> {
        loop {
            let options = GetOptions::new()
                .with_range(range_end(prefix))
                .with_min_mod_revision(after.0 + 1)
                .with_max_mod_revision(up_to.0)
                .with_sort(SortTarget::Mod, order)
                .with_limit(i64::try_from(rows).expect("a bound of ours"));
            match self.get_much("reading history", prefix.into(), options).await {
                Err(Failure::AnswerTooLarge) if rows > 1 => rows /= 2,
                Err(failure) => return Err(failure.into()),
                Ok(mut answer) => {
                    let more = answer.more();
                    let records = answer.take_kvs().into_iter().map(decode).collect::<Result<_>>()?;
                    return Ok(Part { records, more, rows });
                }
            }
        }
    }

    /// An entry in a slot may be replaced by a newer one meanwhile, so each is compared as it goes.
    pub async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        if up_to <= Revision::ZERO {
            return Ok(0); // To etcd, 0 is no bound.
        }
        let prefix = self.layout.history(None);
        let options = GetOptions::new()
            .with_range(range_end(&prefix))
            .with_max_mod_revision(up_to.0)
            .with_limit(TRIM_BATCH as i64)
            .with_keys_only();
        let mut trimmed = 0;
        loop {
            let mut answer = self.get_much("reading old history", prefix.clone().into(), options.clone()).await?;
            let keys: Vec<Vec<u8>> = answer.take_kvs().into_iter().map(|kv| kv.into_key_value().0).collect();
            if keys.is_empty() {
                return Ok(trimmed);
            }
            let count = keys.len();
            let old = |key: &Vec<u8>| Compare::mod_revision(key.clone(), CompareOp::Less, up_to.0 + 1);
            let compares: Vec<Compare> = keys.iter().map(old).collect();
            let deletes: Vec<TxnOp> = keys.into_iter().map(|key| TxnOp::delete(key, None)).collect();
            let answer = self.transact("trimming history", Txn::new().when(compares).and_then(deletes)).await?;
            trimmed += if answer.succeeded() { count } else { 0 };
        }
    }
}
