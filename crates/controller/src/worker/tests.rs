//! One look at one key.

use api::v1;
use kinds::{Item, View, World, service};
use model::{Decision, Epoch, Key, Object, Revision};
use store::{Change, ClaimChange, List, Memory, SessionOpen, Store, Write};

use super::*;
use crate::{
    Config, Controller,
    cache::Listed,
    claims::{Hold, Phase},
    testing::{Restarting, memory_of},
};

const SERVICE: &str = "Service";

/// One whose decision is defective.
struct Defective;

impl Reconciler for Defective {
    fn name(&self) -> &'static str {
        "defective"
    }

    fn kind(&self) -> &'static str {
        SERVICE
    }

    fn scope(&self) -> Scope {
        Scope::Leader
    }

    fn wakes(&self, _world: &World, _item: &Item) -> Vec<Key> {
        Vec::new()
    }

    fn plan(&self, _view: &View<'_>, _item: &Item) -> Decision {
        panic!("defective")
    }
}

/// A replica that leads, and knows of one service.
fn leader() -> (Arc<Shared>, Work) {
    let shared = Controller::new(Config::default(), Restarting::new()).shared;
    let hold = Hold { epoch: Epoch(1), revision: Revision(1), phase: Phase::Active };
    shared.holdings.begin("me");
    shared.holdings.set(LEADER, hold);
    shared.cache.set_clock(Time::from_millis(1));
    let metadata = v1::Metadata {
        kind: SERVICE.into(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "u".into(),
        revision: 1,
        ..Default::default()
    };
    let key = Key::of(&metadata);
    let bytes = Object::encode(v1::Resource { metadata: Some(metadata), ..Default::default() });
    shared.cache.apply(&[Change::Put(Object { key: key.clone(), revision: Revision(1), bytes })]);
    (shared, Work { reconciler: 0, key })
}

#[tokio::test]
async fn a_decision_that_panics_is_tried_again_later_and_takes_nothing_with_it() {
    let (shared, work) = leader();
    assert_eq!(shared.look_by(&Defective, &work).await, Done::Backoff);
    assert!(shared.holdings.is_idle(), "its claim can be handed over");
    assert!(shared.cache.now().is_some(), "the view is as it was");
    assert_eq!(shared.stats.looks.of(work.reconciler).count(Outcome::Failed), 1);
}

/// The outcome of its last write was unknown: it never happened, so no event of it will ever come.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_own_write_is_looked_at_again_though_nothing_is_heard_of_it() {
    let (shared, work) = leader();
    shared.cache.note_write("", &work.key, Revision(9));
    assert_eq!(shared.look_by(&Defective, &work).await, Done::Backoff);
    let failed = || shared.stats.looks.of(work.reconciler).count(Outcome::Failed);
    assert_eq!(failed(), 0, "nothing is decided before it");
    shared.cache.advance(Revision(9));
    shared.look_by(&Defective, &work).await;
    assert_eq!(failed(), 1, "now it is");
}

#[tokio::test]
async fn a_step_that_is_too_large_is_tried_in_part() {
    let (shared, work) = leader();
    let before = shared.holdings.moves_max(&work.key);
    let busy = shared.holdings.enter(LEADER).expect("it leads");
    let too_large = Error::TooLarge("2 bytes, at most 1".into());
    assert_eq!(shared.failed(&work, &busy, "create", &too_large).await, Done::Backoff);
    assert_eq!(shared.holdings.moves_max(&work.key), before / 2);
}

const SESSION: &str = "s";

fn web() -> v1::Resource {
    let template = v1::InstanceTemplate { command: vec!["run".into()], ..Default::default() };
    let spec = v1::ServiceSpec { replicas: Some(1), template: Some(template), ..Default::default() };
    let metadata = v1::Metadata {
        kind: service::KIND.into(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "u".into(),
        root_uid: "u".into(),
        generation: 1,
        ..Default::default()
    };
    v1::Resource { metadata: Some(metadata), spec: Some(kinds::any(service::SPEC, &spec)), status: None }
}

/// A service at revision 1, whose shard is the session's at epoch 1: the same in whatever store.
async fn stored(incarnation: &str) -> Arc<Memory> {
    let store = memory_of(incarnation);
    let writes = vec![Write::Put(Box::new(web()))];
    let revision = store.commit(Transaction { writes, ..Transaction::default() }).await.expect("it's free");
    assert_eq!(revision, Revision(1));
    let open = SessionOpen {
        session: SESSION.into(),
        role: "controller".into(),
        name: "c".into(),
        server: String::new(),
        server_address: String::new(),
        ttl: Config::default().ttl,
        machine_id: String::new(),
    };
    store.open_session(open).await.expect("it opens");
    let take = ClaimChange {
        name: shard_claim(0),
        expected_owner: String::new(),
        expected_epoch: Epoch(0),
        owner: SESSION.into(),
        owner_must_be_dead: true,
    };
    store.change_claim(take).await.expect("it's nobody's");
    store
}

/// A replica that saw the one store and talks to the other looks at the service. Returns whether it wrote.
async fn steps(seen: &str, present: &str) -> bool {
    let (seen, present) = (stored(seen).await, stored(present).await);
    let shared = Controller::new(Config::default(), present.clone()).shared;
    let objects = seen.list(List::default()).await.expect("memory answers").objects;
    let incarnation = seen.cluster().await.expect("memory answers").incarnation;
    shared.cache.begin(&incarnation);
    shared.cache.set_clock(Time::from_millis(1));
    let listed =
        Listed { incarnation: &incarnation, objects: &objects, shards: &[0], global: true, revision: Revision(2) };
    shared.cache.replace(&listed).expect("it's of that store");
    shared.holdings.begin(SESSION);
    shared.holdings.set(&shard_claim(0), Hold { epoch: Epoch(1), revision: Revision(2), phase: Phase::Active });
    let before = present.head().await.expect("memory answers");
    let reconciler = RECONCILERS.iter().position(|r| r.kind() == service::KIND).expect("services are reconciled");
    shared.look(&Work { reconciler, key: Key::new(service::KIND, "default", "web") }).await;
    present.head().await.expect("memory answers") != before
}

/// Sessions are random, so no other replica's claim can look like this one's; its own of an earlier store can.
#[tokio::test]
async fn a_step_for_one_store_is_refused_by_another_that_looks_just_the_same() {
    assert!(steps("first", "first").await, "there is something to do");
    assert!(!steps("first", "second").await, "not there");
}
