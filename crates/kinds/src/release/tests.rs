use api::v1;
use expect_test::{Expect, expect};
use model::{Key, Time};

use super::{KEPT, KIND, Releases, SPEC};
use crate::{
    Reconciler, View, World, any,
    testing::{NOW, add_node, metadata, put, words},
};

/// One for the node `n2`, made then; `n1` is there.
fn world(created: Time) -> World {
    let mut world = World::default();
    add_node(&mut world, "n1", 1_000, 10);
    let spec = v1::ReleaseSpec { node: "n2".into(), instance_uid: "uid-gone".into(), ..Default::default() };
    let metadata = v1::Metadata { created_time: Some(created.into()), ..metadata(KIND, "uid-gone") };
    put(&mut world, metadata, any(SPEC, &spec), None);
    world
}

fn check(world: &World, expected: Expect) {
    let view = View { world, now: NOW, live_since: NOW };
    let item = world.get(&Key::new(KIND, "default", "uid-gone")).unwrap();
    expected.assert_eq(&words(&Releases.plan(&view, item)));
}

#[test]
fn one_that_nobody_is_left_to_clear_goes_after_a_while() {
    let why = expect!["wait (NodeGone: node n2 was deleted: nobody is left to clear it)"];
    check(&world(NOW.minus(KEPT / 2)), why);
    check(&world(NOW.minus(KEPT)), expect!["clear uid-gone (NodeGone)"]);
    let mut back = world(NOW.minus(KEPT));
    add_node(&mut back, "n2", 1_000, 10);
    check(&back, expect!["settled (NodeClears: node n2 clears it once nothing of the instance is left there)"]);
}

#[test]
fn it_is_looked_at_again_when_its_node_comes_or_goes() {
    let mut world = world(NOW);
    add_node(&mut world, "n2", 1_000, 10);
    let wakes = |node: &str| Releases.wakes(&world, world.get(&Key::new("Node", "", node)).unwrap()).len();
    assert_eq!((wakes("n1"), wakes("n2")), (0, 1));
}
