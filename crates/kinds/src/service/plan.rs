//! What should happen next to one service. Read this first: everything else exists to run it, again and again.
//!
//! It sees the service and its instances, and takes one step: it makes missing instances, or stops superfluous ones,
//! within bounds that hold at every moment, whatever happened before and however many updates came in a row:
//!
//! - never more than `replicas + surge` instances are live, those still stopping included, also on a node that isn't heard:
//!   what was asked to go there runs until it's known to have ended, or until it's lost;
//! - no step of a rollout takes the number of ready ones below `replicas - unavailable`, and no granted eviction below
//!   `min_available`; an instance that isn't ready may always go.
//!
//! It is the only place that stops instances voluntarily, so the disruption budget is debited here and nowhere else.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::v1;
use model::{Decision, Draft, Key, Move, Next, Step, Until, Why};

use super::{
    KIND, STATUS, Service,
    fleet::{Fleet, One},
    rest::{and_unheard, rest},
    status,
    target::{Going, Target},
    template,
};
use crate::{
    Item, Reconciler, Scope, View, World, any, config,
    instance::{self, Instance},
    node::{self, Node},
    placement,
    text::{count, held_by},
};

/// Moves in one step.
const BATCH: usize = 100;

pub struct Services;

impl Reconciler for Services {
    fn name(&self) -> &'static str {
        "service"
    }

    fn kind(&self) -> &'static str {
        KIND
    }

    fn scope(&self) -> Scope {
        Scope::Shard
    }

    fn wakes(&self, world: &World, item: &Item) -> Vec<Key> {
        match item.key.kind() {
            KIND => vec![item.key.clone()],
            node::KIND => owners_on(world, |node| node == item.key.name()),
            // The brake may have been lifted: what is on silent nodes counts differently then.
            placement::KIND => owners_on_silent(world),
            config::KIND => users_of(world, &item.key),
            _ => item.metadata().owner.as_ref().filter(|o| o.kind == KIND).map(Key::of_owner).into_iter().collect(),
        }
    }

    fn plan(&self, view: &View<'_>, item: &Item) -> Decision {
        let Some(service) = item.body::<Service>() else {
            return Next::Blocked(Why::new("NotAService", "the record can't be read as a Service")).into();
        };
        let target = match Target::of(view, item, service) {
            Ok(target) => target,
            Err(why) => return blocked(view, item, service, why),
        };
        let fleet = Fleet::of(view, item, service, &target);
        if item.deleting() {
            return delete(view, item, service, &fleet);
        }
        let next = forget(view, &fleet)
            .or_else(|| stop_excess(service, &fleet))
            .or_else(|| create(view, item, service, &target, &fleet))
            .or_else(|| grant(service, &fleet))
            .or_else(|| replace(service, &fleet));
        let going = Going::of(service, &target, ready(&fleet.updated), complete(service, &fleet), view.now);
        let next = next.unwrap_or_else(|| rest(service, &target, &fleet, &going));
        let status = status::of(item, service, &target, &fleet, &going, &next);
        Decision { next, status: Some(template::with_good_whole(any(STATUS, &status), item, &target)) }
    }
}

/// Services with instances on such a node.
fn owners_on(world: &World, is: impl Fn(&str) -> bool) -> Vec<Key> {
    let here = world.of_kind(instance::KIND).filter(|item| item.body::<Instance>().is_some_and(|i| is(&i.node)));
    let owners: BTreeSet<Key> = here.filter_map(|item| item.metadata().owner.as_ref()).map(Key::of_owner).collect();
    owners.into_iter().collect()
}

fn owners_on_silent(world: &World) -> Vec<Key> {
    let is_silent = |item: &&Arc<Item>| item.body::<Node>().is_some_and(|node| node.silent_since.is_some());
    let silent: BTreeSet<&str> = world.of_kind(node::KIND).filter(is_silent).map(|item| item.key.name()).collect();
    // The record changes with each placement; most of the time there is nothing to look for.
    if silent.is_empty() { Vec::new() } else { owners_on(world, |node| silent.contains(node)) }
}

/// Services that take environment from that Config.
fn users_of(world: &World, config: &Key) -> Vec<Key> {
    let uses = |service: &Service| service.template.env_from.iter().any(|from| from.config == config.name());
    let services = world.of_kind(KIND).filter(|item| item.key.namespace() == config.namespace());
    services.filter(|item| item.body::<Service>().is_some_and(uses)).map(|item| item.key.clone()).collect()
}

pub fn ready(fleet: &[One<'_>]) -> usize {
    fleet.iter().filter(|one| one.available).count()
}

/// Everything declared is there, and nothing else is wanted.
pub fn complete(service: &Service, fleet: &Fleet<'_>) -> bool {
    fleet.updated.len() == service.replicas
        && ready(&fleet.updated) == service.replicas
        && fleet.outdated.is_empty()
        && fleet.evicting.is_empty()
}

/// Records that nobody else will ever remove: asked to go before they had a node, or on a node that is lost.
fn forget(view: &View<'_>, fleet: &Fleet<'_>) -> Option<Next> {
    let unbound = fleet.stopping.iter().filter(|one| one.instance.node.is_empty());
    let moves: Vec<Move> = unbound.take(BATCH).map(One::remove).collect();
    let why = Why::new("NeverPlaced", format!("forget {} that never ran", count(moves.len(), "instance")));
    step("remove", moves, why).or_else(|| ask_orphans(fleet)).or_else(|| {
        let lost: Vec<&One<'_>> = fleet.lost.iter().take(BATCH / 2).collect();
        let moves: Vec<Move> = lost.iter().flat_map(|one| one.release(view)).collect();
        let names = lost.iter().map(|one| Key::new(node::KIND, "", &one.instance.node)).collect::<BTreeSet<Key>>();
        let why = Why::new("NodeLost", format!("give up {} on lost nodes", count(lost.len(), "instance")));
        step("release", moves, why.because_of(names))
    })
}

/// What must not run twice, of a node whose record was deleted: told to go, so that there's a time from which on it's lost.
fn ask_orphans(fleet: &Fleet<'_>) -> Option<Next> {
    let moves: Vec<Move> = fleet.orphaned.iter().take(BATCH).map(One::stop).collect();
    let words = format!("stop {} of a node that was deleted", count(moves.len(), "instance"));
    step("stop", moves, Why::new("NodeGone", words))
}

/// Fewer replicas were declared: the surplus goes, unready and high slots first.
fn stop_excess(service: &Service, fleet: &Fleet<'_>) -> Option<Next> {
    let excess = fleet.updated.len().saturating_sub(service.replicas);
    let mut victims = fleet.updated.clone();
    victims.sort_by_key(|one| (one.available, std::cmp::Reverse(one.instance.slot)));
    let moves: Vec<Move> = victims.iter().take(excess.min(BATCH)).map(One::stop).collect();
    let words = format!("{} of {} declared: stop {}", fleet.updated.len(), service.replicas, moves.len());
    step("stop", moves, Why::new("TooMany", words))
}

/// Missing ones are made, in the lowest free slots, as far as the surge allows.
fn create(view: &View<'_>, item: &Item, service: &Service, target: &Target, fleet: &Fleet<'_>) -> Option<Next> {
    // A paused rollout makes none in exchange for others, yet what is missing altogether is made.
    let kept = if service.pause { fleet.outdated.len() } else { 0 };
    let missing = service.replicas.saturating_sub(fleet.updated.len() + kept + fleet.held);
    let room = (service.replicas + service.surge).saturating_sub(fleet.live().count());
    let taken: BTreeSet<u32> = fleet.all().map(|one| one.instance.slot).collect();
    let slots = (0..).filter(|slot| !taken.contains(slot)).take(missing.min(room).min(BATCH));
    let drafts: Vec<Draft> = slots.map(|slot| draft(item, target, slot)).collect();
    if let Some(foreign) = drafts.iter().find(|draft| view.world.get(&draft.key).is_some()) {
        let words = format!("{} exists and isn't this service's; delete it or rename one of them", foreign.key);
        return Some(Next::Blocked(Why::new("NameTaken", words).because_of([foreign.key.clone()])));
    }
    let moves: Vec<Move> = drafts.into_iter().map(|draft| Move::Create(Box::new(draft))).collect();
    let words = format!("{} of {} declared: make {}", fleet.updated.len(), service.replicas, moves.len());
    step("create", moves, Why::new("TooFew", words))
}

/// Evictions are granted as far as enough others are ready, on nodes that are heard; for an instance that isn't ready
/// nothing is lost.
fn grant(service: &Service, fleet: &Fleet<'_>) -> Option<Next> {
    let spare = fleet.vouched().saturating_sub(service.floor());
    let moves = victims(&fleet.evicting, spare);
    let by = fleet.evicting.first().and_then(|one| one.instance.evict.as_ref()).map(|e| e.requested_by.clone());
    let words = format!("stop {}, asked for by {}", count(moves.len(), "instance"), by.unwrap_or_default());
    step("stop", moves, Why::new("Evicted", words))
}

/// Old ones go: those that aren't ready at once, ready ones as far as enough others are.
fn replace(service: &Service, fleet: &Fleet<'_>) -> Option<Next> {
    if service.pause {
        return None;
    }
    let floor = service.replicas.saturating_sub(service.unavailable);
    let moves = victims(&fleet.outdated, fleet.available().saturating_sub(floor));
    let words = format!("{} of another template: stop {}", fleet.outdated.len(), moves.len());
    step("stop", moves, Why::new("Outdated", words))
}

/// All that aren't ready, and so many that are; high slots first.
fn victims(fleet: &[One<'_>], spare: usize) -> Vec<Move> {
    let (mut up, down): (Vec<One<'_>>, Vec<One<'_>>) = fleet.iter().partition(|one| one.available);
    up.sort_by_key(|one| std::cmp::Reverse(one.instance.slot));
    down.iter().chain(up.iter().take(spare)).take(BATCH).map(One::stop).collect()
}

/// What its instances are made of isn't known: whatever runs keeps running.
fn blocked(view: &View<'_>, item: &Item, service: &Service, why: Why) -> Decision {
    let unknown = Target {
        hash: String::new(),
        version: String::new(),
        template: v1::InstanceTemplate::default(),
        declared: String::new(),
        configs: BTreeMap::new(),
    };
    let fleet = Fleet::of(view, item, service, &unknown);
    if item.deleting() {
        return delete(view, item, service, &fleet);
    }
    let next = Next::Blocked(why);
    let status = status::of(item, service, &unknown, &fleet, &Going::default(), &next);
    Decision { next, status: Some(template::with_good_whole(any(STATUS, &status), item, &unknown)) }
}

/// Children first, then the record.
fn delete(view: &View<'_>, item: &Item, service: &Service, fleet: &Fleet<'_>) -> Decision {
    let wanted: Vec<Move> = fleet.wanted().take(BATCH).map(|one| one.stop()).collect();
    let why = Why::new("Deleting", format!("stop {}", count(wanted.len(), "instance")));
    let next = step("stop", wanted, why).or_else(|| forget(view, fleet)).unwrap_or_else(|| {
        if !fleet.stopping.is_empty() {
            let stopping = count(fleet.stopping.len(), "instance");
            let words = format!("waits for {stopping} to stop{}", and_unheard(service, fleet));
            let names = fleet.stopping.iter().map(|one| one.item.key.clone());
            let until = fleet.wake.map_or(Until::Change, Until::Time);
            return Next::Wait(until, Why::new("Deleting", words).because_of(names));
        }
        if let Some(finalizer) = item.metadata().finalizers.first() {
            let words = held_by(&item.key, finalizer);
            return Next::Blocked(Why::new("Finalizer", words));
        }
        let remove = Move::Remove { key: item.key.clone(), uid: item.uid().into() };
        Next::Do(Step { verb: "remove", moves: vec![remove] }, Why::new("Deleted", "every instance is gone"))
    });
    next.into()
}

fn step(verb: &'static str, moves: Vec<Move>, why: Why) -> Option<Next> {
    (!moves.is_empty()).then_some(Next::Do(Step { verb, moves }, why))
}

/// An instance's name follows from its parent, so that a repeated create collides.
fn draft(item: &Item, target: &Target, slot: u32) -> Draft {
    let metadata = item.metadata();
    let spec = v1::InstanceSpec {
        template: Some(target.template.clone()),
        slot: i32::try_from(slot).unwrap_or(i32::MAX),
        version: target.version.clone(),
        template_hash: target.hash.clone(),
        ..Default::default()
    };
    Draft {
        key: item.key.sibling(instance::KIND, &format!("{}-{}-{slot}", metadata.name, target.hash)),
        labels: metadata.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        spec: template::with_unknown(any(instance::SPEC, &spec), item, target),
        status: None,
    }
}
