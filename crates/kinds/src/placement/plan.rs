//! Where should each unbound instance run? Works under `leader`, on one key, up to `BATCH` binds a step.
//!
//! The node with the fewest instances of the same service wins, then the one with the smallest share of its cpu or
//! memory reserved, then the one with the fewest instances, then the first by name.

use std::collections::BTreeMap;

use api::v1;
use model::{Decision, Key, Move, Next, Step, Why, condition};

use super::{
    BRAKE, KIND, REACHABLE, STATUS,
    reserved::{Reserved, most, signed},
};
use crate::{
    Item, Lookup, Reconciler, Scope, View, World, any,
    instance::{self, Instance, PLACED},
    node::{self, Node},
    service,
    text::count,
};

/// Binds in one step.
const BATCH: usize = 100;
/// Silent nodes that `why` goes on to.
const NODES_TOLD: usize = 3;

pub struct Placements;

impl Reconciler for Placements {
    fn name(&self) -> &'static str {
        "placement"
    }

    fn kind(&self) -> &'static str {
        KIND
    }

    fn scope(&self) -> Scope {
        Scope::Leader
    }

    fn serves_many(&self) -> bool {
        true
    }

    fn wakes(&self, _world: &World, item: &Item) -> Vec<Key> {
        let look = match item.body::<Instance>() {
            // Bound ones matter too: one that goes gives room.
            Some(instance) => instance.node.is_empty() || item.deleting(),
            None => matches!(item.key.kind(), KIND | node::KIND),
        };
        if look { vec![Key::new(KIND, "", super::NAME)] } else { Vec::new() }
    }

    fn plan(&self, view: &View<'_>, _item: &Item) -> Decision {
        let unbound: Vec<(&Item, &Instance)> = view
            .all::<Instance>(instance::KIND)
            .filter(|(item, instance)| instance.node.is_empty() && !item.deleting())
            .collect();
        if unbound.is_empty() {
            return decision(view, 0, placed(view));
        }
        let mut nodes = Rooms::of(view);
        let mut binds = Vec::new();
        let mut explanations = Vec::new();
        for (item, instance) in &unbound {
            match nodes.take(item, instance) {
                Ok(room) if binds.len() < BATCH => binds.push(bind(item, instance, room)),
                Ok(_) => break,
                Err(why) => explanations.extend(explain(item, instance, &why)),
            }
        }
        next(view, unbound.len(), binds, explanations)
    }
}

fn placed(view: &View<'_>) -> Next {
    let words = "every instance has a node";
    if !service::brake(view) {
        return Next::Settled(Why::new("AllPlaced", words));
    }
    let silent = view.all::<Node>(node::KIND).filter(|(_, node)| node.silent_since.is_some());
    let nodes = silent.take(NODES_TOLD).map(|(item, _)| item.key.clone());
    Next::Blocked(Why::new("Brake", format!("{words}; {BRAKE}")).because_of(nodes))
}

/// Binds first; then what can't be bound is told why; then there is nothing but to wait.
fn next(view: &View<'_>, unbound: usize, binds: Vec<Move>, mut explanations: Vec<Move>) -> Decision {
    let left = unbound - binds.len();
    if !binds.is_empty() {
        let why = Why::new("Placing", format!("bind {}", count(binds.len(), "instance")));
        return decision(view, left, Next::Do(Step { verb: "bind", moves: binds }, why));
    }
    let fit = if left == 1 { "fits" } else { "fit" };
    let braked = if service::brake(view) { format!("; {BRAKE}") } else { String::new() };
    let why = Why::new("Unplaceable", format!("{} {fit} on no node{braked}", count(left, "instance")));
    if explanations.is_empty() {
        return decision(view, left, Next::Blocked(why));
    }
    explanations.truncate(BATCH);
    decision(view, left, Next::Do(Step { verb: "explain", moves: explanations }, why))
}

fn decision(view: &View<'_>, unplaced: usize, next: Next) -> Decision {
    let reason = if unplaced == 0 { "AllPlaced" } else { "Unplaceable" };
    let words = if unplaced == 0 { "every instance has a node" } else { &next.why().message };
    let placed = condition(PLACED, Some(unplaced == 0), reason, words);
    let status = v1::PlacementStatus {
        observed_generation: 1,
        conditions: vec![placed, reachable(view)],
        unplaced: i32::try_from(unplaced).unwrap_or(i32::MAX),
    };
    // While binds go on the record changes with each step anyway; its status is said once they are through.
    let status = (!matches!(&next, Next::Do(step, _) if step.verb == "bind")).then(|| any(STATUS, &status));
    Decision { next, status }
}

/// The alarm of the brake: so many nodes are silent that nothing is given up.
fn reachable(view: &View<'_>) -> v1::Condition {
    match service::brake(view) {
        true => condition(REACHABLE, Some(false), "Brake", BRAKE),
        false => condition(REACHABLE, Some(true), "EnoughNodes", "at least half of the nodes are heard"),
    }
}

fn bind(item: &Item, instance: &Instance, room: &Room) -> Move {
    let spec = v1::InstanceSpec { node: room.name.clone(), node_uid: room.uid.clone(), ..Default::default() };
    let placed = instance.condition(PLACED).map(|_| {
        let placed = condition(PLACED, Some(true), "Placed", format!("on {}", room.name));
        any(instance::STATUS, &v1::InstanceStatus { conditions: vec![placed], ..instance.leaders() })
    });
    Move::SetSpec { key: item.key.clone(), uid: item.uid().into(), spec: any(instance::SPEC, &spec), status: placed }
}

/// None where it was told so already.
fn explain(item: &Item, instance: &Instance, why: &str) -> Option<Move> {
    if instance.condition(PLACED).is_some_and(|c| c.status == "False" && c.message == why) {
        return None;
    }
    let placed = condition(PLACED, Some(false), "Unplaceable", why);
    let status = v1::InstanceStatus { conditions: vec![placed], ..instance.leaders() };
    Some(Move::SetStatus { key: item.key.clone(), uid: item.uid().into(), status: any(instance::STATUS, &status) })
}

/// What is free on one node.
struct Room {
    name: String,
    uid: String,
    /// Why nothing new may go there at all.
    closed: Option<&'static str>,
    capacity: v1::Capacity,
    reserved: Reserved,
    /// Instances by their owner's uid.
    owners: BTreeMap<String, u32>,
}

struct Rooms(Vec<Room>);

impl Rooms {
    fn of(view: &View<'_>) -> Self {
        let mut rooms: Vec<Room> =
            view.all::<Node>(node::KIND).map(|(item, node)| Room::of(view, item, node)).collect();
        let index: BTreeMap<String, usize> = rooms.iter().enumerate().map(|(i, r)| (r.name.clone(), i)).collect();
        for (item, instance) in view.all::<Instance>(instance::KIND) {
            if let Some(room) = index.get(&instance.node) {
                rooms[*room].add(item, instance);
            }
        }
        Self(rooms)
    }

    /// Reserves room for it on the best node, or says what was missing on each.
    fn take(&mut self, item: &Item, instance: &Instance) -> Result<&Room, String> {
        if self.0.is_empty() {
            return Err("there is no node: start an agent (driftless agent --node NAME)".into());
        }
        let refusals: Vec<Option<String>> = self.0.iter().map(|room| room.refuses(instance)).collect();
        let best = (0..self.0.len()).filter(|i| refusals[*i].is_none()).min_by_key(|i| self.0[*i].load(item));
        match best {
            Some(i) => {
                self.0[i].add(item, instance);
                Ok(&self.0[i])
            }
            None => {
                let rooms = self.0.iter().zip(refusals);
                let words: Vec<String> =
                    rooms.map(|(r, why)| format!("{}: {}", r.name, why.unwrap_or_default())).collect();
                Err(format!("fits on no node: {}", words.join("; ")))
            }
        }
    }
}

impl Room {
    fn of(view: &View<'_>, item: &Item, node: &Node) -> Self {
        let closed = if item.deleting() {
            Some("being removed")
        } else if node.drain {
            Some("being drained")
        } else if node.cordon {
            Some("cordoned")
        } else if !view.world.agents().contains(item.key.name()) {
            Some("its agent is not connected")
        } else {
            None
        };
        Self {
            name: item.key.name().into(),
            uid: item.uid().into(),
            closed,
            capacity: node.capacity,
            reserved: Reserved::default(),
            owners: BTreeMap::new(),
        }
    }

    fn add(&mut self, item: &Item, instance: &Instance) {
        self.reserved.add(instance);
        *self.owners.entry(item.owner_uid().into()).or_default() += 1;
    }

    fn refuses(&self, instance: &Instance) -> Option<String> {
        if let Some(closed) = self.closed {
            return Some(closed.into());
        }
        let most = most(&self.capacity);
        let cpu = self.capacity.cpu_millis.saturating_sub(self.reserved.cpu_millis);
        let memory = self.capacity.memory_bytes.saturating_sub(self.reserved.memory_bytes);
        if self.reserved.instances >= most {
            Some(format!("full ({})", count(usize::try_from(most).unwrap_or(0), "instance")))
        } else if signed(instance.cpu_millis) > cpu.max(0) {
            Some(format!("{}m cpu free, {}m asked for", cpu.max(0), instance.cpu_millis))
        } else if signed(instance.memory_bytes) > memory.max(0) {
            Some(format!("{} Mi memory free, {} Mi asked for", memory.max(0) >> 20, instance.memory_bytes >> 20))
        } else {
            None
        }
    }

    /// Smaller is better.
    fn load(&self, item: &Item) -> (u32, i64, i32, String) {
        let same = self.owners.get(item.owner_uid()).copied().unwrap_or(0);
        let share = |used: i64, of: i64| used.saturating_mul(1_000) / of.max(1);
        let reserved = share(self.reserved.cpu_millis, self.capacity.cpu_millis)
            .max(share(self.reserved.memory_bytes, self.capacity.memory_bytes));
        (same, reserved, self.reserved.instances, self.name.clone())
    }
}
