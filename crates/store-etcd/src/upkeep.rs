//! Keeps etcd in shape: says what was found, forgets old revisions and old history, and watches its space.
//!
//! Every server runs this. Whose turn it is, a compare on one key decides, so the work is done once an interval and goes
//! on with whichever server lives. The key's revision of one interval ago is also what may be forgotten now, so nobody
//! needs a clock to tell how old a revision is.

use std::{
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use model::{Revision, Time};
use store::{Error, Result};
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::{
    EtcdStore,
    admin::{Status, warnings},
    backend::Inner,
    commit::{Found, put_head, revision_of},
    trim::Bounds,
};

/// In use, in percent of the quota: from here on history is cut by half each turn.
pub const TIGHT_PERCENT: u64 = 80;
/// From here on nothing new is taken, so that what exists can still change and be deleted.
pub const FULL_PERCENT: u64 = 90;

/// Until etcd first answers: what was found should be said soon after the start.
const GREET_EVERY: Duration = Duration::from_secs(1);

/// What is kept how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upkeep {
    /// Revisions are kept for one to two of these: that long a watch may be away and resume.
    pub every: Duration,
    /// How often space is looked at.
    pub look_every: Duration,
    pub history_max_age: Duration,
    pub history_max_bytes: u64,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(5 * 60),
            look_every: Duration::from_secs(15),
            history_max_age: Duration::from_secs(7 * 24 * 3600),
            history_max_bytes: 256 * 1024 * 1024,
        }
    }
}

impl EtcdStore {
    /// Goes on until the store is dropped.
    pub fn keep(&self, upkeep: Upkeep) {
        self.inner.parts.spawn("upkeep", run(Arc::downgrade(&self.inner), upkeep));
    }

    /// How much of the quota is in use, in percent, as of the last look.
    pub fn space_percent(&self) -> u64 {
        self.inner.space.percent()
    }
}

async fn run(store: Weak<Inner>, upkeep: Upkeep) {
    let (mut known, mut greeted, mut turn) = (None, false, Instant::now() + upkeep.every);
    loop {
        let Some(inner) = store.upgrade() else { return };
        let store = EtcdStore { inner };
        match store.status().await {
            Ok(status) => {
                if !std::mem::replace(&mut greeted, true) {
                    greet(&status);
                }
                store.inner.space.look(&status);
            }
            Err(error) => warn!(%error, "etcd doesn't tell its status"),
        }
        if Instant::now() >= turn || known.is_none() {
            turn = Instant::now() + upkeep.every;
            known = store.take_turn(&upkeep, known.unwrap_or_default()).await.or(known);
        }
        drop(store);
        let pause = upkeep.look_every.min(upkeep.every);
        sleep(if greeted { pause } else { pause.min(GREET_EVERY) }).await;
    }
}

/// What is known of the key whose owner's turn it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Turn {
    version: i64,
    revision: Revision,
}

impl Turn {
    fn of(kv: &KeyValue) -> Self {
        Self { version: kv.version(), revision: Revision(kv.mod_revision()) }
    }
}

impl EtcdStore {
    /// None where it isn't known whose turn it was.
    async fn take_turn(&self, upkeep: &Upkeep, known: Turn) -> Option<Turn> {
        let worked = match self.claim_turn(known).await {
            Ok((next, false)) => return Some(next),
            Ok((next, true)) => self.work(upkeep, known.revision).await.map(|()| next),
            Err(error) => Err(error),
        };
        worked.inspect_err(|error| warn!(%error, "upkeep of etcd failed; the next turn tries again")).ok()
    }

    /// The turn after this one, and whether this one is ours. Writes `head` too, so that watches and tokens of a store in
    /// which only sessions are written move on before compaction reaches them.
    async fn claim_turn(&self, known: Turn) -> Result<(Turn, bool)> {
        let key = self.inner.layout.upkeep();
        let txn = Txn::new()
            .when([Compare::version(key.clone(), CompareOp::Equal, known.version)])
            .and_then([TxnOp::put(key.clone(), "", None), put_head(&self.inner.layout, 0)])
            .or_else([TxnOp::get(key.clone(), None)]);
        let answer = self.inner.transact("taking the turn of upkeep", txn).await?;
        if answer.succeeded() {
            return Ok((Turn { version: known.version + 1, revision: revision_of(&answer) }, true));
        }
        Ok((Found::of(&answer).get(&key).map(Turn::of).unwrap_or_default(), false))
    }

    async fn work(&self, upkeep: &Upkeep, before: Revision) -> Result<()> {
        let bounds = Bounds {
            oldest: now().minus(upkeep.history_max_age),
            bytes: upkeep.history_max_bytes,
            halve: self.space_percent() >= TIGHT_PERCENT,
        };
        // What keeps one of them from being done mustn't keep the other.
        let trimmed = self.inner.trim(bounds).await;
        if before > Revision::ZERO {
            self.compact(before).await?;
        }
        let trimmed = trimmed?;
        let status = self.status().await?;
        if status
            .members
            .iter()
            .any(|member| is_fragmented(member.db_bytes, member.db_bytes_in_use, member.quota_bytes))
        {
            self.defragment().await?;
            info!("etcd defragmented: its file was mostly free, but near its quota");
        }
        info!(compacted = %before, trimmed, percent = self.space_percent(), "etcd kept in shape");
        Ok(())
    }
}

/// The quota counts the file, so a file of free pages is worth giving back before it raises the alarm.
fn is_fragmented(file: u64, in_use: u64, quota: u64) -> bool {
    file * 100 >= quota * TIGHT_PERCENT && in_use * 2 < file
}

/// Servers stamp, so a server's clock says what is old.
fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::default().plus(since)
}

fn greet(status: &Status) {
    for member in &status.members {
        info!(endpoint = member.endpoint, version = member.version, leads = member.is_leader, "etcd found");
    }
    for (endpoint, why) in &status.down {
        warn!(endpoint, why, "etcd endpoint is down");
    }
    let mut versions: Vec<&str> = status.members.iter().map(|member| member.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    versions.into_iter().flat_map(warnings).for_each(|warning| warn!("{warning}"));
}

/// How much space is left.
#[derive(Debug, Default)]
pub struct Space(std::sync::atomic::AtomicU64);

impl Space {
    pub fn percent(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn look(&self, status: &Status) {
        let percent = status.members.iter().map(|m| m.db_bytes_in_use * 100 / m.quota_bytes.max(1)).max().unwrap_or(0);
        let before = self.0.swap(percent, std::sync::atomic::Ordering::Relaxed);
        for alarm in &status.alarms {
            error!(alarm, "etcd raised an alarm");
        }
        match (before, percent) {
            (..FULL_PERCENT, FULL_PERCENT..) => error!(percent, "etcd is nearly full: nothing new is taken"),
            (..TIGHT_PERCENT, TIGHT_PERCENT..) => warn!(percent, "etcd's space is tight: history is cut"),
            (TIGHT_PERCENT.., ..TIGHT_PERCENT) => info!(percent, "etcd has space again"),
            _ => {}
        }
    }

    /// Refuses what is new while space is nearly used up.
    pub fn check_create(&self) -> Result<()> {
        match self.percent() {
            percent @ FULL_PERCENT.. => Err(Error::Unavailable(format!(
                "etcd uses {percent} % of its quota, and from {FULL_PERCENT} % on nothing new is created: delete something, \
                 or start etcd with a larger --quota-backend-bytes"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "upkeep_tests.rs"]
mod tests;
