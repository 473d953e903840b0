//! With nodes that go in lockstep, what `plan` predicts is what happens: the same steps in the same order, each on the same
//! instances, from whatever state a change finds, also one in the middle of an earlier change.
//!
//! Nodes act on a beat, controllers in between. While the nodes act, the controllers hear nothing; so they find a beat's
//! outcome as a whole, as the simulation has it.

use std::{sync::Arc, time::Duration};

use agent::{
    Clock,
    driver::sim::{Beat, Config as SimConfig, Sim},
};
use api::v1;
use driftless_sim::{Cluster, service};
use model::{Actor, Revision};
use proptest::prelude::*;
use store::{Api, Caller, Cluster as ClusterRecord, Faults, Faulty, HistoryQuery, Memory, Store};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

const EVERY: Duration = Duration::from_secs(20);
/// So long before and after a beat the controllers hear nothing.
const DEAF: Duration = Duration::from_secs(1);

/// A step, and whom it moved; one step is one transaction, so there is no order within it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Moved {
    verb: String,
    instances: Vec<String>,
}

impl Moved {
    fn new(verb: &str, names: impl Iterator<Item = String>) -> Self {
        let mut instances: Vec<String> = names.collect();
        instances.sort();
        Self { verb: verb.into(), instances }
    }
}

/// Steps on instances by the service's reconciler, and by placement, each in order. The two work on different claims, side
/// by side.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    service: Vec<Moved>,
    placement: Vec<Moved>,
}

impl Steps {
    fn add(&mut self, moved: Moved) {
        // A step has an entry for each root that it touches.
        if moved.instances.is_empty() {
            return;
        }
        match moved.verb.as_str() {
            "bind" => self.placement.push(moved),
            "create" | "stop" | "remove" => self.service.push(moved),
            _ => {}
        }
    }

    /// What happened before something else was declared.
    fn begins_with(&self, happened: &Self) -> bool {
        self.service.starts_with(&happened.service) && self.placement.starts_with(&happened.placement)
    }
}

fn predicted(plan: &v1::PlanResponse) -> Steps {
    let mut steps = Steps::default();
    for step in &plan.steps {
        let of_instances = step.moves.iter().filter(|m| m.key.as_ref().is_some_and(|k| k.kind == "Instance"));
        let name = |m: &v1::PlannedMove| format!("{} {}", m.key.clone().unwrap_or_default().name, m.node);
        steps.add(Moved::new(&step.verb, of_instances.map(name)));
    }
    steps
}

/// From the history entries after that revision.
async fn happened(backend: &Memory, after: Revision) -> Steps {
    let mut steps = Steps::default();
    for record in backend.history(HistoryQuery { after, limit: 10_000, ..Default::default() }).await.unwrap() {
        let entry = <v1::HistoryEntry as prost::Message>::decode(record.entry.bytes).unwrap();
        let of_instances = entry.touched.iter().filter(|t| t.key.as_ref().is_some_and(|k| k.kind == "Instance"));
        let name = |touched: &v1::Touched| {
            let spec = touched.after.as_ref().and_then(|after| after.spec.as_ref());
            let spec = spec.map(|spec| <v1::InstanceSpec as prost::Message>::decode(spec.value.as_slice()).unwrap());
            let node = spec.filter(|_| entry.verb == "bind").map(|spec| spec.node).unwrap_or_default();
            format!("{} {node}", touched.key.clone().unwrap_or_default().name)
        };
        steps.add(Moved::new(&entry.verb, of_instances.map(name)));
    }
    steps
}

#[derive(Clone, Debug)]
struct Change {
    replicas: i32,
    version: u8,
    surge: i32,
    unavailable: i32,
    /// Of the beats that pass until the next change; the last of a walk comes to rest.
    beats: u32,
}

impl Change {
    fn resource(&self) -> v1::Resource {
        let mut resource = service("web", self.replicas, &format!("v{}", self.version));
        let spec = resource.spec.as_mut().unwrap();
        let mut typed = <v1::ServiceSpec as prost::Message>::decode(spec.value.as_slice()).unwrap();
        // No time is waited for: beats and the simulation count differently.
        let min_ready = Some(prost_types::Duration::default());
        typed.rollout = Some(v1::Rollout {
            max_surge: Some(self.surge),
            max_unavailable: Some(self.unavailable),
            min_ready,
            ..Default::default()
        });
        spec.value = prost::Message::encode_to_vec(&typed);
        resource
    }
}

fn any_change() -> impl Strategy<Value = Change> {
    let parts = (0..6_i32, 0..3_u8, 0..3_i32, 0..3_i32, 0..4_u32);
    let parts = parts.prop_filter("something must be allowed to move", |(_, _, s, u, _)| s + u > 0);
    parts.prop_map(|(replicas, version, surge, unavailable, beats)| Change {
        replicas,
        version,
        surge,
        unavailable,
        beats,
    })
}

/// Deafens the controllers around each beat.
fn metronome(beat: Beat, faults: Faults) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let next = beat.next(Instant::now() + DEAF);
            sleep_until(next - DEAF).await;
            faults.stall_watches(true);
            sleep_until(next + DEAF).await;
            faults.stall_watches(false);
        }
    })
}

/// The middle of the time between two beats, so many of them from now.
async fn between(beat: Beat, beats: u32) {
    sleep_until(beat.next(Instant::now()) - EVERY / 2 + EVERY * beats).await;
    // Where it was passed already.
    sleep(DEAF).await;
}

async fn walk(changes: Vec<Change>, machines: usize) {
    let backend = Arc::new(Memory::new(ClusterRecord { incarnation: "i".into(), shards: 1 }));
    let beat = Beat { first: Instant::now(), every: EVERY };
    let mut cluster = Cluster::new(backend.clone(), 0).await;
    let config = SimConfig { beat: Some(beat), ..SimConfig::default() };
    cluster.machines = (0..machines).map(|_| Arc::new(Sim::new(config.clone(), Clock::start()))).collect();
    let _agents: Vec<_> = (0..machines).map(|n| cluster.agent(n)).collect();
    let faults = Faults::new();
    let _controller = cluster
        .controller(controller::Config::default(), Arc::new(Faulty::new(cluster.server.clone(), faults.clone())));
    let metronome = metronome(beat, faults);
    between(beat, 1).await;
    let last = changes.len() - 1;
    for (n, change) in changes.iter().enumerate() {
        let caller = Caller::new(Actor::new("user", "test"));
        let declarations = vec![v1::Declaration { resource: Some(change.resource()), expected_revision: None }];
        let request = v1::PlanRequest { declarations, ..Default::default() };
        let before = backend.head().await.unwrap();
        let plan = cluster.server.plan(&caller, request).await.unwrap();
        assert!(plan.settled, "it comes to rest in bounded steps");
        assert_eq!(backend.head().await.unwrap(), before, "planning wrote something");
        cluster.apply(vec![change.resource()]).await;
        if n == last {
            cluster.settled().await;
        }
        between(beat, change.beats).await;
        let (predicted, happened) = (predicted(&plan), happened(&backend, before.revision).await);
        if n == last {
            assert_eq!(predicted, happened, "change {n}");
        } else {
            assert!(predicted.begins_with(&happened), "change {n}:\n{predicted:#?}\n{happened:#?}");
        }
    }
    metronome.abort();
}

proptest! {
    // 100 walks of 10 changes: 1,000 pairs of a state and a change.
    #![proptest_config(ProptestConfig { max_shrink_iters: 50, ..ProptestConfig::with_cases(100) })]
    #[test]
    fn every_step_is_predicted_in_its_order(
        changes in proptest::collection::vec(any_change(), 10), machines in 1..4_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(walk(changes, machines));
    }
}
