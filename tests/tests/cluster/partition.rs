//! etcd loses one of its three nodes, then its leader, then its quorum; then a server loses its way to etcd, while etcd's
//! words still reach it for a moment. Through all of it nothing that was acknowledged is lost, no old fence is accepted,
//! and writes go on soon wherever a quorum can be reached.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use driftless_tests::{
    history::{Outcome, What},
    network::{Far, Hub},
};
use model::Key;
use store::{Error, Store};
use store_etcd::testing::Setup;
use wire::Remote;

use crate::{
    going::Going,
    paused,
    recorder::{Recorder, Wish, wish},
    state::{claim, converged, owner, settled, shard_of},
    world::{Shape, World, report},
};

/// So many that any third of the shards has some of them, whatever their uids.
const SERVICES: usize = 48;
const PATIENCE: Duration = Duration::from_secs(60);
/// What is asked for.
const RESUME_MAX: Duration = Duration::from_secs(3);
/// A call's deadline, and what a busy machine takes to say so.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// Refusals that each writer is to hear while there is no quorum.
const REFUSALS: usize = 3;
/// Of what is recorded, so that it means something that nothing is wrong with it: acknowledged writes, and reads.
const RECORDED: usize = 100;

#[test]
fn nothing_acknowledged_is_lost_when_etcd_or_the_way_to_it_is() {
    let Some(mut hub) = Hub::enter() else { return };
    let far = hub.connect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(run(far));
}

/// A client that writes without a pause, whatever is answered.
struct Writer {
    name: &'static str,
    going: Going,
}

impl Writer {
    fn start(name: &'static str, recorder: Arc<Recorder>, remote: Arc<Remote>, wishes: Vec<Wish>) -> Self {
        let going = Going::start(move |n| {
            let (recorder, remote, wish) = (recorder.clone(), remote.clone(), wishes[n % wishes.len()].clone());
            async move {
                // Recorded, whichever way it went.
                let _ = recorder.apply(name, &remote, &[wish]).await;
                let _ = recorder.list(name, &remote).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { name, going }
    }
}

async fn run(far: Far) {
    // Two votes may be needed where the first one is split: twice etcd's default of 1 s would leave no time for the rest.
    let args = vec!["--election-timeout=500".to_owned()];
    let setup = Setup { host: Some(far.hub), args, ..Setup::default() };
    let shape = Shape { etcd: 3, servers: 1, controllers: 0, agents: 0, ttl: "2s", ..Shape::default() };
    let mut world = World::start_with(shape, setup).await;
    world.add_server_in(&far);
    world.add_controller("a");
    world.add_controller("b");
    // This one knows no other server than the one that is cut off.
    world.add_controller_at("p", &world.servers[1].address.clone());
    world.add_agent("n0");
    let (tail, other, coordination) = (world.tail(0), world.tail(1), world.coordination());
    coordination.until("all have their shares", PATIENCE, |s| settled(s, 3)).await;
    let wishes: Vec<Wish> = (0..SERVICES).map(|n| wish(format!("s{n}"), 1, "v1")).collect();
    world.recorder.apply_at_last("first", &world.client(), &wishes).await;
    tail.until("all run", PATIENCE, converged).await;
    let mut writers = vec![
        Writer::start("w0", world.recorder.clone(), world.client_from(0), wishes[..2].to_vec()),
        Writer::start("w1", world.recorder.clone(), world.client_from(1), wishes[2..4].to_vec()),
    ];

    let leader = world.etcd.leader().await;
    let follower = (leader + 1) % 3;
    world.etcd.members[follower].kill();
    resumed(&world, &writers, "one node of etcd killed", Instant::now()).await;
    world.etcd.restart(follower).await;

    let leader = world.etcd.leader().await;
    world.etcd.members[leader].kill();
    resumed(&world, &writers, "etcd's leader killed", Instant::now()).await;

    // That leaves one of three.
    let next = world.etcd.leader().await;
    world.etcd.members[next].kill();
    without_quorum(&world, &writers, Instant::now()).await;
    world.etcd.restart_all(&[leader, next]).await;
    resumed(&world, &writers, "quorum back", Instant::now()).await;

    coordination.until("all have their shares again", PATIENCE, |s| settled(s, 3)).await;
    tail.until("all is as declared", PATIENCE, converged).await;
    let before = coordination.now();
    let ours = paused::owned_by(&tail, &before, &wishes, "p");
    let key = ours.first().expect("it owns some").key();
    let shard = tail.look_now(|world| shard_of(world, &key)).expect("it exists");
    // The others may be at either server by now; this one is at the one that is cut off.
    writers.push(Writer::start("w2", world.recorder.clone(), world.client_from(1), wishes[4..6].to_vec()));
    resumed(&world, &writers, "one more begins", Instant::now()).await;
    let cut = Instant::now();
    far.hold_back(&world.etcd.ports());
    // It may still hear of these, and decide, and write; all that waits in its socket until the way is free again.
    let changed: Vec<Wish> = ours.iter().map(|w| wish(w.name.clone(), 2, "v1")).collect();
    world.recorder.apply_at_last("changer", &world.client_of(0), &changed).await;
    resumed(&world, &writers, "a server cut off from etcd", cut).await;
    coordination.until("another owns it", PATIENCE, |s| owner(s, &shard).filter(|name| name != "p")).await;
    let acted = tail.event("another acts", cut, PATIENCE, |e| paused::written_by_other(e, &key, "p")).await;
    report("cut off owner, its shard acted on again", acted.at - world.recorder.at(cut));
    far.let_through();
    coordination.until("it rejoins", PATIENCE, |s| settled(s, 3)).await;
    recorded_enough(&world).await;
    for writer in writers {
        writer.going.stop().await;
    }
    assert!(claim(&coordination.now(), &shard).epoch > claim(&before, &shard).epoch, "it changed hands");
    paused::replay(&world.client_from(1), &coordination.now(), &before, &shard, &key).await;

    tail.until("all is as declared", PATIENCE, converged).await;
    let checked = world.check(vec![tail, other]).await;
    assert!(checked.fenced > SERVICES && checked.refused >= REFUSALS, "{checked:?}");
    assert!(checked.acknowledged > RECORDED && checked.reads > RECORDED, "{checked:?}");
}

/// However few a busy machine got done meanwhile.
async fn recorded_enough(world: &World) {
    let (mut acknowledged, mut reads) = (0, 0);
    let counting = world.recorder.until("enough is recorded", PATIENCE, |o| {
        match o.what {
            What::Wrote { outcome: Outcome::Acknowledged(_), .. } => acknowledged += 1,
            What::Listed { .. } => reads += 1,
            _ => {}
        }
        (acknowledged > RECORDED && reads > RECORDED).then_some(())
    });
    counting.await;
}

/// Every writer is acknowledged something again that it asked for after that.
async fn resumed(world: &World, writers: &[Writer], what: &str, since: Instant) {
    let recorder = &world.recorder;
    let since = recorder.at(since);
    for writer in writers {
        let waited_for = format!("{what}: {} is acknowledged", writer.name);
        let first = recorder.until(&waited_for, PATIENCE, |o| {
            let done = matches!(o.what, What::Wrote { outcome: Outcome::Acknowledged(_), .. });
            (o.client == writer.name && o.asked >= since && done).then_some(o.answered)
        });
        let took = first.await - since;
        report(&format!("{what}, {} writes on", writer.name), took);
        assert!(took <= RESUME_MAX, "{what}: {} after {took:?}", writer.name);
    }
}

/// Everything asked from now on is answered in time, by a refusal that says why; nothing is acknowledged.
async fn without_quorum(world: &World, writers: &[Writer], since: Instant) {
    let recorder = &world.recorder;
    let since = recorder.at(since);
    for writer in writers {
        let mut refused = 0;
        let waited_for = format!("{} hears that there is no quorum", writer.name);
        let heard = recorder.until(&waited_for, PATIENCE, |o| {
            let is_refusal = matches!(o.what, What::Wrote { outcome: Outcome::Refused, .. });
            refused += usize::from(o.client == writer.name && o.asked >= since && is_refusal);
            (refused >= REFUSALS).then_some(())
        });
        heard.await;
    }
    for server in 0..world.servers.len() {
        let answer = world.client_of(server).get(&Key::new("Service", "default", "s0")).await;
        println!("without a quorum: {answer:?}");
        assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    }
    recorder.look(|operations| {
        for operation in operations.iter().filter(|o| o.asked >= since) {
            let took = operation.answered - operation.asked;
            assert!(took <= ANSWER_MAX, "{} waited for {took:?}", operation.client);
            let acknowledged = matches!(operation.what, What::Wrote { outcome: Outcome::Acknowledged(_), .. });
            assert!(!acknowledged, "acknowledged without a quorum: {operation:?}");
        }
    });
}
