//! Perturbations after Sieve (Sun et al., OSDI 2022): whatever is lost, late, doubled, refused or killed between a
//! controller and its server, the end is the same, and no instance is made twice.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::v1;
use driftless_sim::{Cluster, Role, service};
use futures::{FutureExt, StreamExt};
use model::{Key, Object};
use store::{Api, Cluster as ClusterRecord, Faults, Faulty, HistoryQuery, Memory, Store};
use tokio::sync::Notify;

struct World {
    cluster: Cluster,
    backend: Arc<Memory>,
    faults: Faults,
    _agents: Vec<Role>,
}

impl World {
    async fn new() -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        // Few shards, as every run begins with a claim of each.
        let backend = Arc::new(Memory::new(ClusterRecord { incarnation: "i".into(), shards: 4 }));
        let cluster = Cluster::new(backend.clone(), 2).await;
        let agents = (0..2).map(|n| cluster.agent(n)).collect();
        Self { cluster, backend, faults: Faults::new(), _agents: agents }
    }

    /// Sweeps every second, so that the guarantee needs no patience.
    fn controller(&self, name: &str) -> Role {
        let config = controller::Config { sweep: Duration::from_secs(1), ..config(name) };
        let store: Arc<dyn Api> = self.cluster.server.clone();
        self.cluster.controller(config, Arc::new(Faulty::new(store, self.faults.clone())))
    }

    /// The life of a service: made, grown, replaced, shrunk, deleted.
    async fn live(&self) {
        for (replicas, version) in [(3, "v1"), (5, "v1"), (5, "v2"), (1, "v2")] {
            self.cluster.apply(vec![service("web", replicas, version)]).await;
            self.cluster.settled().await;
        }
        self.cluster.delete(&Key::new("Service", "default", "web")).await;
        self.cluster.settled().await;
        assert!(self.cluster.all("Service").await.is_empty());
    }

    /// How often each instance's name was created, by the history.
    async fn creates(&self) -> BTreeMap<String, usize> {
        let query = HistoryQuery { limit: 10_000, ..HistoryQuery::default() };
        let records = self.backend.history(query).await.unwrap();
        let entries =
            records.iter().map(|r| <v1::HistoryEntry as prost::Message>::decode(r.entry.bytes.clone()).unwrap());
        let touched = entries.flat_map(|entry| entry.touched);
        let created =
            touched.filter(|t| t.replaced_revision == 0 && t.key.as_ref().is_some_and(|k| k.kind == "Instance"));
        created.fold(BTreeMap::new(), |mut counts, t| {
            *counts.entry(t.key.unwrap().name).or_default() += 1;
            counts
        })
    }
}

fn config(name: &str) -> controller::Config {
    controller::Config { name: name.into(), ..controller::Config::default() }
}

/// What a run without faults creates: 3, then 2 more, then 5 of the next template.
async fn clean_creates() -> BTreeMap<String, usize> {
    let world = World::new().await;
    let _controller = world.controller("c1");
    world.live().await;
    let creates = world.creates().await;
    assert_eq!(creates.values().sum::<usize>(), 10, "{creates:?}");
    creates
}

#[tokio::test(start_paused = true)]
async fn with_every_event_lost_the_sweep_alone_converges() {
    for bookmarks_too in [false, true] {
        let world = World::new().await;
        world.faults.lose_all_changes();
        world.faults.lose_bookmarks(bookmarks_too);
        let controller = world.controller("c1");
        world.live().await;
        assert!(world.faults.counts().changes_lost > 0);
        assert!(controller.stats().divergences.load(std::sync::atomic::Ordering::Relaxed) > 0);
        assert_eq!(world.creates().await.values().sum::<usize>(), 10);
    }
}

/// Killed before the commit, and after it before the answer, at each commit that the clean run makes.
#[tokio::test(start_paused = true)]
async fn killed_at_every_point_of_a_step_it_ends_the_same() {
    let clean = clean_creates().await;
    let mut point = 1;
    loop {
        let mut reached = false;
        for after in [false, true] {
            let world = World::new().await;
            let died = Arc::new(Notify::new());
            let hook = {
                let died = died.clone();
                move |number: u64| {
                    let died = died.clone();
                    async move {
                        if number == point {
                            died.notify_one();
                            futures::future::pending::<()>().await;
                        }
                    }
                    .boxed()
                }
            };
            match after {
                false => world.faults.on_before_commit(move |number, _| hook(number)),
                true => world.faults.on_after_commit(move |number, _| hook(number)),
            }
            let first = world.controller("c1");
            let mut lived = Box::pin(world.live());
            let killed = tokio::select! {
                () = &mut lived => false,
                () = died.notified() => true,
            };
            reached |= killed;
            if killed {
                drop(first);
                world.faults.heal();
                let _second = world.controller("c2");
                lived.await;
            }
            assert_eq!(
                world.creates().await,
                clean,
                "killed {} commit {point}",
                if after { "after" } else { "before" }
            );
        }
        if !reached {
            break;
        }
        point += 1;
    }
    assert!(point > 10, "only {point} commits were tried");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_double_nothing() {
    let world = World::new().await;
    world.faults.lose_acknowledgements(u64::MAX);
    let _controller = world.controller("c1");
    world.live().await;
    assert_eq!(world.creates().await, clean_creates().await);
    assert!(world.faults.counts().acknowledgements_lost > 0);
}

#[tokio::test(start_paused = true)]
async fn conflicts_repeats_delays_and_refusals_only_cost_time() {
    let clean = clean_creates().await;
    let set: [fn(&Faults); 4] = [
        |faults| faults.conflict_every(Some(2)),
        |faults| faults.repeat_groups(true),
        |faults| faults.delay_watches(Duration::from_millis(700)),
        |faults| faults.refuse_commits(40),
    ];
    for set in set {
        let world = World::new().await;
        set(&world.faults);
        let _controller = world.controller("c1");
        world.live().await;
        assert_eq!(world.creates().await, clean);
    }
}

/// Events altered on their way are found by the digests and mended.
#[tokio::test(start_paused = true)]
async fn an_altered_event_is_found_and_mended() {
    let world = World::new().await;
    // Instances look unready for ever to the controller.
    world.faults.alter_changes(|object: &Object| {
        let mut resource = object.resource().ok()?;
        let status = resource.status.as_mut().filter(|_| object.key.kind() == "Instance")?;
        let mut instance = <v1::InstanceStatus as prost::Message>::decode(status.value.as_slice()).ok()?;
        instance.ready = false;
        status.value = prost::Message::encode_to_vec(&instance);
        Some(Object::encode(resource))
    });
    let controller = world.controller("c1");
    world.live().await;
    assert!(controller.stats().divergences.load(std::sync::atomic::Ordering::Relaxed) > 0);
    assert_eq!(world.creates().await, clean_creates().await);
}

/// The watch says nothing for minutes right after the children were made.
#[tokio::test(start_paused = true)]
async fn a_stalled_watch_makes_no_second_set_of_children() {
    let world = World::new().await;
    let made = Arc::new(Notify::new());
    let told = made.clone();
    let faults = world.faults.clone();
    world.faults.on_before_commit(move |_, transaction| {
        if transaction.note.as_ref().is_some_and(|note| note.verb == "create") {
            faults.stall_watches(true);
            told.notify_one();
        }
        async {}.boxed()
    });
    let store: Arc<dyn Api> = world.cluster.server.clone();
    // Sweeps every 30 s, as by default: ten of them come by while the watch is mute.
    let _controller = world.cluster.controller(config("c1"), Arc::new(Faulty::new(store, world.faults.clone())));
    world.cluster.apply(vec![service("web", 3, "v1")]).await;
    made.notified().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.cluster.all("Instance").await.len(), 3);
    world.faults.heal();
    world.cluster.settled().await;
    assert_eq!(world.creates().await.values().sum::<usize>(), 3);
}

/// A step that left its controller before it was deposed arrives after: refused, and nothing changed by it.
#[tokio::test(start_paused = true)]
async fn a_deposed_owners_late_write_is_refused() {
    let world = World::new().await;
    let (left, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let held = Arc::new(Mutex::new(Some((left.clone(), released.clone()))));
    world.faults.on_before_commit(move |_, transaction| {
        let create = transaction.note.as_ref().is_some_and(|note| note.verb == "create");
        let hold = if create { held.lock().unwrap().take() } else { None };
        async move {
            if let Some((left, released)) = hold {
                left.notify_one();
                released.notified().await;
            }
        }
        .boxed()
    });
    // It waits long enough for the answer to see it come late.
    let patient = controller::Config { commit_timeout: Duration::from_secs(600), ..config("c1") };
    let store: Arc<dyn Api> = world.cluster.server.clone();
    let first = world.cluster.controller(patient, Arc::new(Faulty::new(store, world.faults.clone())));
    world.cluster.apply(vec![service("web", 3, "v1")]).await;
    left.notified().await;
    // Its session dies though it lives.
    let state = world.cluster.server.coordination().await.unwrap().next().await.unwrap().unwrap();
    let session = state.members.iter().find(|m| m.name == "c1").unwrap().session.clone();
    assert!(world.cluster.server.end_session(&session, None).await.unwrap());
    let second = world.cluster.controller(config("c2"), world.cluster.server.clone());
    world.cluster.settled().await;
    let before = world.backend.head().await.unwrap();
    released.notify_one();
    let refused = async {
        while first.stats().fenced.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            // Lets the paused clock run on.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused).await.expect("the late write is refused");
    assert_eq!(world.creates().await.values().sum::<usize>(), 3);
    let history =
        world.backend.history(HistoryQuery { after: before.revision, limit: 100, ..Default::default() }).await;
    assert!(history.unwrap().is_empty(), "the late write left a trace");
    drop(second);
}
