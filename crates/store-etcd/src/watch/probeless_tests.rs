//! What follows etcd when the probe is gone, which is a defect: it goes on without asking all the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use prost::bytes::Bytes;
use store::WatchOptions;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    backend::Inner,
    probe::Seen,
    testing::{
        Etcd,
        grpc_proxy::{Between, GrpcProxy},
    },
};

/// Pauses of 50, 100, 200, 400 and 500 ms at the least, or of 100, 200, 400, 800 and 1,000 ms; each may be half as long.
const SIX_WATCHES_TAKE: Duration = Duration::from_millis(625);
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the watches that were asked for.
#[derive(Default)]
struct Counter(AtomicU32);

impl Between for Counter {
    fn request(&self, path: &str, _call: usize, message: Bytes) -> Bytes {
        self.0.fetch_add(u32::from(path.ends_with("/Watch")), Ordering::Relaxed);
        message
    }
}

/// A store of which the probe ended, on an etcd of its own.
struct Probeless {
    inner: Arc<Inner>,
    counter: Arc<Counter>,
    _proxy: GrpcProxy,
    _etcd: Etcd,
}

impl Probeless {
    async fn start() -> Self {
        let (etcd, counter) = (Etcd::start().await, Arc::new(Counter::default()));
        let proxy = GrpcProxy::start(&etcd.endpoints()[0], counter.clone()).await;
        let mut options = etcd.options();
        options.endpoints = vec![proxy.address.to_string()];
        let (_, seen) = watch::channel(Seen::default());
        let inner = Arc::new(Inner::new(options, seen).expect("the options are right"));
        Self { inner, counter, _proxy: proxy, _etcd: etcd }
    }

    async fn six_watches(&self) -> Duration {
        let start = Instant::now();
        let counted = async {
            while self.counter.0.load(Ordering::Relaxed) < 6 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, counted).await.expect("it's tried again");
        start.elapsed()
    }
}

#[tokio::test]
async fn objects_are_followed_with_pauses() {
    let store = Probeless::start().await;
    let _items = crate::watch::open(store.inner.clone(), WatchOptions::default()).await.expect("etcd is there");
    let took = store.six_watches().await;
    assert!(took >= SIX_WATCHES_TAKE, "six watches within {took:?}");
}

#[tokio::test]
async fn members_are_followed_with_pauses() {
    let store = Probeless::start().await;
    let _states = crate::coordination::open(store.inner.clone()).await.expect("etcd is there");
    let took = store.six_watches().await;
    assert!(took >= SIX_WATCHES_TAKE, "six watches within {took:?}");
}
