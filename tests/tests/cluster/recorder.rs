//! Clients whose every question and answer is recorded, with times.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use api::v1;
use driftless_tests::history::{Operation, Outcome, What};
use kinds::service;
use model::{Actor, Filter, Key};
use store::{Api, Caller, Class, Error, List, Result, Store};
use tokio::sync::watch;
use wire::Remote;

use crate::etcd_log::content;

/// The label that names a write.
pub const MARKER: &str = "write";

pub struct Recorder {
    began: Instant,
    operations: Mutex<Vec<Operation>>,
    next: AtomicU64,
    acknowledged: AtomicI64,
    news: watch::Sender<()>,
}

/// What a service is to be like.
#[derive(Clone, Debug)]
pub struct Wish {
    pub name: String,
    pub replicas: i32,
    pub version: String,
}

pub fn wish(name: impl Into<String>, replicas: i32, version: impl Into<String>) -> Wish {
    Wish { name: name.into(), replicas, version: version.into() }
}

impl Wish {
    pub fn key(&self) -> Key {
        Key::new(service::KIND, "default", &self.name)
    }

    pub fn resource(&self, labels: BTreeMap<String, String>) -> v1::Resource {
        let template = v1::InstanceTemplate { command: vec!["sleep".into(), "1000".into()], ..Default::default() };
        let spec = v1::ServiceSpec {
            replicas: Some(self.replicas),
            version: self.version.clone(),
            template: Some(template),
            ..Default::default()
        };
        let metadata =
            v1::Metadata { kind: service::KIND.into(), name: self.name.clone(), labels, ..Default::default() };
        v1::Resource { metadata: Some(metadata), spec: Some(kinds::any(service::SPEC, &spec)), status: None }
    }
}

pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

pub fn caller() -> Caller {
    Caller::new(Actor::parse("user/test").expect("an actor"))
}

impl Recorder {
    pub fn new() -> Self {
        let (operations, acknowledged, news) = Default::default();
        Self { began: Instant::now(), operations, next: AtomicU64::new(1), acknowledged, news }
    }

    /// The clock of all that is recorded.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.began)
    }

    /// The revision of the newest write that was acknowledged.
    pub fn acknowledged(&self) -> i64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut self.lock())
    }

    /// What was recorded so far.
    pub fn look<T>(&self, look: impl FnOnce(&[Operation]) -> T) -> T {
        look(&self.lock())
    }

    /// The first of what is found in what was recorded, and in what is from then on.
    pub async fn until<T>(&self, what: &str, within: Duration, mut wanted: impl FnMut(&Operation) -> Option<T>) -> T {
        let deadline = Instant::now() + within;
        let (mut news, mut seen) = (self.news.subscribe(), 0);
        loop {
            news.mark_unchanged();
            let found = self.look(|operations| {
                let new = &operations[seen..];
                seen = operations.len();
                new.iter().find_map(&mut wanted)
            });
            if let Some(found) = found {
                return found;
            }
            let changed = tokio::time::timeout_at(deadline.into(), news.changed()).await;
            assert!(changed.is_ok(), "{what}: not within {within:?}");
        }
    }

    fn record(&self, client: &str, asked: Duration, what: What) {
        self.lock().push(Operation { client: client.into(), asked, answered: self.now(), what });
        self.news.send_replace(());
    }

    /// Declares them in one transaction, under a marker of its own. Returns the revision.
    pub async fn apply(&self, client: &str, remote: &Remote, wishes: &[Wish]) -> Result<i64> {
        let marker = format!("w{}", self.next.fetch_add(1, Ordering::Relaxed));
        let labels = BTreeMap::from([(MARKER.to_owned(), marker.clone())]);
        let declarations = wishes
            .iter()
            .map(|wish| v1::Declaration { resource: Some(wish.resource(labels.clone())), expected_revision: None });
        let request = v1::ApplyRequest { declarations: declarations.collect(), ..Default::default() };
        let asked = self.now();
        let answer = remote.apply(&caller(), request).await;
        let outcome = match &answer {
            Ok(answer) => Outcome::Acknowledged(answer.revision),
            Err(error) if error.class() == Class::Unknown => Outcome::Unknown,
            Err(_) => Outcome::Refused,
        };
        self.record(client, asked, What::Wrote { marker, outcome });
        if let Ok(answer) = &answer {
            self.acknowledged.fetch_max(answer.revision, Ordering::AcqRel);
        }
        answer.map(|answer| answer.revision)
    }

    /// The same until it's done; for what must be declared, whatever fails meanwhile.
    pub async fn apply_at_last(&self, client: &str, remote: &Remote, wishes: &[Wish]) -> i64 {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match self.apply(client, remote, wishes).await {
                Ok(revision) => return revision,
                Err(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_) | Error::Conflict { .. })) => {
                    assert!(Instant::now() < deadline, "still not declared: {error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("refused: {error}"),
            }
        }
    }

    /// One page of all services: the tests have fewer than fit into one.
    pub async fn list(&self, client: &str, remote: &Remote) -> Result<()> {
        let asked = self.now();
        let page = remote.list(List { filter: Filter::kind(service::KIND), ..List::default() }).await?;
        assert!(!page.more, "the tests keep fewer services than fit into a page");
        let found = page.objects.iter().map(|o| (o.key.text().to_owned(), (o.revision.0, content(&o.bytes))));
        let (found, revision) = (found.collect(), page.revision.0);
        self.record(client, asked, What::Listed { prefix: format!("{}/", service::KIND), revision, found });
        Ok(())
    }
}
