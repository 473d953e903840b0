//! etcd keeps each lease until its time is up, so none may be left behind: least of all those of a week.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use driftless_store_etcd::testing::{
    Etcd,
    grpc_proxy::{Between, GrpcProxy},
};
use prost::bytes::Bytes;
use store::{Error, Store};
use tonic::Status;

use crate::support::{open, session};

/// Loses answers.
#[derive(Default)]
struct Loser {
    /// Of each transaction.
    of_transactions: AtomicBool,
    /// Of that many grants to come.
    of_grants: AtomicUsize,
    lost: AtomicUsize,
}

impl Between for Loser {
    fn answer(&self, path: &str, _call: usize, message: Bytes) -> Result<Bytes, Status> {
        let lost = match path.rsplit('/').next() {
            Some("Txn") => self.of_transactions.load(Ordering::Relaxed),
            Some("LeaseGrant") => {
                self.of_grants.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            }
            _ => false,
        };
        if !lost {
            return Ok(message);
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        Err(Status::unavailable("etcdserver: request timed out"))
    }
}

async fn leases(etcd: &Etcd) -> usize {
    let mut client = etcd.client(0).await.expect("it's there");
    client.leases().await.expect("it tells its leases").leases().len()
}

#[tokio::test]
async fn sessions_that_come_and_go_leave_one_lease_behind() {
    let etcd = Etcd::start().await;
    let store = open(etcd.options());
    let ids: Vec<String> = (0..10).map(|n| format!("s{n}")).collect();
    // Together, so that the shared one is granted by several.
    let opened = futures::future::join_all(ids.iter().map(|id| store.open_session(session(id)))).await;
    assert!(opened.iter().all(|attach| matches!(attach, Ok(1))), "{opened:?}");
    assert_eq!(leases(&etcd).await, 11, "each has its own, and one remembers all of them");
    for id in &ids {
        assert_eq!(store.open_session(session(id)).await, Ok(2), "an attach leaves none behind either");
        assert_eq!(store.end_session(id, None).await, Ok(true));
        assert_eq!(store.open_session(session(id)).await, Err(Error::SessionEnded(id.clone())));
    }
    assert_eq!(leases(&etcd).await, 1);
}

#[tokio::test]
async fn what_fails_after_a_grant_leaves_no_lease_of_a_week() {
    let etcd = Etcd::start().await;
    let loser = Arc::new(Loser::default());
    let proxy = GrpcProxy::start(&etcd.endpoints()[0], loser.clone()).await;
    let mut options = etcd.options();
    options.endpoints = vec![proxy.address.to_string()];
    let store = open(options);
    store.cluster().await.expect("it's made");
    loser.of_transactions.store(true, Ordering::Relaxed);
    for n in 0..5 {
        let opened = store.open_session(session(&format!("s{n}"))).await;
        assert!(matches!(opened, Err(Error::OutcomeUnknown(_))), "{opened:?}");
    }
    loser.of_transactions.store(false, Ordering::Relaxed);
    assert_eq!(store.open_session(session("s0")).await, Ok(2), "it was opened, so now it's attached");
    assert_eq!(loser.lost.load(Ordering::Relaxed), 5);
    assert_eq!(long_leases(&etcd).await, 1);
}

#[tokio::test]
async fn a_grant_whose_answer_is_lost_is_not_granted_twice() {
    let etcd = Etcd::start().await;
    let loser = Arc::new(Loser { of_grants: AtomicUsize::new(2), ..Loser::default() });
    let proxy = GrpcProxy::start(&etcd.endpoints()[0], loser.clone()).await;
    let mut options = etcd.options();
    options.endpoints = vec![proxy.address.to_string()];
    let store = open(options);
    assert_eq!(store.open_session(session("s")).await, Ok(1));
    assert_eq!(loser.lost.load(Ordering::Relaxed), 2);
    assert_eq!(leases(&etcd).await, 2, "its own, and the one that it's remembered by");
}

/// Somebody else may revoke it, or set the store back.
#[tokio::test]
async fn a_lost_shared_lease_is_replaced() {
    let etcd = Etcd::start().await;
    let store = open(etcd.options());
    assert_eq!(store.open_session(session("a")).await, Ok(1));
    assert_eq!(store.end_session("a", None).await, Ok(true));
    let mut client = etcd.client(0).await.expect("it's there");
    let left = client.leases().await.expect("it tells its leases");
    client.lease_revoke(left.leases()[0].id()).await.expect("it's revoked");
    assert_eq!(store.open_session(session("b")).await, Ok(1));
    assert_eq!(leases(&etcd).await, 2);
}

async fn long_leases(etcd: &Etcd) -> usize {
    let mut client = etcd.client(0).await.expect("it's there");
    let all = client.leases().await.expect("it tells its leases");
    let mut long = 0;
    for lease in all.leases() {
        let told = client.lease_time_to_live(lease.id(), None).await.expect("it tells of a lease");
        long += usize::from(told.granted_ttl() > 24 * 3600);
    }
    long
}
