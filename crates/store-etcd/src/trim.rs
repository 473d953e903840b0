//! Which history entries to forget: those that are too old, and the oldest of what is too much.

use api::v1;
use etcd_client::{GetOptions, SortOrder};
use model::{Revision, Time};
use prost::Message;
use store::{LogRecord, Result};

use crate::{backend::Inner, layout::range_end};

/// Entries looked at together; one may hold some hundred kilobytes.
const LOOK: usize = 200;
/// Entries whose mean size stands for all.
const SAMPLE: usize = 100;
/// Looks in one turn: the rest is for the next.
const LOOKS_MAX: usize = 500;

/// What may stay.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Nothing from before.
    pub oldest: Time,
    /// About so many bytes.
    pub bytes: u64,
    /// No more than half of what there is.
    pub halve: bool,
}

impl Inner {
    /// Returns how many entries were forgotten.
    pub async fn trim(&self, bounds: Bounds) -> Result<usize> {
        let bytes = self.history_bytes().await?;
        let allowed = if bounds.halve { bounds.bytes.min(bytes / 2) } else { bounds.bytes };
        let mut excess = bytes.saturating_sub(allowed);
        let mut trimmed = 0;
        for _ in 0..LOOKS_MAX {
            let oldest = self.end_of_history(SortOrder::Ascend, LOOK).await?;
            let Some(up_to) = cut(&oldest, bounds.oldest, &mut excess) else { break };
            trimmed += self.trim_history(up_to).await?;
            if oldest.last().is_none_or(|last| last.revision > up_to) {
                break;
            }
        }
        Ok(trimmed)
    }

    /// An estimate: the number of entries by the mean size of the newest.
    async fn history_bytes(&self) -> Result<u64> {
        let prefix = self.layout.history(None);
        let options = GetOptions::new().with_range(range_end(&prefix)).with_count_only();
        let count = self.get_range("counting history", prefix.into(), options).await?.count();
        let sample = self.end_of_history(SortOrder::Descend, SAMPLE).await?;
        let bytes: u64 = sample.iter().map(size).sum();
        Ok(bytes * u64::try_from(count).unwrap_or_default() / u64::try_from(sample.len().max(1)).unwrap_or(1))
    }

    async fn end_of_history(&self, order: SortOrder, limit: usize) -> Result<Vec<LogRecord>> {
        let (prefix, all) = (self.layout.history(None), (Revision::ZERO, Revision(i64::MAX)));
        let part = self.some_history(&prefix, order, all, limit).await?;
        Ok(part.records.into_iter().map(|(_, record)| record).collect())
    }
}

/// Up to where to trim; takes off from `excess` what goes.
fn cut(oldest_first: &[LogRecord], oldest: Time, excess: &mut u64) -> Option<Revision> {
    let goes = |record: &&LogRecord| {
        let goes = *excess > 0 || time_of(record).is_some_and(|time| time < oldest);
        if goes {
            *excess = excess.saturating_sub(size(record));
        }
        goes
    };
    oldest_first.iter().take_while(goes).last().map(|record| record.revision)
}

fn size(record: &LogRecord) -> u64 {
    u64::try_from(record.entry.bytes.len()).expect("bytes fit in memory")
}

/// An entry that can't be read has no age; it goes when there's too much.
fn time_of(record: &LogRecord) -> Option<Time> {
    let entry = v1::HistoryEntry::decode(record.entry.bytes.clone()).ok()?;
    entry.time.as_ref().map(Time::from)
}
