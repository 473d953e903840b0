//! A server over a memory store, a clock that stands, and short ways to say things.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use api::v1;
use futures::StreamExt;
use kinds::{any, service};
use model::{Actor, Epoch, Fence, Key, Object, Revision, Time, shard_claim};
use store::{
    Api, Caller, ClaimChange, Memory, Note, Result, SessionOpen, Store, Transaction, WatchItem, WatchOptions,
    WatchStream, Write,
};

use crate::{Config, Server, Stamps};

/// The clock stands at this second unless it's moved.
pub const NOW: i64 = 1_700_000_000;

/// Uids that count up, so that what a test sees is the same each time.
#[derive(Default)]
pub struct Counting {
    uids: AtomicU64,
}

impl Stamps for Counting {
    fn now(&self) -> Time {
        Time::from_millis(NOW * 1_000)
    }

    fn uid(&self) -> String {
        format!("00000000-0000-7000-8000-{:012}", self.uids.fetch_add(1, Relaxed))
    }
}

pub fn config(name: &str) -> Config {
    Config { stamps: Arc::new(Counting::default()), ..Config::new(name) }
}

pub async fn start() -> Arc<Server> {
    over(Arc::new(Memory::default())).await
}

pub async fn over(backend: Arc<dyn Store>) -> Arc<Server> {
    let server = Server::start(config("s1"), backend).await.expect("the store is there");
    server.ready().await;
    Arc::new(server)
}

pub fn caller() -> Caller {
    Caller::new(Actor::new("user", "root@host"))
}

pub fn web() -> Key {
    Key::new("Service", "default", "web")
}

pub fn spec(replicas: i32) -> v1::ServiceSpec {
    v1::ServiceSpec {
        replicas: Some(replicas),
        template: Some(v1::InstanceTemplate { command: vec!["sleep".into(), "60".into()], ..Default::default() }),
        ..Default::default()
    }
}

pub fn declared(name: &str, spec: &v1::ServiceSpec) -> v1::Resource {
    let metadata = v1::Metadata { kind: "Service".into(), name: name.into(), ..Default::default() };
    v1::Resource { metadata: Some(metadata), spec: Some(any(service::SPEC, spec)), status: None }
}

pub fn request(resources: impl IntoIterator<Item = v1::Resource>) -> v1::ApplyRequest {
    let declarations =
        resources.into_iter().map(|resource| v1::Declaration { resource: Some(resource), expected_revision: None });
    v1::ApplyRequest { declarations: declarations.collect(), ..Default::default() }
}

/// Declares a service of one replica.
pub async fn declare(server: &Server, name: &str) -> v1::Resource {
    let response = server.apply(&caller(), request([declared(name, &spec(1))])).await.expect("it's right");
    response.results.into_iter().next().expect("one was declared").resource.expect("it's there")
}

pub fn metadata(resource: &v1::Resource) -> v1::Metadata {
    resource.metadata.clone().expect("a resource has metadata")
}

pub async fn get(server: &Server, key: &Key) -> v1::Resource {
    server.get(key).await.expect("the store is there").expect("it exists").resource().expect("it can be read")
}

pub async fn open_session(server: &Server, id: &str, role: &str, name: &str) -> u64 {
    let open = SessionOpen {
        session: id.into(),
        role: role.into(),
        name: name.into(),
        server: String::new(),
        server_address: String::new(),
        ttl: Duration::from_secs(3600),
        machine_id: String::new(),
    };
    server.open_session(open).await.expect("it's new")
}

/// Makes a new controller's session the first owner of a claim.
pub async fn claim_as(server: &Server, name: &str, session: &str) -> Fence {
    open_session(server, session, "controller", "a").await;
    let change = ClaimChange {
        name: name.into(),
        expected_owner: String::new(),
        expected_epoch: Epoch(0),
        owner: session.into(),
        owner_must_be_dead: false,
    };
    let claim = server.change_claim(change).await.expect("nobody owns it");
    Fence::Claim { claim: name.into(), epoch: Epoch(claim.epoch), session: session.into() }
}

pub async fn shard_fence(server: &Server, shard: u32) -> Fence {
    claim_as(server, &shard_claim(shard), "c1").await
}

pub fn step(fence: Fence, writes: Vec<Write>) -> Transaction {
    Transaction {
        fence: Some(fence),
        actor: Some(Actor::new("controller", "a")),
        step_id: "step".into(),
        writes,
        note: Some(Note { verb: "test".into(), ..Note::default() }),
        ..Transaction::default()
    }
}

pub fn put(resource: v1::Resource) -> Write {
    Write::Put(Box::new(resource))
}

/// An instance of that service, as its controller drafts it.
pub fn instance_of(service: &v1::Resource, name: &str) -> v1::Resource {
    let owner = metadata(service);
    let metadata = v1::Metadata {
        kind: "Instance".into(),
        namespace: owner.namespace.clone(),
        name: name.into(),
        owner: Some(v1::OwnerReference {
            kind: owner.kind,
            namespace: owner.namespace,
            name: owner.name,
            uid: owner.uid,
        }),
        ..Default::default()
    };
    let spec = v1::InstanceSpec { slot: 0, template_hash: "abc".into(), ..Default::default() };
    v1::Resource { metadata: Some(metadata), spec: Some(any(kinds::instance::SPEC, &spec)), status: None }
}

/// Reads a watch item by item.
pub struct Watch(WatchStream);

impl Watch {
    pub async fn open(store: &dyn Store, options: WatchOptions) -> Self {
        Self(store.watch(options).await.expect("the store is there"))
    }

    pub async fn next(&mut self) -> WatchItem {
        self.0.next().await.expect("the watch goes on").expect("the watch works")
    }

    pub async fn ended(&mut self) -> bool {
        self.0.next().await.is_none()
    }

    /// The objects of the snapshot that comes next, and its revision.
    pub async fn snapshot(&mut self) -> (Vec<Object>, Revision) {
        let WatchItem::SnapshotStart { .. } = self.next().await else { panic!("a snapshot should start") };
        let mut objects = Vec::new();
        loop {
            match self.next().await {
                WatchItem::Snapshot(part) => objects.extend(part),
                WatchItem::SnapshotEnd { revision } => return (objects, revision),
                other => panic!("{other:?} in a snapshot"),
            }
        }
    }

    /// The next group; bookmarks before it are passed over.
    pub async fn group(&mut self) -> store::Group {
        loop {
            match self.next().await {
                WatchItem::Changes(group) => return group,
                WatchItem::Bookmark(_) => {}
                other => panic!("{other:?} instead of a group"),
            }
        }
    }
}

/// The whole message of an error.
pub fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("it should be refused").to_string()
}
