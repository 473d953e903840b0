//! An owner that stands still past its TTL and goes on; writes that arrive after the takeover; fences of the past. None
//! of them changes anything.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use api::v1;
use model::{Epoch, Fence, Key};
use prost::{Message, bytes::Bytes};
use rustix::process::Signal;
use store::{Error, Store, Transaction, Write};
use store_etcd::testing::grpc_proxy::{Between, GrpcProxy, Hold};
use tokio::sync::watch;
use tonic::Status;
use wire::Remote;

use crate::{
    recorder::{Wish, wish},
    state::{actor, claim, claims, converged, owner, settled, shard_of},
    tail::{Event, Tail},
    world::{Shape, World, report},
};

/// So many that any third of the shards has some of them, whatever their uids.
const SERVICES: usize = 48;
/// Fewer than a controller has workers, each of which waits for its step's answer.
const HELD: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);
/// Who writes with fences of the past, and what it would write.
const ZOMBIE: &str = "controller/zombie";
const FORGED: i32 = 77;

async fn start() -> (World, Tail, crate::state::Coordination, Vec<Wish>) {
    let world = World::start(Shape { controllers: 2, ttl: "2s", ..Shape::default() }).await;
    let (tail, coordination) = (world.tail(1), world.coordination());
    let wishes: Vec<Wish> = (0..SERVICES).map(|n| wish(format!("service-{n}-x"), 1, "v1")).collect();
    world.recorder.apply_at_last("first", &world.client(), &wishes).await;
    (world, tail, coordination, wishes)
}

/// Those whose shard that controller owns.
pub fn owned_by(tail: &Tail, state: &v1::Coordination, wishes: &[Wish], name: &str) -> Vec<Wish> {
    let is_owned = |w: &&Wish| {
        let shard = tail.look_now(|world| shard_of(world, &w.key()));
        shard.and_then(|shard| owner(state, &shard)).as_deref() == Some(name)
    };
    wishes.iter().filter(is_owned).cloned().collect()
}

pub fn written_by_other(event: &Event, key: &Key, victim: &str) -> bool {
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

/// Fences of the past, in each way that they can be past: each is refused as fenced, and nothing of what it asked for is
/// done. Others may write meanwhile: also what was held back on its way may come at last.
pub async fn replay(client: &Remote, now: &v1::Coordination, before: &v1::Coordination, shard: &str, key: &Key) {
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
        let deadline = Instant::now() + PATIENCE;
        let answer = loop {
            match client.commit(forged(client, key, fence.clone()).await).await {
                // Somebody else wrote since it was read, which may be found out before the fence is looked at.
                Err(Error::Conflict { .. }) if Instant::now() < deadline => {}
                answer => break answer,
            }
        };
        assert!(matches!(answer, Err(Error::Fenced(_))), "{what}: {answer:?}");
        let after = client.get(key).await.expect("a server answers").expect("it exists");
        let after = after.resource().expect("it decodes");
        let status = after.status.as_ref().expect("it still has one");
        let shown: v1::ServiceStatus = Message::decode(status.value.as_slice()).expect("a status");
        assert!(shown.replicas != FORGED && actor(&after) != ZOMBIE, "{what}: {after:?}");
        refused += 1;
    }
    println!("fences of the past refused: {refused}");
}

/// A change of the status as it is now, under that fence.
async fn forged(client: &Remote, key: &Key, fence: Fence) -> Transaction {
    let object = client.get(key).await.expect("a server answers").expect("it exists");
    let mut resource = object.resource().expect("it decodes");
    let status = resource.status.as_mut().expect("it was acted on");
    let mut shown: v1::ServiceStatus = Message::decode(status.value.as_slice()).expect("a status");
    shown.replicas = FORGED;
    status.value = shown.encode_to_vec();
    Transaction {
        fence: Some(fence),
        actor: model::Actor::parse(ZOMBIE),
        step_id: "replay".into(),
        writes: vec![Write::Put(Box::new(resource))],
        ..Transaction::default()
    }
}

/// What became of the steps that were held.
#[derive(Default)]
struct Steps {
    /// Services that a step is about, while steps are held.
    written: watch::Sender<BTreeSet<String>>,
    answers: watch::Sender<Vec<Result<(), String>>>,
}

impl Between for Steps {
    fn request(&self, path: &str, _call: usize, message: Bytes) -> Bytes {
        if path.ends_with("/Commit") {
            let step = v1::CommitRequest::decode(message.clone()).expect("controllers speak their own protocol");
            let puts = step.writes.into_iter().filter_map(|write| match write.write {
                Some(v1::write::Write::Put(resource)) => resource.metadata,
                _ => None,
            });
            self.written.send_modify(|written| written.extend(puts.map(|metadata| metadata.name)));
        }
        message
    }

    fn answered(&self, path: &str, held: bool, answer: Result<(), &Status>) {
        if held && path.ends_with("/Commit") {
            let fenced = |status: &Status| status.details().windows(6).any(|window| window == b"FENCED");
            let answer = answer.map_err(|s| if fenced(s) { "FENCED".to_owned() } else { s.to_string() });
            self.answers.send_modify(|answers| answers.push(answer));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_held_until_after_the_takeover_are_refused() {
    let (mut world, tail, coordination, wishes) = start().await;
    let steps = Arc::new(Steps::default());
    let proxy = GrpcProxy::start(&world.servers[0].address, steps.clone()).await;
    world.add_controller_at("p", &proxy.address.to_string());
    coordination.until("all have their shares", PATIENCE, |s| settled(s, 3)).await;
    tail.until("all run", PATIENCE, converged).await;
    let mut ours = owned_by(&tail, &coordination.now(), &wishes, "p");
    ours.truncate(HELD);
    assert!(!ours.is_empty(), "it owns some");
    let held = Instant::now();
    steps.written.send_replace(BTreeSet::new());
    proxy.hold.send_replace(Hold::Requests);
    let changed: Vec<Wish> = ours.iter().map(|w| wish(w.name.clone(), 1, "v2")).collect();
    world.recorder.apply_at_last("changer", &world.client_of(1), &changed).await;
    // Its watch still tells it; it decides and writes.
    let mut written = steps.written.subscribe();
    let all = written.wait_for(|written| ours.iter().all(|w| written.contains(&w.name)));
    tokio::time::timeout(PATIENCE, all).await.expect("it writes in time").expect("the sender is here");
    let deposed = |state: &v1::Coordination| claims(state).all(|c| owner(state, &c).is_some_and(|name| name != "p"));
    coordination.until("others own all of it", PATIENCE, |s| deposed(s).then_some(())).await;
    for w in &ours {
        tail.event("another acts", held, PATIENCE, |e| written_by_other(e, &w.key(), "p")).await;
    }
    report("held owner, all its services acted on by others", held.elapsed());
    proxy.hold.send_replace(Hold::Nothing);
    let mut answers = steps.answers.subscribe();
    let all = answers.wait_for(|answers| answers.len() >= ours.len());
    let answers =
        tokio::time::timeout(PATIENCE, all).await.expect("they are answered").expect("the sender is here").clone();
    println!("late writes: {}, all refused as FENCED", answers.len());
    assert!(answers.iter().all(|answer| answer == &Err("FENCED".to_owned())), "{answers:?}");
    coordination.until("it rejoins", PATIENCE, |s| settled(s, 3)).await;
    tail.until("all is as declared", PATIENCE, converged).await;
    let checked = world.check(vec![tail]).await;
    assert!(checked.fenced > SERVICES, "{checked:?}");
}
