//! Leases: what rides on one, etcd forgets by itself once nobody renews it.
//!
//! Their ids are made here. So a grant whose answer was lost is asked for once more and leaves no second lease behind.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use etcd_client::LeaseGrantOptions;
use tracing::debug;

use crate::{Failure, backend::Inner};

/// etcd grants no shorter lease: one and a half of its election timeout, rounded up.
const TTL_MIN: Duration = Duration::from_secs(2);
/// How long an ended session's id is remembered at least: longer than any process is paused and then goes on.
const EVER_MIN: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long the sessions that begin here share one lease to be remembered by. With one for each, whatever fails after the
/// grant would leave a lease for a week.
const EVER_SHARED: Duration = Duration::from_secs(24 * 3600);

/// The lease that sessions which begin now are remembered by.
#[derive(Debug, Default)]
pub struct Ever(Option<Shared>);

#[derive(Clone, Copy, Debug)]
struct Shared {
    id: i64,
    begun: Instant,
    granted: bool,
}

impl Ever {
    /// Its id, and whether it was granted.
    fn at(&mut self, now: Instant) -> (i64, bool) {
        let shared = match self.0 {
            Some(shared) if now.duration_since(shared.begun) < EVER_SHARED => shared,
            _ => *self.0.insert(Shared { id: new_id(), begun: now, granted: false }),
        };
        (shared.id, shared.granted)
    }

    fn granted(&mut self, id: i64) {
        if let Some(shared) = self.0.as_mut().filter(|shared| shared.id == id) {
            shared.granted = true;
        }
    }

    fn forget(&mut self, id: i64) {
        self.0 = self.0.filter(|shared| shared.id != id);
    }
}

impl Inner {
    /// Several who ask at once grant the same one.
    pub async fn ever_lease(&self) -> Result<i64, Failure> {
        let (id, granted) = self.ever().at(Instant::now());
        if !granted {
            self.grant_as(id, EVER_MIN + EVER_SHARED).await?;
            self.ever().granted(id);
        }
        Ok(id)
    }

    /// It was found to have ended: somebody revoked it, or the store is another one.
    pub fn forget_ever_lease(&self, id: i64) {
        self.ever().forget(id);
    }

    fn ever(&self) -> std::sync::MutexGuard<'_, Ever> {
        self.ever.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one, of at least `TTL_MIN`.
    pub async fn grant(&self, ttl: Duration) -> Result<i64, Failure> {
        let id = new_id();
        self.grant_as(id, ttl.max(TTL_MIN)).await?;
        Ok(id)
    }

    async fn grant_as(&self, id: i64, ttl: Duration) -> Result<(), Failure> {
        let seconds = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX);
        let answer = self.pool.read("granting a lease", move |connection| {
            let mut lease = connection.lease.clone();
            async move {
                match lease.grant(seconds, Some(LeaseGrantOptions::new().with_id(id))).await {
                    Err(error) if exists_already(&error) => Ok(()),
                    answer => answer.map(drop),
                }
            }
        });
        answer.await
    }

    /// Whether the lease really lives on, only the session's key tells.
    pub async fn renew(&self, lease: i64) -> Result<(), Failure> {
        let answer = self.pool.read("renewing a lease", move |connection| {
            let mut client = connection.lease.clone();
            async move { client.keep_alive(lease).await.map(drop) }
        });
        answer.await
    }

    /// Only tidies up: what matters was deleted, and the lease ends by itself.
    pub async fn revoke(&self, lease: i64) {
        let answer = self.pool.read("revoking a lease", move |connection| {
            let mut client = connection.lease.clone();
            async move { client.revoke(lease).await.map(drop) }
        });
        if let Err(failure) = answer.await {
            debug!(?failure, lease, "lease left to expire");
        }
    }
}

/// Nobody else makes the same one of 2^63; to etcd, 0 is none.
fn new_id() -> i64 {
    rand::random_range(1..=i64::MAX)
}

fn exists_already(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status) if status.message().contains("lease already exists"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lease_is_shared_for_a_day_and_granted_once() {
        let (mut ever, start) = (Ever::default(), Instant::now());
        let (first, granted) = ever.at(start);
        assert!(!granted);
        ever.granted(first);
        assert_eq!(ever.at(start + EVER_SHARED - Duration::from_secs(1)), (first, true));
        let (second, granted) = ever.at(start + EVER_SHARED);
        assert!(second != first && !granted, "what begins later is remembered as long");
        ever.granted(first);
        assert_eq!(ever.at(start + EVER_SHARED), (second, false), "that one's grant came late");
        ever.forget(first);
        assert_eq!(ever.at(start + EVER_SHARED), (second, false));
        ever.forget(second);
        assert_ne!(ever.at(start + EVER_SHARED).0, second);
    }
}
