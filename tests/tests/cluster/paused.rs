//! An owner that stands still past its TTL and goes on; writes that arrive after the takeover; fences of the past. None
//! of them changes anything.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use model::{Epoch, Fence, Key};
use rustix::process::Signal;
use store::{Error, Store, Transaction, Write};
use tokio::task::block_in_place;
use wire::Remote;

use crate::{
    recorder::{Wish, wish},
    state::{actor, claim, converged, owner, settled, shard_of},
    tail::{Event, Tail},
    tcp_proxy::TcpProxy,
    world::{Shape, World, report},
};

const SERVICES: usize = 24;
const PATIENCE: Duration = Duration::from_secs(30);
/// Writes that may come too late to be answered before their sender gives up; then it's tried again.
const ROUNDS_MAX: usize = 4;
const REFUSED: &str = "write refused: not the owner any more";

async fn start() -> (World, Tail, crate::state::Coordination, Vec<Wish>) {
    let world = World::start(Shape { controllers: 2, ttl: "2s", ..Shape::default() }).await;
    let (tail, coordination) = (world.tail(1), world.coordination());
    let wishes: Vec<Wish> = (0..SERVICES).map(|n| wish(format!("service-{n}-x"), 1, "v1")).collect();
    world.recorder.apply_at_last("first", &world.client(), &wishes).await;
    (world, tail, coordination, wishes)
}

/// Those whose shard that controller owns.
fn owned_by(tail: &Tail, state: &api::v1::Coordination, wishes: &[Wish], name: &str) -> Vec<Wish> {
    let is_owned = |w: &&Wish| {
        let shard = tail.look_now(|world| shard_of(world, &w.key()));
        shard.and_then(|shard| owner(state, &shard)).as_deref() == Some(name)
    };
    wishes.iter().filter(is_owned).cloned().collect()
}

fn written_by_other(event: &Event, key: &Key, victim: &str) -> bool {
    let writer = event.resource.as_ref().map(actor).and_then(|actor| actor.strip_prefix("controller/"));
    event.key == *key && writer.is_some_and(|name| name != victim)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_owner_rejoins_and_never_acts_beside_its_successor() {
    let (mut world, tail, coordination, wishes) = start().await;
    world.add_controller("c");
    coordination.until("all have their shares", PATIENCE, |s| settled(s, 3)).await;
    tail.until("all run", PATIENCE, converged).await;
    let before = coordination.now();
    let victim = "a";
    let ours = owned_by(&tail, &before, &wishes, victim);
    let key = ours.first().expect("it owns some").key();
    let shard = tail.look_now(|world| shard_of(world, &key)).expect("it exists");
    let session = claim(&before, &shard).owner;

    let paused = Instant::now();
    world.controllers[victim].process().signal(Signal::STOP);
    // It can't know of these; somebody else must act on them.
    let changed: Vec<Wish> = ours.iter().map(|w| wish(w.name.clone(), 2, "v1")).collect();
    world.recorder.apply_at_last("changer", &world.client_from(1), &changed).await;
    coordination.until("another owns it", PATIENCE, |s| owner(s, &shard).filter(|name| name != victim)).await;
    let acted = tail.event("it acts", paused, PATIENCE, |e| written_by_other(e, &key, victim)).await;
    report("paused owner, its shard acted on again", acted.at - world.recorder.at(paused));
    world.controllers[victim].process().signal(Signal::CONT);
    coordination
        .until("it rejoins with another session", PATIENCE, |state| {
            let rejoined = state.members.iter().any(|m| m.name == victim && m.session != session);
            settled(state, 3).filter(|_| rejoined)
        })
        .await;
    tail.until("all is as declared", PATIENCE, converged).await;
    let events = tail.events();
    let from = acted.revision;
    let late = events.iter().filter(|e| e.revision > from && e.key == key).any(|e| {
        e.resource.as_ref().is_some_and(|r| actor(r) == "controller/a")
            && claim(&coordination.now(), &shard).owner == session
    });
    assert!(!late, "it acted under the session that had ended");
    replay(&world.client(), &coordination.now(), &before, &shard, &key).await;
    let checked = world.check(vec![tail]).await;
    assert!(checked.fenced > SERVICES, "{checked:?}");
}

/// Fences of the past, in each way that they can be past: each is refused as fenced, and nothing changes.
async fn replay(client: &Remote, now: &api::v1::Coordination, before: &api::v1::Coordination, shard: &str, key: &Key) {
    let (old, new) = (claim(before, shard), claim(now, shard));
    assert!(new.epoch > old.epoch, "it changed hands");
    let fence =
        |epoch: u64, session: &str| Fence::Claim { claim: shard.into(), epoch: Epoch(epoch), session: session.into() };
    let past = [
        ("the old epoch and session", fence(old.epoch, &old.owner)),
        ("the old epoch, another session", fence(old.epoch, &new.owner)),
        ("the old session, another epoch", fence(new.epoch, &old.owner)),
        ("an epoch that is still to come", fence(new.epoch + 1, &new.owner)),
        ("a session that never was", fence(new.epoch, "0123456789abcdef0123456789abcdef")),
    ];
    let mut refused = 0;
    for (what, fence) in past {
        let object = client.get(key).await.expect("a server answers").expect("it exists");
        let mut resource = object.resource().expect("it decodes");
        let status = resource.status.as_mut().expect("it was acted on");
        let mut shown: api::v1::ServiceStatus = prost::Message::decode(status.value.as_slice()).expect("a status");
        shown.replicas = 77;
        status.value = prost::Message::encode_to_vec(&shown);
        let transaction = Transaction {
            fence: Some(fence),
            actor: model::Actor::parse("controller/zombie"),
            step_id: format!("replay-{refused}"),
            writes: vec![Write::Put(Box::new(resource))],
            ..Transaction::default()
        };
        let answer = client.commit(transaction).await;
        assert!(matches!(answer, Err(Error::Fenced(_))), "{what}: {answer:?}");
        let after = client.get(key).await.expect("a server answers").expect("it exists");
        assert_eq!((after.revision, after.bytes), (object.revision, object.bytes), "{what}");
        refused += 1;
    }
    println!("fences of the past refused: {refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_held_until_after_the_takeover_are_refused() {
    let (mut world, tail, coordination, wishes) = start().await;
    let proxy = TcpProxy::start(Ipv4Addr::LOCALHOST.into(), &world.servers[0].address).await;
    world.add_controller_at("p", &proxy.address.to_string());
    let mut refused = 0;
    for round in 0..ROUNDS_MAX {
        coordination.until("all have their shares", PATIENCE, |s| settled(s, 3)).await;
        tail.until("all run", PATIENCE, converged).await;
        let state = coordination.now();
        let ours = owned_by(&tail, &state, &wishes, "p");
        let keys: Vec<Key> = ours.iter().map(Wish::key).collect();
        let held = Instant::now();
        proxy.hold();
        let changed: Vec<Wish> = ours.iter().map(|w| wish(w.name.clone(), 1, format!("v{}", round + 2))).collect();
        world.recorder.apply_at_last("changer", &world.client_of(1), &changed).await;
        // Its watch still tells it; it decides and writes.
        for w in &ours {
            let name = w.name.as_bytes();
            driftless_tests::processes::look_until("its write is held", PATIENCE, || {
                proxy.has_held(name).then_some(())
            });
        }
        for key in &keys {
            tail.event("another acts", held, PATIENCE, |e| written_by_other(e, key, "p")).await;
        }
        report("held owner, all its services acted on by others", held.elapsed());
        let log = world.controllers["p"].log();
        proxy.release();
        coordination.until("it rejoins", PATIENCE, |s| settled(s, 3)).await;
        let (before, now) = (log.matches(REFUSED).count(), world.controllers["p"].log().matches(REFUSED).count());
        refused += now - before;
        if refused > 0 {
            break;
        }
    }
    println!("late writes refused: {refused}");
    assert!(refused > 0, "no late write was answered in {ROUNDS_MAX} rounds");
    tail.until("all is as declared", PATIENCE, converged).await;
    block_in_place(|| world.controllers.remove("p"));
    let checked = world.check(vec![tail]).await;
    assert!(checked.fenced > SERVICES, "{checked:?}");
}
