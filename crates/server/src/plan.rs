//! Plan: an Apply that writes nothing, and then the controllers' own decisions on a copy of the world, until it rests.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{manifest, v1};
use kinds::{
    Item, World, config,
    instance::{self, Instance},
    kind,
    service::{self, Service},
    simulation::{Nodes, Simulation, Taken},
};
use model::{Filter, Key, Move, Next, Object, Revision};
use prost::Message;
use store::{Caller, Error, Result};
use tokio::sync::Semaphore;

use crate::{apply, explain, heads::Heads, members::Members, shared::Shared, world};

/// Steps of one plan: a rollout of 10,000 instances one at a time takes about 30,000.
const STEPS_MAX: usize = 50_000;
/// Plans computed at once; each keeps a thread busy and holds a copy of its part of the world. More wait for their turn.
static TURNS: Semaphore = Semaphore::const_new(2);

pub async fn plan(
    shared: &Shared,
    heads: &Heads,
    members: &Members,
    caller: &Caller,
    request: v1::PlanRequest,
) -> Result<v1::PlanResponse> {
    let apply = v1::ApplyRequest {
        declarations: request.declarations,
        field_manager: request.field_manager,
        dry_run: true,
        pins: None,
    };
    let turn = TURNS.acquire().await.map_err(|error| Error::Corrupt(format!("no plan is possible: {error}")))?;
    let applied = apply::apply(shared, heads, caller, apply).await?;
    let declared: Vec<Key> = applied.results.iter().filter_map(declared_key).collect();
    let (mut world, befores, pins, revision) = {
        let cache = shared.cache();
        let affected = affected(&cache, &declared);
        let before = |key: &Key| cache.get(key).and_then(|record| record.object(key).resource().ok());
        let befores: Vec<Option<v1::Resource>> = declared.iter().map(before).collect();
        (world::around(&cache, members, &affected), befores, world::pins(&cache, &declared), cache.revision)
    };
    for result in &applied.results {
        declare(&mut world, result)?;
    }
    let now = shared.now();
    // It's a computation of up to a second: other calls go on beside it.
    let simulated = tokio::task::spawn_blocking(move || {
        // Also where the caller has gone meanwhile.
        let _turn = turn;
        simulate(world, now)
    });
    let (taken, settled, services, unsettled) =
        simulated.await.map_err(|error| Error::Corrupt(format!("the plan failed: {error}")))?;
    Ok(v1::PlanResponse {
        changes: applied.results.into_iter().zip(befores).map(change).collect(),
        steps: taken.iter().map(step).collect(),
        settled,
        services,
        unsettled,
        pins: Some(pins),
        revision: revision.0,
    })
}

fn declared_key(applied: &v1::Applied) -> Option<Key> {
    Some(Key::of(applied.resource.as_ref()?.metadata.as_ref()?))
}

/// What is declared, and services that take their environment from a Config that is.
fn affected(cache: &crate::cache::Cache, declared: &[Key]) -> BTreeSet<Key> {
    let configs: Vec<&Key> = declared.iter().filter(|key| key.kind() == config::KIND).collect();
    let uses = |object: &Object| {
        let item = Item::read(object).ok()?;
        let service = item.body::<Service>()?;
        let from = |key: &&&Key| {
            key.namespace() == object.key.namespace()
                && service.template.env_from.iter().any(|from| from.config == key.name())
        };
        configs.iter().find(from).map(|_| object.key.clone())
    };
    let services = Filter::kind(service::KIND);
    let users = cache.matching(&services, None).filter(|_| !configs.is_empty()).filter_map(|object| uses(&object));
    declared.iter().cloned().chain(users).collect()
}

/// Puts what an Apply would store into the copy.
fn declare(world: &mut World, applied: &v1::Applied) -> Result<()> {
    let Some(resource) = applied.resource.clone() else { return Ok(()) };
    let metadata = resource.metadata.clone().unwrap_or_default();
    let revision = Revision(metadata.revision.max(1));
    let object = Object { key: Key::of(&metadata), revision, bytes: Object::encode(resource) };
    let item = Item::read(&object).map_err(|violation| Error::Invalid(vec![violation]))?;
    world.put(Arc::new(item));
    Ok(())
}

/// Nodes do what they are asked; what fails now goes on failing.
struct AsNow;

impl Nodes for AsNow {
    fn gets_ready(&self, _item: &Item, instance: &Instance) -> bool {
        !matches!(instance.phase.as_str(), "BackOff" | "Failed" | "Finished")
    }
}

type Simulated = (Vec<Taken>, bool, Vec<v1::PlannedService>, Vec<v1::Explained>);

fn simulate(world: World, now: model::Time) -> Simulated {
    let services: Vec<(Key, String)> =
        world.of_kind(service::KIND).map(|item| (item.key.clone(), item.uid().to_owned())).collect();
    let extremes: RefCell<BTreeMap<Key, (usize, usize)>> = RefCell::default();
    let look = |world: &World| {
        for (key, uid) in &services {
            let (live, ready) = count(world, uid);
            let mut extremes = extremes.borrow_mut();
            let extreme = extremes.entry(key.clone()).or_insert((live, ready));
            *extreme = (extreme.0.max(live), extreme.1.min(ready));
        }
    };
    look(&world);
    let mut simulation = Simulation::new(world, now, &AsNow);
    simulation.observe = Some(Box::new(look));
    let (taken, settled) = match simulation.settle(STEPS_MAX) {
        Ok(taken) => (taken, true),
        Err(unsettled) => (unsettled.taken, false),
    };
    let said = std::mem::take(&mut simulation.said);
    drop(simulation);
    let rests = |next: &Next| matches!(next, Next::Settled(_));
    let unsettled = said.iter().filter(|(key, next)| services.iter().any(|(k, _)| k == *key) && !rests(next));
    let unsettled = unsettled.map(|(key, next)| explain::said(key, next)).collect();
    let extremes = extremes.into_inner();
    let planned = services.iter().map(|(key, _)| planned(key, &taken, extremes.get(key).copied().unwrap_or_default()));
    (taken.clone(), settled, planned.collect(), unsettled)
}

/// How many of the service's instances exist, and how many of them are ready and wanted.
fn count(world: &World, uid: &str) -> (usize, usize) {
    let instances = world.children(uid).filter_map(|item| Some((item, item.body::<Instance>()?)));
    instances.fold((0, 0), |(live, ready), (item, instance)| {
        (live + 1, ready + usize::from(instance.ready && !item.deleting()))
    })
}

fn planned(key: &Key, taken: &[Taken], (live, ready): (usize, usize)) -> v1::PlannedService {
    let moves = || taken.iter().filter(|taken| taken.key == *key).flat_map(|taken| &taken.step.moves);
    let created = moves().filter(|m| matches!(m, Move::Create(draft) if draft.key.kind() == instance::KIND)).count();
    let stopped = moves().filter(|m| matches!(m, Move::Delete { .. })).count();
    let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    v1::PlannedService {
        key: Some(key.into()),
        created: small(created),
        stopped: small(stopped),
        live_peak: small(live),
        ready_least: small(ready),
    }
}

fn change((applied, before): (v1::Applied, Option<v1::Resource>)) -> v1::PlannedChange {
    let after = applied.resource.clone().unwrap_or_default();
    let info = after.metadata.as_ref().and_then(|metadata| kind(&metadata.kind)).map(|kind| kind.info());
    let spec = before.as_ref().and_then(|resource| resource.spec.as_ref());
    let fields = info.map(|info| manifest::changes("spec", info.spec_type, spec, after.spec.as_ref()));
    v1::PlannedChange { applied: Some(applied), before, fields: fields.unwrap_or_default() }
}

fn step(taken: &Taken) -> v1::PlannedStep {
    v1::PlannedStep {
        reconciler: taken.reconciler.into(),
        key: Some((&taken.key).into()),
        verb: taken.step.verb.into(),
        why: Some((&taken.why).into()),
        moves: taken.step.moves.iter().map(planned_move).collect(),
    }
}

fn planned_move(change: &Move) -> v1::PlannedMove {
    let (action, node) = match change {
        Move::Create(_) => ("create", String::new()),
        Move::SetSpec { spec, .. } => {
            let spec = v1::InstanceSpec::decode(spec.value.as_slice()).unwrap_or_default();
            ("bind", spec.node)
        }
        Move::SetStatus { .. } => ("update", String::new()),
        Move::Delete { .. } => ("stop", String::new()),
        Move::Remove { .. } => ("remove", String::new()),
    };
    v1::PlannedMove { action: action.into(), key: Some(change.key().into()), node }
}
