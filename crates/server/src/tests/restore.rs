//! A store that becomes another one below a running server, as a restored backup does.

use std::{
    sync::{Arc, RwLock},
    time::Duration,
};

use api::v1;
use async_trait::async_trait;
use model::{Key, Object, Revision};
use store::{
    ClaimChange, Cluster, CoordinationStream, Faults, Faulty, Head, HistoryQuery, List, LogRecord, Memory, Page,
    Result, ResumeToken, SessionOpen, Store, Transaction, WatchItem, WatchOptions, WatchStream,
};

use super::fixtures::*;
use crate::Readiness;

/// Whichever store it is now.
struct Current(RwLock<Arc<Memory>>);

impl Current {
    fn now(&self) -> Arc<Memory> {
        self.0.read().unwrap().clone()
    }
}

#[async_trait]
impl Store for Current {
    async fn cluster(&self) -> Result<Cluster> {
        self.now().cluster().await
    }
    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.now().get(key).await
    }
    async fn list(&self, list: List) -> Result<Page> {
        self.now().list(list).await
    }
    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        self.now().watch(options).await
    }
    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        self.now().commit(transaction).await
    }
    async fn head(&self) -> Result<Head> {
        self.now().head().await
    }
    async fn coordination(&self) -> Result<CoordinationStream> {
        self.now().coordination().await
    }
    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.now().open_session(open).await
    }
    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.now().beat(session, report).await
    }
    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.now().end_session(session, attach).await
    }
    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        self.now().change_claim(change).await
    }
    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.now().history(query).await
    }
    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.now().trim_history(up_to).await
    }
}

#[tokio::test(start_paused = true)]
async fn another_incarnation_ends_every_watch_and_is_served_from_then_on() {
    let current = Arc::new(Current(RwLock::new(Arc::default())));
    let faults = Faults::new();
    let server = over(Arc::new(Faulty::new(current.clone(), faults.clone()))).await;
    let old = server.cluster().await.unwrap().incarnation;
    for name in ["one", "two", "three"] {
        declare(&server, name).await;
    }
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    let (_, revision) = watch.snapshot().await;
    // The store goes away, and comes back from a backup that has one of them.
    let backup = Arc::new(Memory::default());
    let other = over(backup.clone()).await;
    let kept = declare(&other, "one").await;
    faults.cut(true);
    *current.0.write().unwrap() = backup;
    faults.cut(false);
    let mut readiness = server.readiness();
    let WatchItem::End { reason, .. } = watch.next().await else { panic!("what it knows is no more") };
    assert_eq!(reason, "STORE_ROLLED_BACK");
    readiness.wait_for(|readiness| *readiness == Readiness::Ready).await.unwrap();
    assert_eq!(get(&server, &Key::of(&metadata(&kept))).await, kept);
    assert_ne!(server.cluster().await.unwrap().incarnation, old);
    let resume = Some(ResumeToken { incarnation: old, revision });
    let mut watch = Watch::open(server.as_ref(), WatchOptions { resume, ..Default::default() }).await;
    assert_eq!(watch.snapshot().await.0.len(), 2, "the placement and the service");
    declare(&server, "four").await;
}

/// Set back just after a write that only the watch told of, while nothing else breaks.
#[tokio::test(start_paused = true)]
async fn what_a_store_has_lost_is_not_answered_from_the_cache() {
    let cluster = Cluster { incarnation: "i".into(), shards: 4 };
    let current = Arc::new(Current(RwLock::new(Arc::new(Memory::new(cluster.clone())))));
    let server = over(current.clone()).await;
    declare(&server, "kept").await;
    let lost = Key::of(&metadata(&declare(&server, "lost").await));
    let older = Arc::new(Memory::new(cluster));
    let other = over(older.clone()).await;
    declare(&other, "kept").await;
    let _standing = current.now();
    *current.0.write().unwrap() = older;
    let answer = server.get(&lost).await;
    assert!(matches!(&answer, Err(store::Error::Unavailable(why)) if why.contains("STORE_ROLLED_BACK")), "{answer:?}");
}

/// It would put resources into shards that nobody owns.
#[tokio::test(start_paused = true)]
async fn a_store_of_another_number_of_shards_is_not_served_by_a_server_of_before() {
    let of = |shards| Arc::new(Memory::new(Cluster { shards, ..Cluster::random() }));
    let current = Arc::new(Current(RwLock::new(of(4))));
    let faults = Faults::new();
    let server = over(Arc::new(Faulty::new(current.clone(), faults.clone()))).await;
    let become_one_of = |shards| {
        faults.cut(true);
        *current.0.write().unwrap() = of(shards);
        faults.cut(false);
    };
    let old = server.cluster().await.unwrap().incarnation;
    become_one_of(4);
    let followed = async {
        while !server.cluster().await.is_ok_and(|cluster| cluster.incarnation != old) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), followed).await.expect("one of as many is followed");
    become_one_of(5);
    tokio::time::timeout(Duration::from_secs(60), server.broken()).await.expect("whoever runs it is told");
    let why = server.check()().expect_err("it isn't ready");
    assert!(why.contains("another number of shards"), "{why}");
    let another = over(current.now()).await;
    assert_eq!(another.cluster().await.unwrap().shards, 5, "a new one serves it");
}

/// Nobody else made there what placement needs.
#[tokio::test(start_paused = true)]
async fn an_empty_store_is_founded_by_a_server_that_runs() {
    let current = Arc::new(Current(RwLock::new(Arc::default())));
    let faults = Faults::new();
    let server = over(Arc::new(Faulty::new(current.clone(), faults.clone()))).await;
    let old = server.cluster().await.unwrap().incarnation;
    declare(&server, "one").await;
    faults.cut(true);
    *current.0.write().unwrap() = Arc::default();
    faults.cut(false);
    let placement = Key::new(kinds::placement::KIND, "", kinds::placement::NAME);
    let found = async {
        let another = async || server.cluster().await.is_ok_and(|cluster| cluster.incarnation != old);
        while !(another().await && matches!(server.get(&placement).await, Ok(Some(_)))) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.expect("it's made");
    declare(&server, "two").await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_into_another_incarnation_is_refused_and_makes_the_server_look() {
    let current = Arc::new(Current(RwLock::new(Arc::default())));
    let server = over(current.clone()).await;
    let old = server.cluster().await.unwrap().incarnation;
    declare(&server, "one").await;
    let mut watch = Watch::open(server.as_ref(), WatchOptions::default()).await;
    watch.snapshot().await;
    let backup = Arc::new(Memory::default());
    over(backup.clone()).await;
    // The old one's watch still stands, so that only a commit can tell.
    let _standing = current.now();
    *current.0.write().unwrap() = backup;
    let write = Transaction {
        actor: Some(model::Actor::new("server", "s1")),
        fence: None,
        ..step(model::Fence::Session { session: String::new(), attach: 0 }, vec![])
    };
    let refused = server.commit(write).await;
    assert!(matches!(refused, Err(store::Error::WrongIncarnation(_))), "{refused:?}");
    let WatchItem::End { reason, .. } = watch.next().await else { panic!("what it knows is no more") };
    assert_eq!(reason, "STORE_ROLLED_BACK");
    server.ready().await;
    assert_ne!(server.cluster().await.unwrap().incarnation, old);
    declare(&server, "two").await;
}
