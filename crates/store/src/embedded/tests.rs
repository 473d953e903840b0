use std::{sync::Arc, time::Duration};

use crate::{Cluster, Embedded, conformance::Setup};

pub(crate) fn conformance_setup() -> Setup {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Arc::new(Embedded::open(dir.path(), Cluster::random()).expect("an empty directory opens"));
    let compacted = store.clone();
    let compact = move || {
        compacted.compact();
        std::future::ready(())
    };
    Setup::new(store, Duration::from_millis(500), compact).keeping(dir)
}

mod conforms {
    use super::conformance_setup;

    crate::conformance!(async { conformance_setup() });
}
