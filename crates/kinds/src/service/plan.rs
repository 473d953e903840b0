//! What should happen next to one service. Read this first: everything else exists to run it, again and again.
//!
//! It sees the service and its instances, and takes one step: it makes missing instances, or stops superfluous ones,
//! within two bounds that hold at every moment, whatever happened before and however many updates came in a row:
//!
//! - never more than `replicas + surge` instances exist, those still stopping included;
//! - no step takes the number of ready ones below `replicas - unavailable`, unless it was there already; an instance that
//!   isn't ready may always go.

use std::collections::BTreeSet;

use api::v1;
use model::{Decision, Draft, Key, Move, Next, Step, Until, Why, condition};

use super::{KIND, PROGRESSING, READY, STATUS, Service};
use crate::{
    Item, Lookup, Reconciler, Scope, View, any,
    instance::{self, Instance},
    text::count,
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

    fn wakes(&self, item: &Item) -> Vec<Key> {
        let owner = item.metadata().owner.as_ref().filter(|o| o.kind == KIND).map(Key::of_owner);
        let own = (item.key.kind() == KIND).then(|| item.key.clone());
        own.into_iter().chain(owner).collect()
    }

    fn plan(&self, view: &View<'_>, item: &Item) -> Decision {
        let Some(service) = item.body::<Service>() else {
            return Next::Blocked(Why::new("NotAService", "the record can't be read as a Service")).into();
        };
        let fleet = Fleet::of(view, item);
        if item.deleting() {
            return delete(item, &fleet);
        }
        let next = remove_unbound(&fleet)
            .or_else(|| stop_excess(service, &fleet))
            .or_else(|| create(view, item, service, &fleet))
            .or_else(|| replace(service, &fleet))
            .unwrap_or_else(|| rest(service, &fleet));
        let status = status(item, service, &fleet.after(&next), &next);
        Decision { next, status: Some(any(STATUS, &status)) }
    }
}

/// The service's instances, by what may be done with them.
#[derive(Default)]
struct Fleet<'a> {
    /// Of the declared template.
    updated: Vec<One<'a>>,
    /// Of another template.
    outdated: Vec<One<'a>>,
    /// Asked to go; they hold their slots until their trees are gone.
    stopping: Vec<One<'a>>,
}

#[derive(Clone, Copy)]
struct One<'a> {
    item: &'a Item,
    instance: &'a Instance,
}

impl<'a> Fleet<'a> {
    fn of(view: &View<'a>, service: &'a Item) -> Self {
        let mut fleet = Self::default();
        for (item, instance) in view.children_of::<Instance>(service.uid()) {
            let one = One { item, instance };
            if item.deleting() {
                fleet.stopping.push(one);
            } else if instance.template_hash == service.metadata().template_hash {
                fleet.updated.push(one);
            } else {
                fleet.outdated.push(one);
            }
        }
        fleet
    }

    fn wanted(&self) -> impl Iterator<Item = One<'a>> {
        self.updated.iter().chain(&self.outdated).copied()
    }

    fn all(&self) -> impl Iterator<Item = One<'a>> {
        self.wanted().chain(self.stopping.iter().copied())
    }

    fn ready(&self) -> usize {
        ready(self.wanted())
    }

    /// What is counted once the step is done.
    fn after(&self, next: &Next) -> Counts {
        let mut counts = Counts {
            replicas: self.updated.len() + self.outdated.len(),
            ready: self.ready(),
            updated: self.updated.len(),
            outdated: self.outdated.len(),
            stopping: self.stopping.len(),
            trouble: self.trouble(),
        };
        let Next::Do(step, _) = next else { return counts };
        for change in &step.moves {
            match change {
                Move::Create(_) => {
                    counts.replicas += 1;
                    counts.updated += 1;
                }
                Move::Delete { key, .. } => counts.stop(self, key),
                Move::Remove { .. } => counts.stopping = counts.stopping.saturating_sub(1),
                Move::SetSpec { .. } | Move::SetStatus { .. } => {}
            }
        }
        counts
    }

    /// What the first troubled instance of the declared template says.
    fn trouble(&self) -> Option<String> {
        let one = self.updated.iter().find_map(|one| Some((one.item.key.name(), one.instance.trouble()?)));
        one.map(|(name, words)| format!("{name}: {words}"))
    }
}

#[derive(Clone, Debug)]
struct Counts {
    replicas: usize,
    ready: usize,
    updated: usize,
    outdated: usize,
    stopping: usize,
    trouble: Option<String>,
}

impl Counts {
    fn stop(&mut self, fleet: &Fleet<'_>, key: &Key) {
        let is = |one: &One<'_>| one.item.key == *key;
        self.replicas -= 1;
        self.stopping += 1;
        self.ready -= fleet.wanted().filter(|one| is(one) && one.instance.ready).count();
        self.updated -= fleet.updated.iter().filter(|one| is(one)).count();
        self.outdated -= fleet.outdated.iter().filter(|one| is(one)).count();
    }
}

fn ready<'a>(fleet: impl Iterator<Item = One<'a>>) -> usize {
    fleet.filter(|one| one.instance.ready).count()
}

/// Asked to go before it had a node: no agent will ever say that it's gone.
fn remove_unbound(fleet: &Fleet<'_>) -> Option<Next> {
    let unbound = fleet.stopping.iter().filter(|one| one.instance.node.is_empty());
    let moves: Vec<Move> = unbound.take(BATCH).map(|one| one.remove()).collect();
    let why = Why::new("NeverPlaced", format!("forget {} that never ran", count(moves.len(), "instance")));
    step("remove", moves, why)
}

/// Fewer replicas were declared: the surplus goes, unready and high slots first.
fn stop_excess(service: &Service, fleet: &Fleet<'_>) -> Option<Next> {
    let excess = fleet.updated.len().saturating_sub(service.replicas);
    let mut victims = fleet.updated.clone();
    victims.sort_by_key(|one| (one.instance.ready, std::cmp::Reverse(one.instance.slot)));
    let moves: Vec<Move> = victims.iter().take(excess.min(BATCH)).map(|one| one.stop()).collect();
    let why =
        Why::new("TooMany", format!("{} of {} declared: stop {}", fleet.updated.len(), service.replicas, moves.len()));
    step("stop", moves, why)
}

/// Missing ones are made, in the lowest free slots, as far as the surge allows.
fn create(view: &View<'_>, item: &Item, service: &Service, fleet: &Fleet<'_>) -> Option<Next> {
    let missing = service.replicas.saturating_sub(fleet.updated.len());
    let room = (service.replicas + service.surge).saturating_sub(fleet.all().count());
    let taken: BTreeSet<u32> = fleet.all().map(|one| one.instance.slot).collect();
    let slots = (0..).filter(|slot| !taken.contains(slot)).take(missing.min(room).min(BATCH));
    let drafts: Vec<Draft> = slots.map(|slot| draft(item, service, slot)).collect();
    if let Some(foreign) = drafts.iter().find(|draft| view.world.get(&draft.key).is_some()) {
        let words = format!("{} exists and isn't this service's; delete it or rename one of them", foreign.key);
        return Some(Next::Blocked(Why::new("NameTaken", words).because_of([foreign.key.clone()])));
    }
    let moves: Vec<Move> = drafts.into_iter().map(|draft| Move::Create(Box::new(draft))).collect();
    let why =
        Why::new("TooFew", format!("{} of {} declared: make {}", fleet.updated.len(), service.replicas, moves.len()));
    step("create", moves, why)
}

/// Old ones go: those that aren't ready at once, ready ones as far as enough others are.
fn replace(service: &Service, fleet: &Fleet<'_>) -> Option<Next> {
    let floor = service.replicas.saturating_sub(service.unavailable);
    let spare = fleet.ready().saturating_sub(floor);
    let (up, down): (Vec<One<'_>>, Vec<One<'_>>) = fleet.outdated.iter().partition(|one| one.instance.ready);
    let mut up = up;
    up.sort_by_key(|one| std::cmp::Reverse(one.instance.slot));
    let victims = down.iter().chain(up.iter().take(spare));
    let moves: Vec<Move> = victims.take(BATCH).map(|one| one.stop()).collect();
    let why = Why::new("Outdated", format!("{} of another template: stop {}", fleet.outdated.len(), moves.len()));
    step("stop", moves, why)
}

/// Nothing to do now.
fn rest(service: &Service, fleet: &Fleet<'_>) -> Next {
    let ready = ready(fleet.updated.iter().copied());
    if !fleet.stopping.is_empty() && fleet.outdated.is_empty() && ready >= service.replicas {
        let names = fleet.stopping.iter().map(|one| one.item.key.clone());
        let words = format!("{} still stopping", count(fleet.stopping.len(), "instance"));
        return Next::Wait(Until::Change, Why::new("Stopping", words).because_of(names));
    }
    if ready >= service.replicas && fleet.outdated.is_empty() {
        return Next::Settled(Why::new("AllReady", format!("{ready} of {} ready", service.replicas)));
    }
    let waiting = fleet.updated.iter().filter(|one| !one.instance.ready).map(|one| one.item.key.clone());
    let words = format!("{ready} of {} ready", service.replicas);
    Next::Wait(Until::Change, Why::new("NotReady", words).because_of(waiting))
}

/// Children first, then the record.
fn delete(item: &Item, fleet: &Fleet<'_>) -> Decision {
    let wanted: Vec<Move> = fleet.wanted().take(BATCH).map(|one| one.stop()).collect();
    let why = Why::new("Deleting", format!("stop {}", count(wanted.len(), "instance")));
    let next = step("stop", wanted, why).or_else(|| remove_unbound(fleet)).unwrap_or_else(|| {
        if !fleet.stopping.is_empty() {
            let words = format!("waits for {} to stop", count(fleet.stopping.len(), "instance"));
            let names = fleet.stopping.iter().map(|one| one.item.key.clone());
            return Next::Wait(Until::Change, Why::new("Deleting", words).because_of(names));
        }
        if let Some(finalizer) = item.metadata().finalizers.first() {
            return Next::Blocked(Why::new("Finalizer", format!("held by finalizer {finalizer:?}")));
        }
        let remove = Move::Remove { key: item.key.clone(), uid: item.uid().into() };
        Next::Do(Step { verb: "remove", moves: vec![remove] }, Why::new("Deleted", "every instance is gone"))
    });
    next.into()
}

fn step(verb: &'static str, moves: Vec<Move>, why: Why) -> Option<Next> {
    (!moves.is_empty()).then_some(Next::Do(Step { verb, moves }, why))
}

impl One<'_> {
    fn stop(&self) -> Move {
        Move::Delete { key: self.item.key.clone(), uid: self.item.uid().into() }
    }

    fn remove(&self) -> Move {
        Move::Remove { key: self.item.key.clone(), uid: self.item.uid().into() }
    }
}

/// An instance's name follows from its parent, so that a repeated create collides.
fn draft(item: &Item, service: &Service, slot: u32) -> Draft {
    let metadata = item.metadata();
    let spec = v1::InstanceSpec {
        template: Some(service.template.clone()),
        slot: i32::try_from(slot).unwrap_or(i32::MAX),
        version: service.version.clone(),
        template_hash: metadata.template_hash.clone(),
        ..Default::default()
    };
    Draft {
        key: item.key.sibling(instance::KIND, &format!("{}-{}-{slot}", metadata.name, metadata.template_hash)),
        labels: metadata.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        spec: any(instance::SPEC, &spec),
        status: None,
    }
}

fn status(item: &Item, service: &Service, counts: &Counts, next: &Next) -> v1::ServiceStatus {
    let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let complete = counts.updated == service.replicas && counts.outdated == 0 && counts.ready >= service.replicas;
    v1::ServiceStatus {
        observed_generation: item.metadata().generation,
        conditions: conditions(service, counts, complete, next),
        replicas: small(counts.replicas),
        ready_replicas: small(counts.ready),
        updated_replicas: small(counts.updated),
    }
}

fn conditions(service: &Service, counts: &Counts, complete: bool, next: &Next) -> Vec<v1::Condition> {
    if complete {
        let words = format!("{} of {} ready", counts.ready, service.replicas);
        return vec![
            condition(PROGRESSING, Some(false), "Complete", "every instance is of the declared template"),
            condition(READY, Some(true), "AllReady", words),
        ];
    }
    let mut words = format!("{} of {} ready, {} updated", counts.ready, service.replicas, counts.updated);
    let mut reason = "Progressing";
    if let Next::Blocked(why) = next {
        reason = why.reason;
        words = format!("{words}; {}", why.message);
    } else if let Some(trouble) = &counts.trouble {
        reason = "InstancesFailing";
        words = format!("{words}; {trouble}");
    }
    vec![condition(PROGRESSING, Some(true), reason, words.clone()), condition(READY, Some(false), reason, words)]
}
