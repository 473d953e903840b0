mod disk;
mod kill;
mod medium;
mod properties;
mod reopen;
mod steps;

use std::{path::Path, sync::Arc, time::Duration};

use crate::{Cluster, Embedded, conformance::Setup};

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, Cluster::random()).expect("the directory opens")
}

fn conformance_setup() -> Setup {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Arc::new(open(dir.path()));
    let compacted = store.clone();
    let compact = move || {
        compacted.compact();
        std::future::ready(())
    };
    Setup::new(store, Duration::from_secs(1), compact).keeping(dir)
}

mod conforms {
    use super::conformance_setup;

    crate::conformance!(async { conformance_setup() });
}
