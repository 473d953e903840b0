use std::time::Duration;

use api::v1;
use expect_test::{Expect, expect};
use model::{Key, Time};
use prost::Message;

use super::{KIND, Nodes, STATUS, UNKNOWN_AFTER};
use crate::{
    Reconciler, View, World, any,
    testing::{NOW, add_node, metadata, put, words},
};

/// `n1` was ready; its agent is gone, noted since then or not at all; the view is fed since `live`.
fn check(noted: Option<Duration>, live: Duration, expected: Expect) {
    let mut world = World::default();
    add_node(&mut world, "n1", 1_000, 10);
    world.set_agents(std::collections::BTreeSet::new());
    let item = world.get(&Key::new(KIND, "", "n1")).unwrap().clone();
    let mut status = v1::NodeStatus::decode(item.status().unwrap().value.as_slice()).unwrap();
    status.silent_since = noted.map(|ago| NOW.minus(ago).into());
    put(&mut world, metadata(KIND, "n1"), any(super::SPEC, &v1::NodeSpec::default()), Some(any(STATUS, &status)));
    let view = View { world: &world, now: NOW, live_since: NOW.minus(live) };
    let decision = Nodes.plan(&view, world.get(&Key::new(KIND, "", "n1")).unwrap());
    let said = decision.status.as_ref().map(|s| v1::NodeStatus::decode(s.value.as_slice()).unwrap());
    let ready = said.as_ref().map_or("-".into(), |s| s.conditions[0].status.clone());
    let noted = said.and_then(|s| s.silent_since).map(|t| NOW.since(Time::from(&t)));
    expected.assert_eq(&format!("{} ready={ready} silent={noted:?}", words(&decision)));
}

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn silence_is_noted_then_called_unknown() {
    check(None, LONG, expect!["wait (AgentSilent: its agent has no session) ready=True silent=Some(0ns)"]);
    check(
        Some(Duration::from_secs(9)),
        LONG,
        expect!["wait (AgentSilent: its agent has no session) ready=True silent=Some(9s)"],
    );
    check(
        Some(UNKNOWN_AFTER),
        LONG,
        expect!["blocked (AgentSilent: its agent has no session) ready=Unknown silent=Some(10s)"],
    );
}

#[test]
fn silence_that_this_view_did_not_witness_proves_nothing() {
    check(None, Duration::from_secs(1), expect!["wait (AgentSilent: its agent has no session) ready=True silent=None"]);
    check(
        Some(LONG),
        Duration::from_secs(1),
        expect!["wait (AgentSilent: its agent has no session) ready=True silent=Some(3600s)"],
    );
}

#[test]
fn an_agent_that_is_there_makes_it_ready() {
    let mut world = World::default();
    add_node(&mut world, "n1", 1_000, 10);
    let view = View { world: &world, now: NOW, live_since: Time::default() };
    let decision = Nodes.plan(&view, world.get(&Key::new(KIND, "", "n1")).unwrap());
    expect!["settled (AgentConnected: its agent has a live session)"].assert_eq(&words(&decision));
    let said = v1::NodeStatus::decode(decision.status.unwrap().value.as_slice()).unwrap();
    assert_eq!(said.observed_generation, world.get(&Key::new(KIND, "", "n1")).unwrap().metadata().generation);
    assert_ne!(said.observed_generation, 0);
}
