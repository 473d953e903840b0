//! All controllers are restarted, one after the other, while 200 services change: no shard is ever free, nothing is made
//! twice, and in the end all is as declared.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kinds::instance;
use tokio::{
    task::block_in_place,
    time::{Instant as Moment, sleep_until},
};

use crate::{
    going::Going,
    recorder::{Wish, wish},
    state::{converged, instance_spec, sessions, settled},
    tail::Event,
    world::{Shape, World, report},
};

const SERVICES: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two changes; each service changes every `SERVICES` of them.
const PACE: Duration = Duration::from_millis(20);
/// One replica, and the surge of one while it's replaced.
const LIVE_MAX: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_all_controllers_frees_no_shard_and_makes_nothing_twice() {
    let mut world = World::start(Shape { agents: 2, ..Shape::default() }).await;
    let (tail, coordination) = (world.tail(1), world.coordination());
    coordination.until("all have their shares", PATIENCE, |s| settled(s, 3)).await;
    let (client, recorder) = (world.client(), world.recorder.clone());
    let wishes: Vec<Wish> = (0..SERVICES).map(|n| wish(format!("s{n}"), 1, "v0")).collect();
    for some in wishes.chunks(100) {
        recorder.apply_at_last("first", &client, some).await;
    }
    tail.until("all run", PATIENCE, converged).await;

    let (client, start) = (world.client_from(1), Moment::now());
    let changing = Going::start(move |n| {
        let (recorder, client) = (recorder.clone(), client.clone());
        // Each version is of one declaration alone, so each of its instances may be made once.
        let wish = wish(format!("s{}", n % SERVICES), 1, format!("v{}", 1 + n));
        async move {
            sleep_until(start + PACE * u32::try_from(n).expect("few turns")).await;
            recorder.apply_at_last("changer", &client, &[wish]).await;
        }
    });
    let began = Instant::now();
    for name in ["a", "b", "c"] {
        let before = sessions(&coordination.now(), name);
        let mut part = world.controllers.remove(name).expect("it runs");
        let told = Instant::now();
        let code = block_in_place(|| part.stop());
        report(&format!("{name} told to end, ended"), told.elapsed());
        assert_eq!(code, 0, "{name} ends in order");
        world.add_controller(name);
        let again = coordination.until("all have their shares again", PATIENCE, |state| {
            let anew = sessions(state, name).is_disjoint(&before);
            settled(state, 3).filter(|_| anew)
        });
        again.await;
    }
    report("all restarted", began.elapsed());
    changing.stop().await;
    let gaps = coordination.unowned_since(began);
    assert!(gaps.is_empty(), "free meanwhile: {gaps:?}");
    tail.until("all is as declared", PATIENCE, converged).await;
    nothing_twice(&tail.events());
    let checked = world.check(vec![tail]).await;
    assert!(checked.fenced > SERVICES, "{checked:?}");
}

/// Each version of a service got one instance at most, and no service ever had more than it may.
fn nothing_twice(events: &[Event]) {
    let mut made: BTreeMap<(String, String), String> = BTreeMap::new();
    // By instance, its service.
    let mut live: BTreeMap<String, String> = BTreeMap::new();
    let instances: Vec<&Event> = events.iter().filter(|event| event.key.kind() == instance::KIND).collect();
    // What is told as one comes in any order: only what it comes to was ever so.
    for together in instances.chunk_by(|a, b| a.told == b.told) {
        for event in together {
            let name = event.key.name().to_owned();
            let Some(resource) = &event.resource else {
                live.remove(&name);
                continue;
            };
            let metadata = resource.metadata.clone().unwrap_or_default();
            let service = metadata.owner.map(|owner| owner.name).unwrap_or_default();
            let version = instance_spec(resource).version;
            let first = made.entry((service.clone(), version)).or_insert(metadata.uid.clone());
            assert_eq!(*first, metadata.uid, "{service} has a second instance of one version: {name}");
            live.insert(name, service);
        }
        let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
        live.values().for_each(|service| *counts.entry(service).or_default() += 1);
        counts.retain(|_, count| *count > LIVE_MAX);
        assert!(counts.is_empty(), "too many live at {}: {counts:?}", together[0].told);
    }
    println!("instances made: {}", made.len());
    assert!(made.len() > SERVICES, "something was replaced");
}
