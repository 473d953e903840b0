//! What an operator, or the leader on their behalf, wants of etcd itself: its versions and their known faults, space,
//! alarms, compaction.

use std::{sync::Arc, time::Duration};

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, CompactionOptions, Compare, CompareOp, DeleteOptions, Txn, TxnOp,
};
use model::Revision;
use store::{Cluster, Error, Result};
use telemetry::metrics::Source;

use crate::{Counts, EtcdStore, Failure, commit, layout::write_cluster, metrics::Metrics};

/// Oldest version this store is tested with.
pub const VERSION_MIN: (u32, u32, u32) = (3, 4, 0);
/// A member that doesn't tell its status by then counts as down.
const STATUS_MAX: Duration = Duration::from_secs(1);
/// etcd compacts a thousand revisions at a time, with pauses; what some busy minutes wrote takes some seconds.
const COMPACT_MAX: Duration = Duration::from_secs(60);
/// Defragmenting stops a member until it's done; 2 GiB take some seconds.
const DEFRAGMENT_MAX: Duration = Duration::from_secs(60);

/// One etcd member, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    pub endpoint: String,
    pub version: String,
    /// Of the file; only defragmenting makes it smaller.
    pub db_bytes: u64,
    pub db_bytes_in_use: u64,
    /// Above which it raises NOSPACE: its own word (3.6 and newer), else what our options say.
    pub quota_bytes: u64,
    pub is_leader: bool,
}

impl MemberStatus {
    /// How much of the quota is used, in percent.
    pub fn used_percent(&self) -> u64 {
        self.db_bytes.saturating_mul(100) / self.quota_bytes.max(1)
    }
}

/// What etcd says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub members: Vec<MemberStatus>,
    /// Endpoints that don't answer, and why.
    pub down: Vec<(String, String)>,
    /// "NOSPACE", "CORRUPT".
    pub alarms: Vec<String>,
}

impl EtcdStore {
    /// Asks every endpoint. An error only where none answers.
    pub async fn status(&self) -> Result<Status> {
        let mut status = Status::default();
        for (index, endpoint) in self.inner.pool.endpoints().enumerate() {
            match self.member_status(index, endpoint).await {
                Ok(member) => status.members.push(member),
                Err(failure) => status.down.push((endpoint.into(), Error::from(failure).to_string())),
            }
        }
        if let (true, Some((_, why))) = (status.members.is_empty(), status.down.first()) {
            return Err(Error::Unavailable(why.clone()));
        }
        let alarms = self.alarms().await?;
        status.alarms = alarms.into_iter().map(|(_, alarm)| alarm.as_str_name().to_owned()).collect();
        Ok(status)
    }

    async fn member_status(&self, index: usize, endpoint: &str) -> Result<MemberStatus, Failure> {
        let ask = self.inner.pool.ask(index, "asking for status", STATUS_MAX, |connection| async move {
            connection.client.maintenance_client().status().await
        });
        let answer = ask.await?;
        let bytes = |n: i64| u64::try_from(n).unwrap_or_default();
        Ok(MemberStatus {
            endpoint: endpoint.into(),
            version: answer.version().into(),
            db_bytes: bytes(answer.db_size()),
            db_bytes_in_use: u64::try_from(answer.raft_used_db_size()).unwrap_or_default(),
            quota_bytes: match bytes(answer.db_size_quota()) {
                0 => self.inner.options.quota_bytes,
                quota => quota,
            },
            is_leader: answer.header().is_some_and(|h| h.member_id() == answer.leader()),
        })
    }

    /// Which member raised which.
    async fn alarms(&self) -> Result<Vec<(u64, AlarmType)>> {
        let read = self.inner.pool.read("asking for alarms", |connection| async move {
            connection.client.maintenance_client().alarm(AlarmAction::Get, AlarmType::None, None).await
        });
        Ok(read.await?.alarms().iter().map(|alarm| (alarm.member_id(), alarm.alarm())).collect())
    }

    /// Silences the alarm that space ran out. etcd raises it again if that is still so.
    pub async fn disarm_no_space(&self) -> Result<()> {
        for (member, _) in self.alarms().await?.into_iter().filter(|(_, alarm)| *alarm == AlarmType::Nospace) {
            let disarm = self.inner.pool.read("disarming an alarm", move |connection| async move {
                let mut options = AlarmOptions::new();
                options.with_member(member);
                let mut client = connection.client.maintenance_client();
                client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await
            });
            disarm.await?;
        }
        Ok(())
    }

    /// A commit of nothing, so that watches and tokens move on in a store where only sessions are written, and
    /// compaction doesn't get ahead of them.
    pub async fn mark(&self) -> Result<Revision> {
        let txn = Txn::new().and_then([commit::put_head(&self.inner.layout, 0)]);
        let answer = self.inner.transact("marking the head", txn).await?;
        Ok(commit::revision_of(&answer))
    }

    /// After a restore from a backup: makes it a store of another incarnation, in which everybody is dead. So whatever was
    /// read or promised in the lost history is refused.
    pub async fn replace_incarnation(&self) -> Result<Cluster> {
        let (layout, record) = (&self.inner.layout, self.inner.record_anew().await?);
        let cluster = Cluster { shards: record.cluster.shards, ..Cluster::random() };
        let all = |prefix: String| TxnOp::delete(prefix, Some(DeleteOptions::new().with_prefix()));
        let txn = Txn::new().when([Compare::value(layout.cluster(), CompareOp::Equal, record.value)]).and_then([
            TxnOp::put(layout.cluster(), write_cluster(&cluster), None),
            all(layout.session("")),
            all(layout.report("")),
            commit::put_head(layout, 0),
        ]);
        match self.inner.transact("replacing the incarnation", txn).await?.succeeded() {
            true => Ok(cluster),
            false => Err(Error::Unavailable("somebody else replaced the incarnation meanwhile".into())),
        }
    }

    /// Forgets what was before that revision. Watches from before it start with a snapshot.
    pub async fn compact(&self, revision: Revision) -> Result<()> {
        // Physical: it answers once the space can be given back.
        let options = CompactionOptions::new().with_physical();
        // A member that takes long over it is none that doesn't answer.
        let pool = &self.inner.pool;
        let compact = pool.ask(pool.turn(), "compacting", COMPACT_MAX, move |connection| {
            let (mut kv, options) = (connection.kv.clone(), options.clone());
            async move { kv.compact(revision.0, Some(options)).await.map(drop) }
        });
        match compact.await {
            Ok(()) | Err(Failure::Compacted) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Gives space that compaction freed back, one member after the other: each stands still meanwhile.
    pub async fn defragment(&self) -> Result<()> {
        for index in 0..self.inner.pool.endpoints().count() {
            let defragment = self.inner.pool.ask(index, "defragmenting", DEFRAGMENT_MAX, |connection| async move {
                connection.client.maintenance_client().defragment().await.map(drop)
            });
            defragment.await?;
        }
        Ok(())
    }

    /// What it shows to Prometheus.
    pub fn metrics(&self) -> Arc<dyn Source> {
        Arc::new(Metrics(self.inner.clone()))
    }

    /// What was found wrong and healed since the store was made.
    pub fn counts(&self) -> Counts {
        self.inner.counters.read(self.inner.pool.failovers())
    }
}

/// A fault of etcd that touches us: fixed from that patch on in 3.4, 3.5 and 3.6.
struct Fault {
    what: &'static str,
    fixed: [u32; 3],
}

/// From etcd's changelogs. All of them are survived, at the price that is said here.
const FAULTS: [Fault; 6] = [
    Fault { what: "a watch may repeat events (PR 15275)", fixed: [24, 8, 0] },
    Fault { what: "a watch may go back in time after a member reconnects (issue 15271)", fixed: [25, 8, 0] },
    Fault { what: "a deposed leader may end leases, so members seem to die (issue 15247)", fixed: [31, 13, 0] },
    Fault { what: "a watch may lose events after compaction (issues 17529, 19179)", fixed: [36, 18, 0] },
    Fault { what: "a lease that ended may seem to be renewed (PR 20813)", fixed: [38, 23, 0] },
    Fault { what: "a member that was paused may answer stale reads (issue 20418)", fixed: [42, 28, 9] },
];

/// What to warn of, given a version like "3.4.23"; empty for one without known faults.
pub fn warnings(version: &str) -> Vec<String> {
    let Some((major, minor, patch)) = parse(version) else {
        return vec![format!("etcd's version {version:?} can't be read; its faults aren't known")];
    };
    if (major, minor, patch) < VERSION_MIN {
        return vec![format!("etcd {version} is older than 3.4, which is the oldest that works")];
    }
    let column = match (major, minor) {
        (3, 4) => 0,
        (3, 5) => 1,
        (3, 6) => 2,
        _ => return Vec::new(),
    };
    let open = FAULTS.iter().filter(|fault| patch < fault.fixed[column]);
    open.map(|fault| format!("etcd {version}: {}; fixed in {major}.{minor}.{}", fault.what, fault.fixed[column]))
        .collect()
}

fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let plain = version.split(['-', '+']).next()?;
    let mut parts = plain.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
