//! The embedded store against the reference, opened anew in the middle of it.

use std::sync::Arc;

use tempfile::TempDir;

use super::open;
use crate::{
    Embedded, Store,
    conformance::properties::{Sessions, Subject, check},
};

struct Reopened {
    dir: TempDir,
    store: Arc<Embedded>,
}

impl Subject for Reopened {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn reopen(&mut self) -> Sessions {
        self.store.close().await;
        self.store = Arc::new(open(self.dir.path()));
        Sessions::Ended
    }
}

#[test]
fn it_does_what_the_reference_does() {
    check(64, async || {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(open(dir.path()));
        Reopened { dir, store }
    });
}
