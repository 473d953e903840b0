use api::v1;
use expect_test::{Expect, expect};
use model::{Key, Move, Next};
use prost::Message;

use super::{KIND, NAME, Placements, SPEC};
use crate::{
    World, any, instance,
    testing::{add_node, bare_fleet, metadata, plan, put, service_spec, words},
};

fn key() -> Key {
    Key::new(KIND, "", NAME)
}

fn world(nodes: &[(&str, i64, i32)], instances: &str) -> World {
    let mut world = bare_fleet(&service_spec(3, 1, 0), instances);
    put(&mut world, metadata(KIND, NAME), any(SPEC, &v1::PlacementSpec {}), None);
    for (name, cpu, instances) in nodes {
        add_node(&mut world, name, *cpu, *instances);
    }
    world
}

fn check(world: &World, expected: Expect) {
    expected.assert_eq(&words(&plan(world, &Placements, &key())));
}

fn asks_for(world: &mut World, name: &str, cpu: &str) {
    let key = Key::new(instance::KIND, "default", name);
    let mut resource = world.get(&key).unwrap().resource.clone();
    let amounts = v1::Amounts { cpu: cpu.into(), ..Default::default() };
    let resources = v1::Resources { requests: Some(amounts), limits: None };
    let template = v1::InstanceTemplate { resources: Some(resources), ..Default::default() };
    let spec = v1::InstanceSpec { template: Some(template), template_hash: "new".into(), ..Default::default() };
    put(world, resource.metadata.take().unwrap(), any(instance::SPEC, &spec), None);
}

#[test]
fn spreads_a_service_over_the_nodes() {
    let nodes = [("n1", 8_000, 10), ("n2", 8_000, 10)];
    check(
        &world(&nodes, "new-0? new-1? new-2?"),
        expect!["bind web-new-0 to n1, web-new-1 to n2, web-new-2 to n1 (Placing)"],
    );
    check(&world(&nodes, "new-0+ new-1?"), expect!["bind web-new-1 to n2 (Placing)"]);
    check(&world(&nodes, "new-0+"), expect!["settled (AllPlaced: every instance has a node)"]);
}

#[test]
fn what_is_asked_to_go_is_not_placed() {
    check(&world(&[("n1", 8_000, 10)], "new-0?!"), expect!["settled (AllPlaced: every instance has a node)"]);
}

#[test]
fn counts_what_it_binds_in_the_same_step() {
    let mut world = world(&[("n1", 1_000, 10), ("n2", 2_000, 10)], "new-0? new-1? new-2?");
    for name in ["web-new-0", "web-new-1", "web-new-2"] {
        asks_for(&mut world, name, "900m");
    }
    check(&world, expect!["bind web-new-0 to n1, web-new-1 to n2, web-new-2 to n2 (Placing)"]);
}

#[test]
fn says_per_node_what_did_not_fit() {
    check(&world(&[], "new-0?"), expect!["explain web-new-0 (Unplaceable)"]);
    let mut world = world(&[("n1", 1_000, 10), ("n2", 8_000, 0), ("n3", 8_000, 1)], "new-0?");
    asks_for(&mut world, "web-new-0", "64");
    let cordoned = any(crate::node::SPEC, &v1::NodeSpec { cordon: true, ..Default::default() });
    put(&mut world, metadata(crate::node::KIND, "n4"), cordoned, None);
    let decision = plan(&world, &Placements, &key());
    let model::Next::Do(step, _) = &decision.next else { panic!("{decision:?}") };
    let model::Move::SetStatus { status, .. } = &step.moves[0] else { panic!("{step:?}") };
    let status: v1::InstanceStatus = prost::Message::decode(status.value.as_slice()).unwrap();
    expect!["fits on no node: n1: 1000m cpu free, 64000m asked for; n2: 8000m cpu free, 64000m asked for; n3: 8000m cpu free, 64000m asked for; n4: cordoned"]
        .assert_eq(&status.conditions[0].message);
}

#[test]
fn what_is_finished_needs_no_room() {
    check(&world(&[("n1", 1_000, 1)], "new-0=@1 new-1?"), expect!["bind web-new-1 to n1 (Placing)"]);
    check(&world(&[("n1", 1_000, 1)], "new-0+@1 new-1?"), expect!["explain web-new-1 (Unplaceable)"]);
}

/// An agent may say anything.
#[test]
fn a_node_with_less_than_nothing_takes_nothing() {
    let mut world = world(&[("n2", i64::MIN, 10)], "new-0? new-1?");
    ["web-new-0", "web-new-1"].iter().for_each(|name| asks_for(&mut world, name, "1"));
    let placed = world.get(&Key::new(instance::KIND, "default", "web-new-0")).unwrap().resource.clone();
    let mut spec = v1::InstanceSpec::decode(placed.spec.unwrap().value.as_slice()).unwrap();
    spec.node = "n2".into();
    put(&mut world, placed.metadata.unwrap(), any(instance::SPEC, &spec), None);
    check(&world, expect!["explain web-new-1 (Unplaceable)"]);
}

#[test]
fn what_the_leader_says_anew_takes_nothing_back_that_it_or_a_user_said() {
    let world = world(&[], "new-0?^");
    let decision = plan(&world, &Placements, &key());
    let Next::Do(step, _) = decision.next else { panic!("it's told why it fits nowhere") };
    let [Move::SetStatus { status, .. }] = step.moves.as_slice() else { panic!("{step:?}") };
    let said = v1::InstanceStatus::decode(status.value.as_slice()).unwrap();
    assert!(said.evict.is_some(), "{said:?}");
}
