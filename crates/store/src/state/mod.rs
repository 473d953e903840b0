//! The state machine of the stores that live in this process: a pure, synchronous value.
//!
//! A `Draft` applies operations on top of a `State` and collects what they would change in a `Staged`; `publish` makes
//! that visible, all at once. Between the two the embedded store makes it durable; dropping a `Staged` undoes it.
//! Nothing here awaits, reads a clock, or touches a disk.

mod draft;
mod ring;
mod sessions;

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use api::v1;
use bytes::Bytes;
use model::{Filter, Key, Object, Revision};

pub use draft::{Draft, Staged};
pub use ring::{Kept, KeptChange};
pub use sessions::Session;

use crate::{Cluster, Error, Head, Known, List, PAGE_MAX, Page, Result};
use ring::Ring;
use sessions::Sessions;

/// What is stored under a key. The bytes and facts are shared with whoever reads them.
#[derive(Clone, Debug)]
pub struct Record {
    pub revision: Revision,
    pub bytes: Bytes,
    pub known: Arc<Known>,
}

impl Record {
    fn object(&self, key: &Key) -> Object {
        Object { key: key.clone(), revision: self.revision, bytes: self.bytes.clone() }
    }
}

/// Everything that readers and watchers may see.
#[derive(Debug)]
pub struct State {
    cluster: Cluster,
    head: Head,
    objects: BTreeMap<Key, Record>,
    claims: BTreeMap<String, v1::Claim>,
    sessions: Sessions,
    ring: Ring,
    /// Grows whenever members or claims change.
    coordination: u64,
}

impl State {
    pub fn new(cluster: Cluster) -> Self {
        Self::restored(cluster, Head::default(), BTreeMap::new(), BTreeMap::new())
    }

    /// As read from a disk: no sessions, and nothing to resume from before `head`.
    pub fn restored(
        cluster: Cluster,
        head: Head,
        objects: BTreeMap<Key, Record>,
        claims: BTreeMap<String, v1::Claim>,
    ) -> Self {
        let ring = Ring::after(head.revision);
        Self { cluster, head, objects, claims, sessions: Sessions::default(), ring, coordination: 0 }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn head(&self) -> Head {
        self.head
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub fn coordination_version(&self) -> u64 {
        self.coordination
    }

    pub fn get(&self, key: &Key) -> Option<Object> {
        self.objects.get(key).map(|record| record.object(key))
    }

    pub fn list(&self, list: &List) -> Result<Page> {
        let now = self.head.revision;
        let asked = list.min_revision.max(list.at.unwrap_or_default());
        if asked > now {
            return Err(Error::Unavailable(format!("revision {asked} isn't reached, the store is at {now}")));
        }
        match list.at {
            Some(at) if at < now => return Err(Error::Compacted(at.0)),
            _ => {}
        }
        let limit = match list.limit {
            0 => PAGE_MAX,
            limit => limit.min(PAGE_MAX),
        };
        let mut objects: Vec<Object> = self.matching(&list.filter, list.after.as_ref()).take(limit + 1).collect();
        let more = objects.len() > limit;
        objects.truncate(limit);
        Ok(Page { objects, more, revision: now })
    }

    /// In key order, only what comes after that key.
    pub fn matching<'a>(&'a self, filter: &'a Filter, after: Option<&Key>) -> impl Iterator<Item = Object> + 'a {
        // Where one kind is asked for, the others' records aren't looked at.
        let prefix = match filter.kinds.as_slice() {
            [kind] => format!("{kind}/"),
            _ => String::new(),
        };
        let start = match after {
            Some(key) if key.text() >= prefix.as_str() => Bound::Excluded(key.text()),
            _ => Bound::Included(prefix.as_str()),
        };
        let range = self.objects.range::<str, _>((start, Bound::Unbounded));
        range
            .take_while(move |(key, _)| key.text().starts_with(&prefix))
            .filter(|(key, record)| filter.matches(&record.known.facts(key)))
            .map(|(key, record)| record.object(key))
    }

    /// Members and claims, whole.
    pub fn coordination(&self) -> v1::Coordination {
        v1::Coordination {
            revision: self.head.revision.0,
            members: self.sessions.members(),
            claims: self.claims.values().cloned().collect(),
            shards: self.cluster.shards,
            time: None,
        }
    }

    /// Renews. Not staged: a beat takes effect at once, or the session is dead.
    pub fn beat(&mut self, session: &str, now: Instant, report: Option<v1::MemberReport>) -> Result<()> {
        let changed = self.sessions.beat(session, now, report)?;
        self.coordination += u64::from(changed);
        Ok(())
    }

    /// Forgets the kept groups: tokens from before now are answered by a snapshot.
    pub fn compact(&mut self) {
        self.ring = Ring::after(self.head.revision);
    }

    /// Makes a staged group of operations visible.
    pub fn publish(&mut self, staged: Staged) {
        let Staged { head, objects, claims, sessions, groups, .. } = staged;
        self.coordination += u64::from(!claims.is_empty() || !sessions.is_empty());
        self.head = head;
        for (key, record) in objects {
            match record {
                Some(record) => self.objects.insert(key, record),
                None => self.objects.remove(&key),
            };
        }
        self.claims.extend(claims);
        self.sessions.publish(sessions);
        groups.into_iter().for_each(|group| self.ring.push(group));
    }
}

/// The clock that sessions live by; paused in tests that say so.
pub type Instant = tokio::time::Instant;

#[cfg(test)]
mod tests;
