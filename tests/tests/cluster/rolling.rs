//! All controllers are restarted, one after the other, while 200 services change: no shard is ever free, nothing is made
//! twice, and in the end all is as declared.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use kinds::instance;
use tokio::task::block_in_place;

use crate::{
    recorder::{Wish, wish},
    state::{converged, instance_spec, settled},
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

    let changing = tokio::spawn({
        let (recorder, client) = (recorder.clone(), world.client_from(1));
        async move {
            let mut pace = tokio::time::interval(PACE);
            for n in 0.. {
                pace.tick().await;
                // Each version is of one declaration alone, so each of its instances may be made once.
                let wish = wish(format!("s{}", n % SERVICES), 1, format!("v{}", 1 + n));
                recorder.apply_at_last("changer", &client, &[wish]).await;
            }
        }
    });
    let began = Instant::now();
    for name in ["a", "b", "c"] {
        let mut part = world.controllers.remove(name).expect("it runs");
        let told = Instant::now();
        let code = block_in_place(|| part.stop());
        report(&format!("{name} told to end, ended"), told.elapsed());
        assert_eq!(code, 0, "{name} ends in order");
        world.add_controller(name);
        coordination.until("all have their shares again", PATIENCE, |s| settled(s, 3)).await;
    }
    report("all restarted", began.elapsed());
    changing.abort();
    let _ = changing.await;
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
    let mut live: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.key.kind() == instance::KIND) {
        let name = event.key.name().to_owned();
        let Some(resource) = &event.resource else {
            live.values_mut().for_each(|names| names.retain(|known| *known != name));
            continue;
        };
        let metadata = resource.metadata.clone().unwrap_or_default();
        let service = metadata.owner.map(|owner| owner.name).unwrap_or_default();
        let first = made.entry((service.clone(), instance_spec(resource).version)).or_insert(metadata.uid.clone());
        assert_eq!(*first, metadata.uid, "{service} has a second instance of one version: {name}");
        let names = live.entry(service.clone()).or_default();
        names.insert(name);
        assert!(names.len() <= LIVE_MAX, "{service} has {names:?} at {}", event.revision);
    }
    println!("instances made: {}", made.len());
    assert!(made.len() > SERVICES, "something was replaced");
}
