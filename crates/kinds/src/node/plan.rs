//! Is the node's agent there, and is the node to be emptied? Works under `leader`, since both need one judge.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::v1;
use model::{Decision, Key, Move, Next, Step, Time, Until, Why, condition};

use super::{
    CONFIRMED, DRAINED, DRAINING, DRIVER_WORKS, GIVEN_UP, KIND, Node, READY, STATUS, STOPPING_STRAYS, TAKEN_BACK,
    drain_of,
};
use crate::{
    Item, Lookup, Reconciler, Scope, View, World, any,
    instance::{self, Instance},
    placement, release,
    service::{self, Service, evictions},
    text::count,
};

/// Silence before a node counts as Unknown.
pub const UNKNOWN_AFTER: Duration = Duration::from_secs(10);
/// Silence before it is noted at all: twice a redial's longest pause, so that an agent that restarts leaves no trace.
const NOTED_AFTER: Duration = Duration::from_secs(2);
/// Services whose own words a drain repeats; the rest is a number.
const SERVICES_TOLD: usize = 3;
/// Evictions asked for in one step.
const BATCH: usize = 100;

pub struct Nodes;

impl Reconciler for Nodes {
    fn name(&self) -> &'static str {
        "node"
    }

    fn kind(&self) -> &'static str {
        KIND
    }

    fn scope(&self) -> Scope {
        Scope::Leader
    }

    fn wakes(&self, world: &World, item: &Item) -> Vec<Key> {
        if item.key.kind() == KIND {
            return vec![item.key.clone()];
        }
        if item.key.kind() == placement::KIND {
            // The brake holds, or doesn't any more: that is told of silent nodes.
            let silent = |item: &&Arc<Item>| item.body::<Node>().is_some_and(|node| node.silent_since.is_some());
            return world.of_kind(KIND).filter(silent).map(|item| item.key.clone()).collect();
        }
        let draining =
            |key: &Key| world.get(key).and_then(|n| n.body::<Node>()).is_some_and(|n| n.drain || n.drain_told);
        let node = |instance: &Instance| Some(Key::new(KIND, "", &instance.node)).filter(draining);
        if item.key.kind() == service::KIND {
            // What it says of those that were asked to go, a drain repeats.
            let asked =
                world.children(item.uid()).filter_map(|one| one.body::<Instance>()).filter(|one| one.evict.is_some());
            return asked.filter_map(node).collect::<BTreeSet<Key>>().into_iter().collect();
        }
        if let Some(release) = item.body::<v1::ReleaseSpec>() {
            return Some(Key::new(KIND, "", &release.node)).filter(draining).into_iter().collect();
        }
        item.body::<Instance>().and_then(node).into_iter().collect()
    }

    fn plan(&self, view: &View<'_>, item: &Item) -> Decision {
        let Some(node) = item.body::<Node>() else {
            return Next::Blocked(Why::new("NotANode", "the record can't be read as a Node")).into();
        };
        let heard = hear(view, item, node);
        let drain = drain(view, item, node);
        let conditions = std::iter::once(heard.ready).chain(drain.condition).collect();
        let status = v1::NodeStatus {
            observed_generation: item.metadata().generation,
            silent_since: heard.silent_since.map(Into::into),
            conditions,
            ..Default::default()
        };
        let next = troubled(drain.next.map_or(heard.next.clone(), |next| by_time(next, &heard.next)), node);
        Decision { next, status: Some(any(STATUS, &status)) }
    }
}

/// What the agent's session says.
struct Heard {
    silent_since: Option<Time>,
    ready: v1::Condition,
    next: Next,
}

/// What a drain waits for changes nothing of when an agent's silence is to be judged.
fn by_time(next: Next, heard: &Next) -> Next {
    match (next, heard) {
        (Next::Wait(Until::Change, why) | Next::Blocked(why), Next::Wait(until @ Until::Time(_), _)) => {
            Next::Wait(*until, why)
        }
        (next, _) => next,
    }
}

/// Silence is noted, then called Unknown, each after a time that this view itself witnessed.
fn hear(view: &View<'_>, item: &Item, node: &Node) -> Heard {
    if view.world.agents().contains(item.key.name()) {
        let ready = condition(READY, Some(true), "AgentConnected", "its agent has a live session");
        let why = Why::new("AgentConnected", "its agent has a live session");
        return Heard { silent_since: None, ready, next: Next::Settled(why) };
    }
    let why = Why::new("AgentSilent", "its agent has no session");
    let since = match node.silent_since {
        Some(since) => since,
        None if view.now < view.live_since.plus(NOTED_AFTER) => {
            let next = Next::Wait(Until::Time(view.live_since.plus(NOTED_AFTER)), why);
            return Heard { silent_since: None, ready: as_before(node), next };
        }
        None => view.now,
    };
    let unknown_at = since.max(view.live_since).plus(UNKNOWN_AFTER);
    if view.now < unknown_at && node.ready {
        return Heard {
            silent_since: Some(since),
            ready: as_before(node),
            next: Next::Wait(Until::Time(unknown_at), why),
        };
    }
    let message = "its agent has had no session for a while; what runs there is not known, and keeps running";
    if service::brake(view) {
        let words = format!("{message}; {}", placement::BRAKE);
        let why = Why::new("AgentSilent", format!("{}; {}", why.message, placement::BRAKE)).because_of([Key::new(
            placement::KIND,
            "",
            placement::NAME,
        )]);
        let ready = condition(READY, None, "Brake", words);
        return Heard { silent_since: Some(since), ready, next: Next::Blocked(why) };
    }
    let words = format!("{message}; each service replaces it after its lost_after");
    let ready = condition(READY, None, "AgentSilent", words);
    Heard { silent_since: Some(since), ready, next: Next::Blocked(why) }
}

fn as_before(node: &Node) -> v1::Condition {
    match node.ready {
        true => condition(READY, Some(true), "AgentSilent", "its agent has no session"),
        false => condition(READY, None, "AgentSilent", "its agent has no session"),
    }
}

/// What its agent says is wrong belongs to whatever else there is to say. Where nothing else is, it's the answer: somebody
/// has to help, unless it passes by itself, or one may live with it.
fn troubled(next: Next, node: &Node) -> Next {
    if node.troubles.is_empty() {
        return next;
    }
    let told = node.troubles.iter().map(|trouble| trouble.message.as_str()).collect::<Vec<_>>().join("; ");
    let and = |why: Why| Why { message: format!("{}; {told}", why.message), ..why };
    let is = |name: &str| node.troubles.iter().find(|trouble| trouble.r#type == name);
    match next {
        Next::Do(..) => next,
        Next::Wait(until, why) => Next::Wait(until, and(why)),
        Next::Blocked(why) => Next::Blocked(and(why)),
        Next::Settled(why) => match (is(DRIVER_WORKS), is(CONFIRMED)) {
            (Some(_), _) => Next::Blocked(Why::new("NodeTrouble", told)),
            (None, Some(doubt)) if doubt.reason == STOPPING_STRAYS => {
                Next::Wait(Until::Change, Why::new(STOPPING_STRAYS, told))
            }
            (None, Some(_)) => Next::Blocked(Why::new("Unconfirmed", told)),
            (None, None) => Next::Settled(and(why)),
        },
    }
}

#[derive(Default)]
struct Drain {
    condition: Option<v1::Condition>,
    next: Option<Next>,
}

/// Asks for the eviction of what runs here, or still may; each service's plan grants it within its own budget. What is
/// finished stays: elsewhere it would run once more.
fn drain(view: &View<'_>, item: &Item, node: &Node) -> Drain {
    if !node.drain {
        return if node.drain_told { take_back(view, item) } else { Drain::default() };
    }
    let here: Vec<(&Item, &Instance)> =
        view.all::<Instance>(instance::KIND).filter(|(one, instance)| counts(one, instance, item)).collect();
    let unasked = here.iter().filter(|(item, instance)| !item.deleting() && instance.evict.is_none());
    let moves: Vec<Move> = unasked.take(BATCH).map(|(one, instance)| evict(one, instance, item, view.now)).collect();
    let held = held(view, &here);
    let still_here = format!("{} still here", count(here.len(), "instance"));
    let left = condition(DRAINED, Some(false), reason(&held), told(&still_here, &held));
    if !moves.is_empty() {
        let why = Why::new("Draining", format!("ask {} to go", count(moves.len(), "instance")));
        return Drain { condition: Some(left), next: Some(Next::Do(Step { verb: "evict", moves }, why)) };
    }
    if here.is_empty() {
        return emptied(view, item, node);
    }
    let names = here.iter().map(|(item, _)| item.key.clone());
    let why = Why::new("Draining", told(&still_here, &held)).because_of(held.into_keys().chain(names));
    Drain { condition: Some(left), next: Some(Next::Wait(Until::Change, why)) }
}

/// Nothing is bound to it any more. What was given up while its agent was silent may run all the same, until the agent says
/// that it doesn't.
fn emptied(view: &View<'_>, item: &Item, node: &Node) -> Drain {
    let here = |release: &v1::ReleaseSpec| release.node == item.key.name() && release::is_for(release, node);
    let given_up = view.all::<v1::ReleaseSpec>(release::KIND).filter(|(_, release)| here(release));
    let releases: Vec<Key> = given_up.map(|(one, _)| one.key.clone()).collect();
    if releases.is_empty() {
        let condition = condition(DRAINED, Some(true), "Drained", "nothing runs here any more");
        return Drain { condition: Some(condition), next: None };
    }
    let (name, given_up) = (item.key.name(), count(releases.len(), "instance"));
    let words = format!(
        "{given_up} given up while its agent was silent may still run here, until the agent is back and has stopped what \
         does; if the machine is off, 'driftless delete node {name}' ends the waiting"
    );
    let why = Why::new(GIVEN_UP, words.clone()).because_of(releases);
    let condition = condition(DRAINED, Some(false), GIVEN_UP, words);
    Drain { condition: Some(condition), next: Some(Next::Blocked(why)) }
}

/// It's no longer to be drained: what the drain asked to go, and no service let go yet, stays. What a user asked to go isn't
/// the drain's to take back.
fn take_back(view: &View<'_>, node: &Item) -> Drain {
    let ours = drain_of(node.key.name());
    let asked = |instance: &Instance| instance.evict.as_ref().is_some_and(|evict| evict.requested_by == ours);
    let here = view
        .all::<Instance>(instance::KIND)
        .filter(|(one, instance)| instance.node == node.key.name() && !one.deleting() && asked(instance));
    let moves: Vec<Move> = here.take(BATCH).map(|(one, instance)| say(one, instance, None)).collect();
    if moves.is_empty() {
        return Drain::default();
    }
    let words = format!("the drain was taken back: {} asked to go may stay", count(moves.len(), "instance"));
    // As long as it's there, there may be more of them.
    let condition = condition(DRAINED, Some(false), TAKEN_BACK, words.clone());
    let why = Why::new(TAKEN_BACK, words);
    Drain { condition: Some(condition), next: Some(Next::Do(Step { verb: "keep", moves }, why)) }
}

/// The services that don't let go of something here, each with what it says of that.
fn held<'a>(view: &View<'a>, here: &[(&Item, &Instance)]) -> BTreeMap<Key, &'a v1::Condition> {
    let asked = here.iter().filter(|(item, instance)| !item.deleting() && instance.evict.is_some());
    let owners: BTreeSet<Key> =
        asked.filter_map(|(item, _)| item.metadata().owner.as_ref()).map(Key::of_owner).collect();
    let said = |key: &Key| {
        let service = view.world.get(key)?.body::<Service>()?;
        service.status.conditions.iter().find(|condition| condition.r#type == evictions::HELD)
    };
    owners.into_iter().filter_map(|key| said(&key).map(|said| (key, said))).collect()
}

/// What somebody has to do something about comes first.
fn reason<'a>(held: &BTreeMap<Key, &'a v1::Condition>) -> &'a str {
    let stuck = held.values().map(|said| said.reason.as_str()).find(|reason| *reason != evictions::WAITING);
    stuck.unwrap_or(DRAINING)
}

fn told(still_here: &str, held: &BTreeMap<Key, &v1::Condition>) -> String {
    let said = held.iter().take(SERVICES_TOLD).map(|(service, said)| format!("; {service}: {}", said.message));
    let more = match held.len().saturating_sub(SERVICES_TOLD) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{still_here}{}{more}", said.collect::<String>())
}

fn counts(one: &Item, instance: &Instance, node: &Item) -> bool {
    instance.node == node.key.name() && (!instance.is_finished() || one.deleting())
}

fn evict(one: &Item, instance: &Instance, node: &Item, now: Time) -> Move {
    say(one, instance, Some(v1::Eviction { requested_by: drain_of(node.key.name()), time: Some(now.into()) }))
}

fn say(one: &Item, instance: &Instance, evict: Option<v1::Eviction>) -> Move {
    let status = v1::InstanceStatus { evict, ..instance.leaders() };
    Move::SetStatus { key: one.key.clone(), uid: one.uid().into(), status: any(instance::STATUS, &status) }
}
