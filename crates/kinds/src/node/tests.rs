use std::time::Duration;

use api::v1;
use expect_test::{Expect, expect};
use model::{Key, Next, Time, Until};
use prost::Message;

use super::{KIND, Nodes, STATUS, UNKNOWN_AFTER};
use crate::{
    Kind, Reconciler, View, World, any, instance, placement, release,
    service::{self, evictions},
    testing::{NOW, add_node, fleet, metadata, plan, put, service_spec, silence, words},
};

/// `n1` was ready; its agent is gone, noted since then or not at all; the view is fed since `live`.
fn check(noted: Option<Duration>, live: Duration, expected: Expect) {
    let mut world = World::default();
    add_node(&mut world, "n1", 1_000, 10);
    world.set_agents(std::collections::BTreeSet::new());
    add_node(&mut world, "n2", 1_000, 10);
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
fn a_drain_asks_what_runs_and_leaves_what_is_finished() {
    let check = |instances: &str, expected: Expect| {
        let mut world = fleet(&v1::ServiceSpec::default(), instances);
        let record = world.get(&Key::new(KIND, "", "n1")).unwrap().resource.clone();
        let drained = any(super::SPEC, &v1::NodeSpec { cordon: true, drain: true, ..Default::default() });
        put(&mut world, record.metadata.unwrap(), drained, record.status);
        let decision = plan(&world, &Nodes, &Key::new(KIND, "", "n1"));
        let said = v1::NodeStatus::decode(decision.status.as_ref().unwrap().value.as_slice()).unwrap();
        let drained = said.conditions.iter().find(|c| c.r#type == super::DRAINED).unwrap();
        expected.assert_eq(&format!("{}; {}", words(&decision), drained.message));
    };
    check("new-0= new-1+ new-2=!", expect!["evict web-new-1 (Draining); 2 instances still here"]);
    check("new-0= new-2=!", expect!["wait (Draining: 1 instance still here); 1 instance still here"]);
    check("new-0=", expect!["settled (AgentConnected: its agent has a live session); nothing runs here any more"]);
}

#[test]
fn a_drain_that_is_taken_back_takes_back_what_it_asked_for_and_no_more() {
    let check = |instances: &str, told: bool, expected: Expect| {
        let mut world = fleet(&v1::ServiceSpec::default(), instances);
        let record = world.get(&Key::new(KIND, "", "n1")).unwrap().resource.clone();
        let mut status = v1::NodeStatus::decode(record.status.unwrap().value.as_slice()).unwrap();
        if told {
            status.conditions.push(model::condition(super::DRAINED, Some(false), "BudgetSpent", "web-0 can't go"));
        }
        put(&mut world, record.metadata.unwrap(), record.spec.unwrap(), Some(any(STATUS, &status)));
        let by_user = Key::new(instance::KIND, "default", "web-new-9");
        if let Some(instance) = world.get(&by_user).map(|item| item.resource.clone()) {
            let evict = Some(v1::Eviction { requested_by: "user/me".into(), time: None });
            let status = any(instance::STATUS, &v1::InstanceStatus { evict, ..Default::default() });
            put(&mut world, instance.metadata.unwrap(), instance.spec.unwrap(), Some(status));
        }
        let node = Key::new(KIND, "", "n1");
        let decision = plan(&world, &Nodes, &node);
        let said = v1::NodeStatus::decode(decision.status.as_ref().unwrap().value.as_slice()).unwrap();
        let drained = said.conditions.iter().find(|c| c.r#type == super::DRAINED).map(|c| c.message.as_str());
        let wakes = |key: &str| Nodes.wakes(&world, world.get(&Key::new(instance::KIND, "default", key)).unwrap());
        assert_eq!(wakes("web-new-0"), if told { vec![node] } else { Vec::new() });
        expected.assert_eq(&format!("{}; {}", words(&decision), drained.unwrap_or("-")));
    };
    check(
        "new-0+^ new-1+ new-2+^! new-3+^@2 new-9+^",
        true,
        expect!["keep web-new-0 (TakenBack); the drain was taken back: 1 instance asked to go may stay"],
    );
    check("new-0+ new-9+^", true, expect!["settled (AgentConnected: its agent has a live session); -"]);
    check("new-0+", false, expect!["settled (AgentConnected: its agent has a live session); -"]);
}

#[test]
fn a_drain_changes_nothing_of_when_silence_is_judged() {
    let mut world = draining();
    held_by("web", &mut world, evictions::WAITING);
    let key = Key::new(KIND, "", "n1");
    let record = world.get(&key).unwrap().resource.clone();
    let mut status = v1::NodeStatus::decode(record.status.unwrap().value.as_slice()).unwrap();
    status.silent_since = Some(NOW.minus(Duration::from_secs(4)).into());
    put(&mut world, record.metadata.unwrap(), record.spec.unwrap(), Some(any(STATUS, &status)));
    world.set_agents(std::collections::BTreeSet::new());
    let decision = plan(&world, &Nodes, &key);
    let Next::Wait(Until::Time(at), why) = decision.next else { panic!("{decision:?}") };
    assert_eq!((at.since(NOW), why.reason), (UNKNOWN_AFTER - Duration::from_secs(4), "Draining"));
}

#[test]
fn what_was_given_up_while_the_agent_was_silent_may_still_run_there() {
    let mut world = draining();
    silence(&mut world, "n1", LONG);
    let release = |machine: &str| {
        let spec = v1::ReleaseSpec { node: "n1".into(), machine_id: machine.into(), ..Default::default() };
        (metadata(release::KIND, "uid-web-0"), any(release::SPEC, &spec))
    };
    let node = Key::new(KIND, "", "n1");
    let check = |world: &World, expected: Expect| {
        let decision = plan(world, &Nodes, &node);
        let said = v1::NodeStatus::decode(decision.status.as_ref().unwrap().value.as_slice()).unwrap();
        let drained = said.conditions.iter().find(|c| c.r#type == super::DRAINED).unwrap();
        expected.assert_eq(&format!("{} {}: {}", drained.status, drained.reason, drained.message));
    };
    let (own, spec) = release("");
    put(&mut world, own, spec, None);
    check(
        &world,
        expect![
            "False GivenUp: 1 instance given up while its agent was silent may still run here, until the agent is back and has stopped what does; if the machine is off, 'driftless delete node n1' ends the waiting"
        ],
    );
    let key = Key::new(release::KIND, "default", "uid-web-0");
    assert_eq!(Nodes.wakes(&world, world.get(&key).unwrap()), vec![node.clone()], "that it's gone matters");
    world.remove(&key);
    check(&world, expect!["True Drained: nothing runs here any more"]);
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

#[test]
fn while_the_brake_holds_each_silent_node_says_so() {
    let mut world = World::default();
    ["n1", "n2", "n3"].iter().for_each(|name| add_node(&mut world, name, 1_000, 10));
    silence(&mut world, "n1", LONG);
    let said = |world: &World| {
        let decision = plan(world, &Nodes, &Key::new(KIND, "", "n1"));
        let status = v1::NodeStatus::decode(decision.status.as_ref().unwrap().value.as_slice()).unwrap();
        (words(&decision), status.conditions[0].clone())
    };
    let (word, ready) = said(&world);
    expect!["blocked (AgentSilent: its agent has no session)"].assert_eq(&word);
    assert!(ready.message.ends_with("each service replaces it after its lost_after"), "{}", ready.message);
    silence(&mut world, "n2", Duration::ZERO);
    let (word, ready) = said(&world);
    expect!["blocked (AgentSilent: its agent has no session; more than half of the nodes are silent, so nothing that runs on them is replaced)"]
        .assert_eq(&word);
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("Unknown", "Brake"));
}

#[test]
fn a_word_about_the_nodes_wakes_silent_ones() {
    let mut world = World::default();
    ["n1", "n2", "n3"].iter().for_each(|name| add_node(&mut world, name, 1_000, 10));
    silence(&mut world, "n2", LONG);
    put(&mut world, metadata(placement::KIND, placement::NAME), any(placement::SPEC, &v1::PlacementSpec {}), None);
    let record = world.get(&Key::new(placement::KIND, "", placement::NAME)).unwrap().clone();
    assert_eq!(Nodes.wakes(&world, &record), [Key::new(KIND, "", "n2")]);
}

/// A service, of which all that runs on `n1` was asked to go, and what it says of that.
fn held_by(name: &str, world: &mut World, reason: &'static str) {
    let held = model::condition(evictions::HELD, Some(true), reason, format!("{name}-0 can't go"));
    let status = v1::ServiceStatus { conditions: vec![held], ..Default::default() };
    let spec = any(service::SPEC, &service_spec(1, 1, 0));
    put(world, metadata(service::KIND, name), spec, Some(any(service::STATUS, &status)));
    let owner = v1::OwnerReference {
        kind: service::KIND.into(),
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    };
    let instance = v1::Metadata { owner: Some(owner), ..metadata(instance::KIND, &format!("{name}-0")) };
    let evict = Some(v1::Eviction { requested_by: "drain of node n1".into(), time: None });
    let status = v1::InstanceStatus { phase: "Running".into(), evict, ..Default::default() };
    let spec = v1::InstanceSpec { node: "n1".into(), ..Default::default() };
    put(world, instance, any(instance::SPEC, &spec), Some(any(instance::STATUS, &status)));
}

fn draining() -> World {
    let mut world = World::default();
    add_node(&mut world, "n1", 1_000, 10);
    let record = world.get(&Key::new(KIND, "", "n1")).unwrap().resource.clone();
    let spec = any(super::SPEC, &v1::NodeSpec { cordon: true, drain: true, ..Default::default() });
    put(&mut world, record.metadata.unwrap(), spec, record.status);
    world
}

#[test]
fn a_drain_that_is_held_says_by_which_services_and_shows_it_in_the_table() {
    let told = |world: &World| {
        let node = Key::new(KIND, "", "n1");
        let decision = plan(world, &Nodes, &node);
        let said = decision.status.unwrap();
        let drained = v1::NodeStatus::decode(said.value.as_slice()).unwrap().conditions[1].clone();
        let mut resource = world.get(&node).unwrap().resource.clone();
        resource.status = Some(said);
        let trouble = super::NodeKind.row(&resource)[4].clone();
        let because: Vec<String> = decision.next.why().because_of.iter().map(Key::to_string).collect();
        format!("{} ({trouble}): {}\nbecause of {}", drained.reason, drained.message, because.join(" "))
    };
    let mut world = draining();
    held_by("web", &mut world, evictions::WAITING);
    expect![[r#"
        Draining (-): 1 instance still here; Service/default/web: web-0 can't go
        because of Service/default/web Instance/default/web-0"#]]
    .assert_eq(&told(&world));
    ["a", "b", "c"].iter().for_each(|name| held_by(name, &mut world, evictions::BUDGET_SPENT));
    expect![[r#"
        BudgetSpent (BudgetSpent): 4 instances still here; Service/default/a: a-0 can't go; Service/default/b: b-0 can't go; Service/default/c: c-0 can't go; and 1 more
        because of Service/default/a Service/default/b Service/default/c Service/default/web Instance/default/a-0 Instance/default/b-0 Instance/default/c-0 Instance/default/web-0"#]].assert_eq(&told(&world));
}

#[test]
fn a_word_of_a_service_wakes_the_drains_that_repeat_it() {
    let mut world = draining();
    held_by("web", &mut world, evictions::WAITING);
    let service = world.get(&Key::new(service::KIND, "default", "web")).unwrap().clone();
    assert_eq!(Nodes.wakes(&world, &service), [Key::new(KIND, "", "n1")]);
    let idle = metadata(service::KIND, "idle");
    put(&mut world, idle, any(service::SPEC, &service_spec(1, 1, 0)), None);
    let idle = world.get(&Key::new(service::KIND, "default", "idle")).unwrap().clone();
    assert_eq!(Nodes.wakes(&world, &idle), []);
}

#[test]
fn the_history_says_in_words_what_a_user_asked_of_a_node() {
    let check = |before: v1::NodeSpec, after: v1::NodeSpec, expected: Expect| {
        let of = |spec| v1::Resource { spec: Some(any(super::SPEC, &spec)), ..Default::default() };
        expected.assert_eq(&super::NodeKind.told(&of(before), &of(after)).unwrap_or_default());
    };
    let (none, cordoned) = (v1::NodeSpec::default(), v1::NodeSpec { cordon: true, ..Default::default() });
    let confirmed = |seconds| v1::NodeSpec {
        confirmed_incarnation: "f00d".into(),
        confirmed_time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        ..Default::default()
    };
    for before in [none.clone(), confirmed(1)] {
        check(
            before,
            confirmed(2),
            expect![
                "confirmed: somebody vouched for the store (incarnation f00d), so what it doesn't name there may be stopped, at most half at a time"
            ],
        );
    }
    check(none.clone(), cordoned.clone(), expect!["cordoned: nothing new is placed there"]);
    check(cordoned.clone(), none.clone(), expect!["uncordoned: it takes part again in what is placed"]);
    let drained = v1::NodeSpec { drain: true, ..none.clone() };
    check(
        none.clone(),
        drained.clone(),
        expect!["is to be drained: what runs there is asked to go, within each service's budget"],
    );
    check(drained, none.clone(), expect!["is no longer to be drained"]);
    check(none.clone(), none, expect![""]);
}

#[test]
fn what_the_agent_says_is_wrong_is_what_is_decided() {
    let check = |troubles: &[(&str, &str, &str)], silent: bool, expected: Expect| {
        let mut world = World::default();
        ["n1", "n2", "n3"].iter().for_each(|name| add_node(&mut world, name, 1_000, 10));
        if silent {
            silence(&mut world, "n1", LONG);
        }
        let record = world.get(&Key::new(KIND, "", "n1")).unwrap().resource.clone();
        let mut status = v1::NodeStatus::decode(record.status.unwrap().value.as_slice()).unwrap();
        status
            .conditions
            .extend(troubles.iter().map(|(name, reason, words)| model::condition(name, Some(false), reason, *words)));
        put(&mut world, record.metadata.unwrap(), record.spec.unwrap(), Some(any(STATUS, &status)));
        expected.assert_eq(&words(&plan(&world, &Nodes, &Key::new(KIND, "", "n1"))));
    };
    let doubt = (super::CONFIRMED, "OtherIncarnation", "another store (driftless node confirm n1)");
    let full = (super::DRIVER_WORKS, "CannotWrite", "the disk is full");
    let unlimited = (super::LIMITS_ENFORCED, "NotEnforced", "no control group can be made");
    let going = (super::CONFIRMED, super::STOPPING_STRAYS, "3 are being stopped");
    check(&[doubt], false, expect!["blocked (Unconfirmed: another store (driftless node confirm n1))"]);
    check(
        &[doubt, full],
        false,
        expect!["blocked (NodeTrouble: another store (driftless node confirm n1); the disk is full)"],
    );
    check(&[going], false, expect!["wait (StoppingStrays: 3 are being stopped)"]);
    check(
        &[unlimited],
        false,
        expect!["settled (AgentConnected: its agent has a live session; no control group can be made)"],
    );
    check(&[full], true, expect!["blocked (AgentSilent: its agent has no session; the disk is full)"]);
}
