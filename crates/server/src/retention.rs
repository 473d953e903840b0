//! What is kept of the history: so old at most, and so much.
//!
//! Only servers reach the store, so the leader's duty to trim is done by the server that the leader is attached to: one at
//! a time, and it moves as leadership does. Should two do it for a moment, no harm is done, since what is old is old for
//! both. Each pass reads what is new since the one before, once, and remembers no more than how much that was; so between
//! two passes the history may exceed its bound by what is written in that time, and no longer.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use api::v1;
use model::{LEADER, Revision, Time};
use prost::Message;
use store::{HistoryQuery, LogRecord, Result};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info};

use crate::{members::Members, shared::Shared};

/// Entries read at once.
const PAGE: usize = 500;
/// Entries that go together.
const TOGETHER: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Default: 7 days.
    pub age_max: Duration,
    /// Of encoded entries. Default: 256 MiB, an eighth of what etcd takes unless it is told otherwise.
    pub bytes_max: usize,
    /// Between two passes. Default: 10 s.
    pub every: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age_max: Duration::from_secs(7 * 86_400), bytes_max: 256 * 1024 * 1024, every: Duration::from_secs(10) }
    }
}

/// Never ends by itself.
pub async fn run(shared: Arc<Shared>, members: Members) {
    let mut timer = interval(shared.config.retention.every);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut kept = Kept::default();
    loop {
        timer.tick().await;
        if shared.ready().is_err() || !leads(&members, &shared.config.name) {
            // Somebody else trims: what was counted here may be gone.
            kept = Kept::default();
            continue;
        }
        if let Err(error) = pass(&shared, &mut kept).await {
            debug!(%error, "the history isn't trimmed this time");
        }
    }
}

/// Whether the leader is attached to this server.
fn leads(members: &Members, name: &str) -> bool {
    let state = members.state();
    let leader = state.claims.iter().find(|claim| claim.name == LEADER).map(|claim| claim.owner.as_str());
    state.members.iter().any(|member| Some(member.session.as_str()) == leader && member.server == name)
}

async fn pass(shared: &Shared, kept: &mut Kept) -> Result<()> {
    count_new(shared, kept).await?;
    if let Some(up_to) = kept.surplus(&shared.config.retention, shared.now()) {
        let trimmed = shared.backend.trim_history(up_to).await?;
        info!(%up_to, trimmed, "old history trimmed");
    }
    Ok(())
}

/// Pages come newest first; they are counted oldest first.
async fn count_new(shared: &Shared, kept: &mut Kept) -> Result<()> {
    let after = kept.newest();
    let mut up_to = None;
    let mut marks = VecDeque::new();
    loop {
        let query = HistoryQuery { root_uid: None, after, up_to, limit: PAGE };
        let page = shared.backend.history(query).await?;
        let Some(oldest) = page.first().map(|record| record.revision) else { break };
        page.rchunks(TOGETHER).for_each(|entries| marks.push_front(Mark::of(entries)));
        if page.len() < PAGE {
            break;
        }
        // The rest of a revision that the page cut in two goes uncounted, which is less than a page.
        up_to = Some(Revision(oldest.0 - 1));
    }
    kept.0.extend(marks);
    Ok(())
}

/// A few entries of the history as they were once read: how far it goes, from when its newest entry is, and how much it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    revision: Revision,
    time: Time,
    bytes: usize,
}

impl Mark {
    fn of(entries: &[LogRecord]) -> Self {
        let newest = entries.last().expect("chunks are not empty");
        let time = v1::HistoryEntry::decode(newest.entry.bytes.clone()).ok().and_then(|entry| entry.time);
        Self {
            revision: newest.revision,
            // What can't be read is trimmed by size alone.
            time: time.as_ref().map_or(Time(i64::MAX), Time::from),
            bytes: entries.iter().map(|record| record.entry.bytes.len()).sum(),
        }
    }
}

/// What is kept, oldest first.
#[derive(Debug, Default)]
struct Kept(VecDeque<Mark>);

impl Kept {
    fn newest(&self) -> Revision {
        self.0.back().map_or(Revision::ZERO, |mark| mark.revision)
    }

    /// How far it should be trimmed now; what lies before that is forgotten here.
    fn surplus(&mut self, retention: &Retention, now: Time) -> Option<Revision> {
        let mut bytes: usize = self.0.iter().map(|mark| mark.bytes).sum();
        let mut up_to = None;
        while let Some(oldest) = self.0.front() {
            let old = now.since(oldest.time) > retention.age_max;
            // The newest stay, so that there is always something to read.
            if !old && (bytes <= retention.bytes_max || self.0.len() == 1) {
                break;
            }
            bytes -= oldest.bytes;
            up_to = self.0.pop_front().map(|mark| mark.revision);
        }
        up_to
    }
}

#[cfg(test)]
mod tests;
