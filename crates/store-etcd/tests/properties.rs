//! The store on a real etcd against the reference, by random operations; opening it anew is another server taking over.

use std::sync::Arc;

use driftless_store_etcd::{EtcdStore, Options, testing::Etcd};
use store::{
    Store,
    conformance::properties::{Sessions, Subject, check},
};

/// Of up to 40 operations each.
const RUNS: u32 = 24;

struct OnEtcd {
    options: Options,
    store: Arc<EtcdStore>,
}

impl OnEtcd {
    fn new(options: Options) -> Self {
        let store = open(&options);
        Self { options, store }
    }
}

fn open(options: &Options) -> Arc<EtcdStore> {
    Arc::new(EtcdStore::new(options.clone()).expect("the options are right"))
}

impl Subject for OnEtcd {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Another server takes its place, and knows nothing of what it remembered.
    async fn reopen(&mut self) -> Sessions {
        self.store = open(&self.options);
        Sessions::Kept
    }
}

#[test]
fn etcd_does_what_the_reference_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let etcd = runtime.block_on(Etcd::start());
    check(RUNS, async || OnEtcd::new(etcd.options()));
}
