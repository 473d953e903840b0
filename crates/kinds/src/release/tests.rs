use std::time::Duration;

use api::v1;
use expect_test::{Expect, expect};
use model::{Decision, Key, Time};
use prost::Message;

use super::{KEPT, KIND, NODE_GONE, Releases, SPEC, STATUS};
use crate::{
    Reconciler, View, World, any,
    testing::{NOW, add_node, metadata, put, words},
};

/// One for the node `n2`, which was found to be gone so long ago, if it was; `n1` is there.
fn world(gone: Option<Duration>) -> World {
    let mut world = World::default();
    add_node(&mut world, "n1", 1_000, 10);
    let spec = v1::ReleaseSpec {
        node: "n2".into(),
        instance_uid: "uid-gone".into(),
        machine_id: "machine-of-n2".into(),
        ..Default::default()
    };
    let metadata = v1::Metadata { created_time: Some(Time::default().into()), ..metadata(KIND, "uid-gone") };
    let status = gone.map(|ago| {
        let last_transition_time = Some(NOW.minus(ago).into());
        let gone = v1::Condition { last_transition_time, ..model::condition(NODE_GONE, Some(true), "", "") };
        any(STATUS, &v1::ReleaseStatus { conditions: vec![gone], ..Default::default() })
    });
    put(&mut world, metadata, any(SPEC, &spec), status);
    world
}

fn decide(world: &World) -> Decision {
    let view = View { world, now: NOW, live_since: NOW };
    Releases.plan(&view, world.get(&Key::new(KIND, "default", "uid-gone")).unwrap())
}

fn check(world: &World, expected: Expect) {
    expected.assert_eq(&words(&decide(world)));
}

fn said_gone(decision: &Decision) -> Option<String> {
    let status = v1::ReleaseStatus::decode(decision.status.as_ref()?.value.as_slice()).unwrap();
    Some(status.conditions[0].status.clone())
}

#[test]
fn one_that_nobody_is_left_to_clear_goes_a_while_after_its_node() {
    // However old it is itself.
    check(&world(None), expect!["wait (NodeGone: node n2 was deleted: nobody is left to clear it)"]);
    assert_eq!(said_gone(&decide(&world(None))).as_deref(), Some("True"));
    check(&world(Some(KEPT / 2)), expect!["wait (NodeGone: node n2 was deleted: nobody is left to clear it)"]);
    check(&world(Some(KEPT)), expect!["clear uid-gone (NodeGone)"]);
    let mut back = world(Some(KEPT));
    add_node(&mut back, "n2", 1_000, 10);
    check(&back, expect!["settled (NodeClears: node n2 clears it once nothing of the instance is left there)"]);
    assert_eq!(said_gone(&decide(&back)).as_deref(), Some("False"));
}

#[test]
fn one_for_a_machine_whose_name_another_one_got_is_as_one_whose_node_is_gone() {
    let named = |world: &mut World, is: &str| {
        add_node(world, "n2", 1_000, 10);
        let resource = world.get(&Key::new("Node", "", "n2")).unwrap().resource.clone();
        let mut status: v1::NodeStatus = crate::typed("status", resource.status.as_ref()).unwrap();
        status.machine_id = is.into();
        put(world, resource.metadata.unwrap(), resource.spec.unwrap(), Some(any("driftless.v1.NodeStatus", &status)));
    };
    let mut replaced = world(None);
    named(&mut replaced, "other");
    check(&replaced, expect!["wait (OtherMachine: node n2 is another machine now: nobody is left to clear it)"]);
    assert_eq!(said_gone(&decide(&replaced)).as_deref(), Some("True"));
    let mut replaced = world(Some(KEPT));
    named(&mut replaced, "other");
    check(&replaced, expect!["clear uid-gone (OtherMachine)"]);
    // Of an agent that doesn't say which machine it is nothing is known.
    for same in ["machine-of-n2", ""] {
        let mut there = world(None);
        named(&mut there, same);
        check(&there, expect!["settled (NodeClears: node n2 clears it once nothing of the instance is left there)"]);
    }
}

#[test]
fn of_one_whose_node_is_there_nothing_is_written() {
    let mut world = world(None);
    add_node(&mut world, "n2", 1_000, 10);
    assert_eq!(said_gone(&decide(&world)), None);
}

#[test]
fn it_is_looked_at_again_when_its_node_comes_or_goes() {
    let mut world = world(None);
    add_node(&mut world, "n2", 1_000, 10);
    let wakes = |node: &str| Releases.wakes(&world, world.get(&Key::new("Node", "", node)).unwrap()).len();
    assert_eq!((wakes("n1"), wakes("n2")), (0, 1));
}
