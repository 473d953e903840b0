//! What `plan` predicts is what happens: the same creates, the same stops, in the same causal order.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::v1;
use driftless_sim::{Cluster, service};
use futures::StreamExt;
use model::{Actor, Key};
use proptest::prelude::*;
use store::{Api, Caller, Cluster as ClusterRecord, HistoryQuery, Memory, Store};

fn declare(replicas: i32, version: &str, surge: i32, unavailable: i32) -> v1::Resource {
    let mut resource = service("web", replicas, version);
    let spec = resource.spec.as_mut().unwrap();
    let mut typed = <v1::ServiceSpec as prost::Message>::decode(spec.value.as_slice()).unwrap();
    typed.rollout =
        Some(v1::Rollout { max_surge: Some(surge), max_unavailable: Some(unavailable), ..Default::default() });
    spec.value = prost::Message::encode_to_vec(&typed);
    resource
}

fn request(resource: v1::Resource) -> v1::PlanRequest {
    let declarations = vec![v1::Declaration { resource: Some(resource), expected_revision: None }];
    v1::PlanRequest { declarations, ..Default::default() }
}

fn caller() -> Caller {
    Caller::new(Actor::new("user", "test"))
}

/// What was made and what was stopped, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Moved {
    Created(String),
    Stopped(String),
}

fn predicted(plan: &v1::PlanResponse) -> Vec<Moved> {
    let moves = plan.steps.iter().flat_map(|step| &step.moves);
    let moved = |m: &v1::PlannedMove| match m.action.as_str() {
        "create" => Some(Moved::Created(m.key.clone().unwrap().name)),
        "stop" => Some(Moved::Stopped(m.key.clone().unwrap().name)),
        _ => None,
    };
    moves.filter_map(moved).collect()
}

/// From the history entries after that revision.
async fn happened(backend: &Memory, after: model::Revision) -> Vec<Moved> {
    let records = backend.history(HistoryQuery { after, limit: 10_000, ..Default::default() }).await.unwrap();
    let mut moves = Vec::new();
    for record in records {
        let entry = <v1::HistoryEntry as prost::Message>::decode(record.entry.bytes).unwrap();
        let of_instances = entry.touched.iter().filter(|t| t.key.as_ref().is_some_and(|k| k.kind == "Instance"));
        for touched in of_instances {
            let name = touched.key.clone().unwrap().name;
            match entry.verb.as_str() {
                "create" => moves.push(Moved::Created(name)),
                "stop" => moves.push(Moved::Stopped(name)),
                _ => {}
            }
        }
    }
    moves
}

/// How many of each template were made, and stopped. Which slots are free when one is made depends on which agent reports
/// first, so slots don't count.
fn by_template(moves: &[Moved]) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let (mut created, mut stopped) = (BTreeMap::new(), BTreeMap::new());
    for moved in moves {
        let (counts, name) = match moved {
            Moved::Created(name) => (&mut created, name),
            Moved::Stopped(name) => (&mut stopped, name),
        };
        let template = name.rsplit_once('-').unwrap().0;
        *counts.entry(template.to_owned()).or_default() += 1;
    }
    (created, stopped)
}

/// A service and how it's replaced: replicas, version, surge, unavailable.
type Change = (i32, u8, i32, i32);

fn any_change() -> impl Strategy<Value = Change> {
    (0..5_i32, 0..3_u8, 0..3_i32, 0..2_i32).prop_filter("something must be allowed to move", |(_, _, s, u)| s + u > 0)
}

/// Declares one after the other. Each is planned in the state that the ones before left; then it happens.
async fn walk(changes: Vec<Change>) {
    let backend = Arc::new(Memory::new(ClusterRecord { incarnation: "i".into(), shards: 1 }));
    let cluster = Cluster::new(backend.clone(), 2).await;
    let _agents = [cluster.agent(0), cluster.agent(1)];
    let _controller = cluster.controller(controller::Config::default(), cluster.server.clone());
    for (replicas, version, surge, unavailable) in changes {
        // The last report may still be on its way; the time is simulated.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let next = declare(replicas, &format!("v{version}"), surge, unavailable);
        let before = backend.head().await.unwrap();
        let plan = cluster.server.plan(&caller(), request(next.clone())).await.unwrap();
        assert!(plan.settled);
        assert_eq!(backend.head().await.unwrap(), before, "planning wrote something");
        cluster.apply(vec![next]).await;
        cluster.settled().await;
        let (predicted, happened) = (predicted(&plan), happened(&backend, before.revision).await);
        assert_eq!(by_template(&predicted), by_template(&happened));
    }
}

proptest! {
    // 100 walks of 10 changes: 1,000 pairs of a state and a change.
    #![proptest_config(ProptestConfig { max_shrink_iters: 50, ..ProptestConfig::with_cases(100) })]
    #[test]
    fn what_is_predicted_happens(changes in proptest::collection::vec(any_change(), 10)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(walk(changes));
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_what_changes_how_far_it_goes_and_pins_what_it_read() {
    let cluster = Cluster::new(Arc::new(Memory::default()), 1).await;
    let _agent = cluster.agent(0);
    let _controller = cluster.controller(controller::Config::default(), cluster.server.clone());
    cluster.apply(vec![declare(3, "v1", 1, 0)]).await;
    cluster.settled().await;
    let plan = cluster.server.plan(&caller(), request(declare(3, "v2", 1, 0))).await.unwrap();
    let fields: Vec<String> =
        plan.changes[0].fields.iter().map(|f| format!("{}: {} -> {}", f.path, f.before, f.after)).collect();
    assert_eq!(fields, ["spec.version: v1 -> v2"]);
    let service = &plan.services[0];
    assert_eq!((service.created, service.stopped, service.live_peak, service.ready_least), (3, 3, 4, 3));
    assert!(plan.unsettled.is_empty());

    // What was planned is applied as long as nothing moved.
    let declarations = request(declare(3, "v2", 1, 0)).declarations;
    let pinned = v1::ApplyRequest { declarations, pins: plan.pins, ..Default::default() };
    cluster.apply(vec![declare(4, "v1", 1, 0)]).await;
    let refused = cluster.server.apply(&caller(), pinned).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "conflict on Service/default/web: was declared differently since the plan was made; plan again"
    );
}

#[tokio::test(start_paused = true)]
async fn explain_goes_down_the_chain_to_who_can_help() {
    let cluster = Cluster::new(Arc::new(Memory::default()), 1).await;
    let _controller = cluster.controller(controller::Config::default(), cluster.server.clone());
    cluster.apply(vec![service("web", 1, "v1")]).await;
    let key = v1::ResourceKey { kind: "Service".into(), namespace: "default".into(), name: "web".into() };
    // Until placement has said that there is no node.
    let mut watch = cluster.server.watch(store::WatchOptions::default()).await.unwrap();
    let told = |item: &store::WatchItem| match item {
        store::WatchItem::Changes(group) => group.changes.iter().any(|c| match c {
            store::Change::Put(object) => {
                let status = object.resource().unwrap().status.unwrap_or_default();
                let conditions = model::fields::conditions_of(&status.value.into()).unwrap();
                object.key.kind() == "Instance" && conditions.iter().any(|c| c.r#type == "Placed")
            }
            store::Change::Deleted { .. } => false,
        }),
        _ => false,
    };
    while !told(&watch.next().await.unwrap().unwrap()) {}
    // What the service says of that may still be on its way; the time is simulated.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let explained = cluster.server.explain(v1::ExplainRequest { key: Some(key) }).await.unwrap();
    assert!(!explained.server.is_empty() && explained.time.is_some());
    assert_eq!(explained.revision, cluster.server.head().await.unwrap().revision.0);
    let chain = explained.chain;
    let words: Vec<String> = chain
        .iter()
        .map(|e| {
            format!("{} {}: {}", Key::from(e.key.as_ref().unwrap()).kind(), e.state, e.why.clone().unwrap().message)
        })
        .collect();
    let no_node = "there is no node: start an agent (driftless agent --node NAME)";
    let [service, instance] = words.as_slice() else { panic!("the chain has these two: {words:?}") };
    assert!(service.starts_with("Service wait: 0 of 1 ready; web-") && service.contains(no_node), "{service}");
    assert_eq!(*instance, format!("Instance blocked: {no_node}"));
    assert_eq!((chain[0].owner.as_str(), chain[0].epoch), ("controller", 1));
    let step = |n: usize| chain[n].last_step.clone().map(|step| (step.claim, step.epoch));
    assert_eq!(step(0), Some((chain[0].claim.clone(), 1)));
    assert_eq!(step(1), Some((model::LEADER.to_owned(), 1)), "it was placement that said so");
}
