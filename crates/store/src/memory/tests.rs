use std::{sync::Arc, time::Duration};

use crate::{Memory, conformance::Setup};

pub(crate) fn conformance_setup() -> Setup {
    let store = Arc::new(Memory::default());
    let compacted = store.clone();
    let compact = move || {
        compacted.compact();
        std::future::ready(())
    };
    Setup::new(store, Duration::from_millis(500), compact)
}
