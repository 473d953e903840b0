//! The suite that every backend passes, each promise on a real etcd of its own.

use std::{sync::Arc, time::Duration};

use driftless_store_etcd::{EtcdStore, testing::Etcd};
use store::{Store, conformance::Setup};

async fn setup() -> Setup {
    let etcd = Etcd::start().await;
    let store = EtcdStore::new(etcd.options()).expect("the options are right");
    let compacted = store.clone();
    let compact = move || {
        let store = compacted.clone();
        async move {
            let head = store.head().await.expect("head is read");
            store.compact(head.revision).await.expect("etcd compacts");
        }
    };
    // etcd grants no shorter lease.
    Setup::new(Arc::new(store), Duration::from_secs(2), compact).keeping(etcd)
}

store::conformance!(setup());
