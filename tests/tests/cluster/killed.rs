//! SIGKILL to whoever owns a busy shard, to the leader, and to both at once: work goes on under others, soon.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use kinds::instance;
use model::{Key, LEADER};
use wire::Remote;

use crate::{
    going::Going,
    recorder::{Recorder, Wish, wish},
    state::{actor, converged, instance_spec, is_ready, owner, settled, shard_of},
    tail::{Event, Tail},
    world::{Shape, World, report},
};

/// Enough that some are owned by others than the leader, whatever their uids.
const SERVICES: usize = 12;
const PATIENCE: Duration = Duration::from_secs(60);
/// What is asked for; on an idle machine it takes a third of it.
const TAKEOVER_MAX: Duration = Duration::from_secs(2);

/// Scales one service up and down, each time it has become what it should be; so its owner and the leader never rest.
fn keep_busy(recorder: Arc<Recorder>, client: Arc<Remote>, tail: Arc<Tail>, name: String) -> Going {
    Going::start(move |n| {
        let (recorder, client, tail) = (recorder.clone(), client.clone(), tail.clone());
        let wish = wish(name.clone(), if n.is_multiple_of(2) { 1 } else { 2 }, "v1");
        async move {
            let revision = recorder.apply_at_last(&wish.name, &client, std::slice::from_ref(&wish)).await;
            let key = wish.key();
            tail.reached(revision, PATIENCE).await;
            tail.until("it is as declared", PATIENCE, |world| is_ready(world.get(&key)?).then_some(())).await;
        }
    })
}

/// By which controller it was written.
fn controller(event: &Event) -> Option<&str> {
    actor(event.resource.as_ref()?).strip_prefix("controller/")
}

/// A look of the owner at the service that was written.
fn is_step(event: &Event, key: &Key, victims: &[&str]) -> bool {
    event.key == *key && controller(event).is_some_and(|name| !victims.contains(&name))
}

/// An instance got its node.
fn is_bind(event: &Event, victims: &[&str]) -> bool {
    let placed = || {
        event.resource.as_ref().is_some_and(|resource| {
            let metadata = resource.metadata.as_ref();
            !instance_spec(resource).node.is_empty() && metadata.is_some_and(|m| m.deletion_time.is_none())
        })
    };
    event.key.kind() == instance::KIND && placed() && controller(event).is_some_and(|name| !victims.contains(&name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_within_two_seconds_when_owner_leader_or_both_are_killed() {
    let mut world = World::start(Shape { controllers: 4, ..Shape::default() }).await;
    let (tail, coordination) = (Arc::new(world.tail(0)), world.coordination());
    coordination.until("all have their shares", PATIENCE, |s| settled(s, 4)).await;
    let wishes: Vec<Wish> = (0..SERVICES).map(|n| wish(format!("s{n}"), 1, "v1")).collect();
    world.recorder.apply_at_last("first", &world.client(), &wishes).await;
    tail.until("all run", PATIENCE, converged).await;
    let busy: Vec<_> = wishes
        .iter()
        .map(|w| keep_busy(world.recorder.clone(), world.client_from(1), tail.clone(), w.name.clone()))
        .collect();

    for (run, replacement) in [("owner", "e"), ("leader", "f"), ("owner and leader", "g")] {
        let state = coordination.now();
        let leader = owner(&state, LEADER).expect("all is settled");
        let elsewhere = |w: &Wish| {
            let key = w.key();
            let shard = tail.look_now(|world| shard_of(world, &key))?;
            owner(&state, &shard).filter(|owner| *owner != leader).map(|owner| (w.key(), shard, owner))
        };
        let (key, shard, victim) = wishes.iter().find_map(elsewhere).expect("not all services are the leader's");
        let victims: Vec<&str> = match run {
            "owner" => vec![&victim],
            "leader" => vec![&leader],
            _ => vec![&victim, &leader],
        };
        let killed: Instant = world.kill_controllers(&victims);
        if run != "leader" {
            let step = tail.event("a new owner acts", killed, PATIENCE, |e| is_step(e, &key, &victims)).await;
            check(&format!("{run} killed, {shard} acted on again"), step.at - world.recorder.at(killed));
        }
        if run != "owner" {
            let bind = tail.event("a new leader acts", killed, PATIENCE, |e| is_bind(e, &victims)).await;
            check(&format!("{run} killed, instances placed again"), bind.at - world.recorder.at(killed));
        }
        for name in replacement.chars().take(victims.len()).map(String::from).chain(
            // Two were killed: two come.
            (victims.len() > 1).then(|| format!("{replacement}2")),
        ) {
            world.add_controller(&name);
        }
        // It may still be shown as it was before anybody was missed.
        let without = |shares: &BTreeMap<String, usize>| victims.iter().all(|victim| !shares.contains_key(*victim));
        coordination.until("all have their shares again", PATIENCE, |s| settled(s, 4).filter(without)).await;
    }
    for going in busy {
        going.stop().await;
    }
    let tail = Arc::into_inner(tail).expect("nobody else looks any more");
    tail.until("all is as declared", PATIENCE, converged).await;
    let checked = world.check(vec![tail]).await;
    assert!(checked.fenced > 100, "{checked:?}");
}

#[track_caller]
fn check(what: &str, took: Duration) {
    report(what, took);
    assert!(took < TAKEOVER_MAX, "{what}: {took:?}");
}
