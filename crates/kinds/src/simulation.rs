//! A copy of the world in which the very same decisions are taken, one at a time, until nothing is left to do.
//!
//! `plan` shows what it does; the property tests run it over random states. Nodes are modelled as nodes that do what
//! they are asked: what is bound runs and gets ready, what is asked to go goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::v1;
use bytes::Bytes;
use model::{Decision, Domain, Key, Next, Object, Revision, Step, Time, Until, Why, condition, fields};

use crate::{
    Item, RECONCILERS, Reconciler, Scope, View, World, any,
    instance::{self, Instance},
    kind, moves,
    moves::After,
};

/// One step that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    pub reconciler: &'static str,
    pub key: Key,
    pub step: Step,
    pub why: Why,
    pub at: Time,
}

/// How nodes treat what is bound to them.
pub trait Nodes {
    /// Whether it gets ready once it runs.
    fn gets_ready(&self, _item: &Item, _instance: &Instance) -> bool {
        true
    }
}

/// Every process starts and gets ready.
pub struct Healthy;

impl Nodes for Healthy {}

/// It did not settle within the bound: where it stood.
#[derive(Debug)]
pub struct Unsettled {
    pub taken: Vec<Taken>,
}

/// Sees the world after each change.
pub type Observer<'n> = Box<dyn FnMut(&World) + 'n>;

/// A reconciler (by its place in `RECONCILERS`) and a key.
type Work = (usize, Key);

pub struct Simulation<'n> {
    pub world: World,
    pub now: Time,
    live_since: Time,
    revision: Revision,
    uids: u64,
    nodes: &'n dyn Nodes,
    /// What to look at again, as a controller's queue has it.
    queue: BTreeSet<Work>,
    /// Instances that their nodes have not looked at since they changed.
    changed: BTreeSet<Key>,
    /// Who waits for which time.
    waits: BTreeMap<Work, Time>,
    /// What each key's last look said.
    pub said: BTreeMap<Key, Next>,
    /// Called after every change of the world.
    pub observe: Option<Observer<'n>>,
}

impl<'n> Simulation<'n> {
    pub fn new(world: World, now: Time, nodes: &'n dyn Nodes) -> Self {
        let revision = world.items().map(|item| item.revision).max().unwrap_or_default();
        let all = |(r, reconciler): (usize, &&'static dyn Reconciler)| {
            world.of_kind(reconciler.kind()).map(move |item| (r, item.key.clone())).collect::<Vec<Work>>()
        };
        Self {
            queue: RECONCILERS.iter().enumerate().flat_map(all).collect(),
            changed: world.of_kind(instance::KIND).map(|item| item.key.clone()).collect(),
            world,
            now,
            live_since: Time::default(),
            revision,
            uids: 0,
            nodes,
            waits: BTreeMap::new(),
            said: BTreeMap::new(),
            observe: None,
        }
    }

    /// Takes steps until nothing is left to do, nor waited for. Times that are waited for are jumped to.
    pub fn settle(&mut self, steps_max: usize) -> Result<Vec<Taken>, Unsettled> {
        let mut taken = Vec::new();
        loop {
            while let Some(work) = self.queue.pop_first() {
                self.look(work, &mut taken);
                if taken.len() > steps_max {
                    return Err(Unsettled { taken });
                }
            }
            if self.run_nodes() {
                continue;
            }
            let Some(at) = self.waits.values().min().copied() else { return Ok(taken) };
            self.now = self.now.max(at);
            let due = |(_, at): &(&Work, &mut Time)| **at <= self.now;
            let work: Vec<Work> = self.waits.iter_mut().filter(due).map(|(work, _)| work.clone()).collect();
            self.waits.retain(|_, at| *at > self.now);
            self.queue.extend(work);
        }
    }

    /// One look at one key, as a worker has it.
    fn look(&mut self, work: Work, taken: &mut Vec<Taken>) {
        self.waits.remove(&work);
        let (reconciler, key) = (RECONCILERS[work.0], &work.1);
        let Some(own) = self.world.get(key).cloned() else { return };
        let decision = reconciler.plan(&self.view(), &own);
        self.said.insert(key.clone(), decision.next.clone());
        let domain = if reconciler.scope() == Scope::Shard { Domain::Shard } else { Domain::Leader };
        let wrote = self.take(domain, &own, &decision);
        match decision.next {
            Next::Do(step, why) => {
                let (reconciler, key) = (reconciler.name(), work.1.clone());
                taken.push(Taken { reconciler, key, step, why, at: self.now });
                self.queue.insert(work);
            }
            _ if wrote => _ = self.queue.insert(work),
            Next::Wait(Until::Time(at), _) if at > self.now => _ = self.waits.insert(work, at),
            Next::Wait(..) | Next::Settled(_) | Next::Blocked(_) => {}
        }
    }

    fn view(&self) -> View<'_> {
        View { world: &self.world, now: self.now, live_since: self.live_since }
    }

    /// One transaction: the step's moves, and the own record with its status.
    fn take(&mut self, domain: Domain, own: &Item, decision: &Decision) -> bool {
        let status = moves::status_to_write(domain, own, decision.status.as_ref(), self.now);
        let step = match &decision.next {
            Next::Do(step, _) => Some(step),
            Next::Settled(_) | Next::Wait(..) | Next::Blocked(_) => None,
        };
        if step.is_none() && status.is_none() {
            return false;
        }
        let changes = step.iter().flat_map(|step| &step.moves);
        let mut afters: Vec<After> =
            changes.filter_map(|change| moves::apply(&self.world, domain, own, change, self.now)).collect();
        if let Some(status) = status {
            afters.push(After::Put(Box::new(v1::Resource { status: Some(status), ..own.resource.clone() })));
        }
        self.commit(afters);
        true
    }

    fn commit(&mut self, afters: Vec<After>) {
        self.revision = Revision(self.revision.0 + 1);
        for after in afters {
            let (before, now) = match after {
                After::Put(resource) => self.put(*resource),
                After::Removed { key, .. } => (self.world.remove(&key), None),
            };
            for item in before.iter().chain(&now) {
                self.wake(item);
            }
        }
        if let Some(observe) = &mut self.observe {
            observe(&self.world);
        }
    }

    fn wake(&mut self, item: &Item) {
        for (r, reconciler) in RECONCILERS.iter().enumerate() {
            self.queue.extend(reconciler.wakes(&self.world, item).into_iter().map(|key| (r, key)));
        }
        if item.key.kind() == instance::KIND {
            self.changed.insert(item.key.clone());
        }
    }

    /// As a server stores it. What was there, and what is.
    fn put(&mut self, mut resource: v1::Resource) -> (Option<Arc<Item>>, Option<Arc<Item>>) {
        let owner_root = resource.metadata.as_ref().and_then(|m| m.owner.as_ref()).map(Key::of_owner);
        let owner_root = owner_root.and_then(|key| self.world.get(&key)).map(|owner| owner.metadata().root_uid.clone());
        let metadata = resource.metadata.get_or_insert_default();
        if metadata.uid.is_empty() {
            self.uids += 1;
            metadata.uid = format!("simulated-{}", self.uids);
            metadata.root_uid = owner_root.unwrap_or_else(|| metadata.uid.clone());
            metadata.generation = 1;
            metadata.created_time = Some(self.now.into());
        }
        metadata.revision = self.revision.0;
        let object = Object { key: Key::of(metadata), revision: self.revision, bytes: Object::encode(resource) };
        match Item::read(&object) {
            Ok(item) => {
                let item = Arc::new(item);
                (self.world.put(item.clone()), Some(item))
            }
            Err(_) => (None, None),
        }
    }

    /// What agents do and report. Whether anything changed.
    fn run_nodes(&mut self) -> bool {
        let changed = std::mem::take(&mut self.changed);
        let instances: Vec<Arc<Item>> = changed.iter().filter_map(|key| self.world.get(key).cloned()).collect();
        let afters: Vec<After> = instances.iter().filter_map(|item| self.run_one(item)).collect();
        let some = !afters.is_empty();
        if some {
            self.commit(afters);
        }
        some
    }

    fn run_one(&self, item: &Item) -> Option<After> {
        let one = item.body::<Instance>().filter(|one| !one.node.is_empty())?;
        if item.deleting() {
            return Some(After::Removed { key: item.key.clone(), uid: item.uid().into(), revision: item.revision });
        }
        let ready = self.nodes.gets_ready(item, one);
        if one.ready == ready && !one.phase.is_empty() {
            return None;
        }
        let status = v1::InstanceStatus {
            phase: "Running".into(),
            ready,
            observed_generation: 1,
            conditions: vec![condition(instance::READY, Some(ready), "Running", "")],
            ..Default::default()
        };
        let rights = kind(instance::KIND)?.rights(Domain::Agent);
        let current = Bytes::from(item.status().map(|s| s.value.clone()).unwrap_or_default());
        let next = Bytes::from(any(instance::STATUS, &status).value);
        let value = fields::merge_status(&current, &next, rights.status, rights.conditions, self.now).ok()?;
        let status = prost_types::Any { type_url: any(instance::STATUS, &status).type_url, value: value.into() };
        Some(After::Put(Box::new(v1::Resource { status: Some(status), ..item.resource.clone() })))
    }
}
