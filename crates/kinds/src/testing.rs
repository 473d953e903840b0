//! Worlds in a line of text, for the kinds' tests.
//!
//! An instance is `<template>-<slot><flags>`: `+` ready, `!` asked to go, `?` without a node, `^` to be evicted, `*` ready
//! for no more than a second (else for a minute), `~` in a crash loop, `=` finished, `@2` on node `n2` instead of `n1`. So
//! `old-0+ new-1? new-2+^@2`.

use std::sync::Arc;

use api::v1;
use model::{Decision, Key, Move, Next, Object, Revision, Time, condition};

use crate::{Item, Reconciler, View, World, any, instance, node, placement, service};

pub const NOW: Time = Time(1_000_000_000_000);

pub fn put(world: &mut World, metadata: v1::Metadata, spec: prost_types::Any, status: Option<prost_types::Any>) {
    let resource = v1::Resource { metadata: Some(metadata), spec: Some(spec), status };
    let key = Key::of(resource.metadata.as_ref().unwrap());
    let object = Object { key, revision: Revision(1), bytes: Object::encode(resource) };
    world.put(Arc::new(Item::read(&object).unwrap()));
}

pub fn metadata(kind: &str, name: &str) -> v1::Metadata {
    v1::Metadata {
        kind: kind.into(),
        namespace: if kind == node::KIND || kind == placement::KIND { String::new() } else { "default".into() },
        name: name.into(),
        uid: format!("uid-{name}"),
        root_uid: format!("uid-{name}"),
        generation: 1,
        ..Default::default()
    }
}

pub fn service_spec(replicas: i32, surge: i32, unavailable: i32) -> v1::ServiceSpec {
    v1::ServiceSpec {
        replicas: Some(replicas),
        template: Some(v1::InstanceTemplate { command: vec!["true".into()], ..Default::default() }),
        rollout: Some(v1::Rollout { max_surge: Some(surge), max_unavailable: Some(unavailable), ..Default::default() }),
        ..Default::default()
    }
}

/// The service `web`, of template `new`, and its instances, on a healthy node `n1`.
pub fn fleet(spec: &v1::ServiceSpec, instances: &str) -> World {
    let mut world = bare_fleet(spec, instances);
    add_node(&mut world, "n1", 64_000, 100);
    world
}

/// The same without the node.
pub fn bare_fleet(spec: &v1::ServiceSpec, instances: &str) -> World {
    let mut world = World::default();
    let own = v1::Metadata { template_hash: "new".into(), ..metadata(service::KIND, "web") };
    put(&mut world, own, any(service::SPEC, spec), None);
    for word in instances.split_whitespace() {
        add_instance(&mut world, word);
    }
    world
}

fn add_instance(world: &mut World, word: &str) {
    let (word, node) = word.split_once('@').unwrap_or((word, "1"));
    let bare = word.trim_end_matches(['+', '!', '?', '^', '*', '~', '=']);
    let (hash, slot) = bare.rsplit_once('-').unwrap();
    let owner = v1::OwnerReference {
        kind: service::KIND.into(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "uid-web".into(),
    };
    let metadata = v1::Metadata {
        owner: Some(owner),
        root_uid: "uid-web".into(),
        deletion_time: word.contains('!').then(|| NOW.into()),
        ..metadata(instance::KIND, &format!("web-{bare}"))
    };
    let spec = v1::InstanceSpec {
        node: if word.contains('?') { String::new() } else { format!("n{node}") },
        slot: slot.parse().unwrap(),
        template_hash: hash.into(),
        ..Default::default()
    };
    let evict = v1::Eviction { requested_by: "drain of node n1".into(), time: None };
    let mut ready = condition(instance::READY, Some(word.contains('+')), "", "");
    let since = if word.contains('*') { 1 } else { 60 };
    ready.last_transition_time = Some(NOW.minus(std::time::Duration::from_secs(since)).into());
    let status = v1::InstanceStatus {
        phase: if word.contains('=') { instance::FINISHED.into() } else { "Running".into() },
        ready: word.contains('+'),
        conditions: vec![ready],
        evict: word.contains('^').then_some(evict),
        failures: if word.contains('~') { 3 } else { 0 },
        ..Default::default()
    };
    put(world, metadata, any(instance::SPEC, &spec), Some(any(instance::STATUS, &status)));
}

/// Its agent has been gone for so long.
pub fn silence(world: &mut World, name: &str, ago: std::time::Duration) {
    let key = Key::new(node::KIND, "", name);
    let resource = world.get(&key).unwrap().resource.clone();
    let status = v1::NodeStatus { silent_since: Some(NOW.minus(ago).into()), ..Default::default() };
    put(world, resource.metadata.unwrap(), resource.spec.unwrap(), Some(any(node::STATUS, &status)));
    let agents = world.agents().iter().filter(|agent| *agent != name).cloned().collect();
    world.set_agents(agents);
}

/// A node with an agent, and room for so much.
pub fn add_node(world: &mut World, name: &str, cpu_millis: i64, instances: i32) {
    let capacity = v1::Capacity { cpu_millis, memory_bytes: 1 << 30, instances };
    let ready = condition(node::READY, Some(true), "AgentConnected", "its agent has a live session");
    let status = v1::NodeStatus { capacity: Some(capacity), conditions: vec![ready], ..Default::default() };
    put(world, metadata(node::KIND, name), any(node::SPEC, &v1::NodeSpec::default()), Some(any(node::STATUS, &status)));
    let mut agents = world.agents().clone();
    agents.insert(name.into());
    world.set_agents(agents);
}

pub fn plan(world: &World, reconciler: &dyn Reconciler, key: &Key) -> Decision {
    let view = View { world, now: NOW, live_since: Time::default() };
    reconciler.plan(&view, world.get(key).unwrap())
}

/// The decision in a line: what it does to whom, and why.
pub fn words(decision: &Decision) -> String {
    let why = decision.next.why();
    match &decision.next {
        Next::Do(step, _) => {
            let moves: Vec<String> = step.moves.iter().map(one).collect();
            format!("{} {} ({})", step.verb, moves.join(", "), why.reason)
        }
        next => format!("{} ({}: {})", next.outcome(), why.reason, why.message),
    }
}

fn one(change: &Move) -> String {
    let name = change.key().name();
    match change {
        Move::SetSpec { spec, .. } => {
            use prost::Message;
            format!("{name} to {}", v1::InstanceSpec::decode(spec.value.as_slice()).unwrap().node)
        }
        _ => name.to_owned(),
    }
}
