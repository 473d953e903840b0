//! What the tests share.

use std::{future::Future, sync::Arc, time::Duration};

use driftless_store_etcd::{EtcdStore, Options, Status};
use model::{Key, Revision};
use store::{
    Error, Result, SessionOpen, Store, Transaction, Write,
    conformance::{put, resource},
};
use tokio::time::{Instant, sleep};

/// Far more than anything here needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn open(options: Options) -> Arc<EtcdStore> {
    Arc::new(EtcdStore::new(options).expect("the options are right"))
}

pub fn key(name: &str) -> Key {
    Key::new("Service", "default", name)
}

/// One try to write that service over that revision.
pub async fn write(store: &EtcdStore, name: &str, over: Revision) -> Result<Revision> {
    let writes = vec![put(resource(name), over)];
    store.commit(Transaction { writes, ..Transaction::default() }).await
}

pub async fn remove(store: &EtcdStore, name: &str, revision: Revision) -> Result<Revision> {
    let writes = vec![Write::Remove { key: key(name), uid: format!("uid-{name}"), revision }];
    store.commit(Transaction { writes, ..Transaction::default() }).await
}

/// Writes it as a client does that wants it written: after an unknown outcome it looks before it tries again.
pub async fn write_until_done(store: &EtcdStore, name: &str) -> Revision {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let error = match write(store, name, Revision::ZERO).await {
            Ok(revision) => return revision,
            Err(error) => error,
        };
        assert!(Instant::now() < deadline, "{name} can't be written: {error}");
        match error {
            Error::Unavailable(_) | Error::OutcomeUnknown(_) | Error::Conflict { .. } => {
                if let Ok(Some(object)) = store.get(&key(name)).await {
                    return object.revision;
                }
            }
            error => panic!("{name}: {error}"),
        }
    }
}

/// A controller's session that no test outlasts.
pub fn session(id: &str) -> SessionOpen {
    let (session, role, name, server) = (id.into(), "controller".into(), id.into(), "s".into());
    SessionOpen {
        session,
        role,
        name,
        server,
        server_address: String::new(),
        ttl: 2 * PATIENCE,
        machine_id: String::new(),
    }
}

/// What is said of etcd, as soon as so many members answer: one that is short of CPU may take longer than it's waited for.
pub async fn status(store: &EtcdStore, answering: usize) -> Status {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = store.status().await;
        match said {
            Ok(status) if status.members.len() == answering => return status,
            said => assert!(Instant::now() < deadline, "{answering} should answer, not {said:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Asks until that holds.
pub async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}
