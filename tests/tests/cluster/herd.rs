//! Everything starts again at once, etcd too, with five thousand resources: what the store is asked stays within a bound
//! that doesn't grow with the resources, no watch is told everything twice, and the sweeps that follow are spread.
//!
//! No agent runs: what agents find after a restart is work, not a herd.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

use api::v1;
use driftless_tests::http;
use prost::{Message, bytes::Bytes};
use store_etcd::testing::grpc_proxy::{Between, GrpcProxy};
use tokio::task::block_in_place;
use tonic::Status;

use crate::{
    recorder::{Wish, wish},
    state::settled,
    world::{Shape, World, report},
};

const SERVICES: usize = 500;
/// With each service itself, five thousand resources.
const REPLICAS: i32 = 9;
const CONTROLLERS: usize = 3;
const SERVERS: usize = 2;
const SWEEP: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(120);
/// Without a change for so long, nothing is left to do.
const QUIET: Duration = Duration::from_secs(3);
/// Between two looks at etcd's counters.
const LOOK: Duration = Duration::from_millis(100);
/// Requests that etcd may be asked in any second, whatever the number of resources: 129 claims that are taken, each
/// perhaps moved once more, and some for each of the processes.
const REQUESTS_A_SECOND_MAX: u64 = 500;
/// When the third sweep looks at things, in sweeps. On a busy machine each begins a little later than it should.
const THIRD: Range<f64> = 2.0..3.25;
/// Looks of one tenth of a sweep's time. Even shares are 10 %; the jitter makes the middle fuller.
const TENTH_MAX: f64 = 0.30;

/// Whole snapshots of one watch, and how often each shard came in partial ones.
type Told = (usize, BTreeMap<u32, usize>);

/// Counts what each watch is told of everything.
#[derive(Default)]
struct Snapshots {
    /// By call.
    told: Mutex<BTreeMap<usize, Told>>,
}

impl Between for Snapshots {
    fn answer(&self, path: &str, call: usize, message: Bytes) -> Result<Bytes, Status> {
        // Of all items only the start of a snapshot is decoded: it's field 1.
        if path.ends_with("ResourceService/Watch") && message.first() == Some(&0x0a) {
            let answer = v1::WatchResponse::decode(message.clone()).expect("servers speak their own protocol");
            if let Some(v1::watch_response::Item::SnapshotStart(start)) = answer.item {
                let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                let (whole, shards) = told.entry(call).or_default();
                *whole += usize::from(!start.partial);
                start.shards.iter().for_each(|shard| *shards.entry(*shard).or_default() += 1);
            }
        }
        Ok(message)
    }
}

/// What etcd had counted at some moment between the two.
struct Counted {
    asked: Instant,
    answered: Instant,
    /// Requests since it started, by method.
    requests: BTreeMap<String, u64>,
}

/// None where it doesn't answer just now.
fn count(etcd: &str) -> Option<Counted> {
    let asked = Instant::now();
    let page = http::page(etcd, "/metrics").ok()?;
    Some(Counted { asked, answered: Instant::now(), requests: requests(&page) })
}

fn requests(page: &str) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("grpc_server_started_total{")) {
        let method = line.split("grpc_method=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let count = line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or_default();
        *counts.entry(method.to_owned()).or_default() += count as u64;
    }
    counts.retain(|_, count| *count > 0);
    counts
}

/// Looks at etcd's counters until it's told to stop.
fn watch_rate(etcd: &str, stop: &mpsc::Receiver<()>) -> Vec<Counted> {
    let mut looks = Vec::new();
    while stop.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
        looks.extend(count(etcd));
    }
    looks
}

/// What was asked within a second after each look, however long the looks themselves took.
fn rates(looks: &[Counted]) -> Vec<u64> {
    let sum = |look: &Counted| look.requests.values().sum::<u64>();
    let within = |look: &Counted| {
        let end = look.asked + Duration::from_secs(1);
        let later = looks.iter().rfind(|later| later.answered <= end);
        later.map_or(0, |later| sum(later).saturating_sub(sum(look)))
    };
    looks.iter().map(within).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_as_one_with_five_thousand_resources_they_do_not_storm() {
    let shape = Shape { servers: SERVERS, controllers: CONTROLLERS, agents: 0, sweep: "5s", ..Shape::default() };
    let mut world = World::start(shape).await;
    let wishes: Vec<Wish> = (0..SERVICES).map(|n| wish(format!("s{n}"), REPLICAS, "v1")).collect();
    let tail = world.tail(0);
    for some in wishes.chunks(100) {
        world.recorder.apply_at_last("first", &world.client(), some).await;
    }
    let resources = SERVICES * (usize::try_from(REPLICAS).expect("a small number") + 1);
    tail.until("all are made", PATIENCE, |world| {
        let made = world.keys().filter(|key| matches!(key.kind(), "Service" | "Instance")).count();
        (made == resources).then_some(())
    })
    .await;
    // Whatever is to be said of them is said, too.
    while tail.changes_within(QUIET).await {}
    drop(tail);

    world.kill_all();
    world.etcd.members[0].kill();
    world.etcd.restart(0).await;
    let (stop, stopped) = mpsc::channel();
    let etcd = world.etcd.endpoints()[0].clone();
    let looking = tokio::task::spawn_blocking(move || watch_rate(&etcd, &stopped));
    let began = Instant::now();
    for _ in 0..SERVERS {
        world.add_server();
    }
    let (mut proxies, mut snapshots) = (Vec::new(), Vec::new());
    for name in ["a", "b", "c"] {
        let told: Arc<Snapshots> = Arc::default();
        let server = world.servers[proxies.len() % SERVERS].address.clone();
        let proxy = GrpcProxy::start(&server, told.clone()).await;
        world.add_controller_logging(name, &proxy.address.to_string(), "info,driftless_controller::worker=debug");
        proxies.push(proxy);
        snapshots.push((name, told));
    }
    let coordination = crate::state::Coordination::follow(world.client());
    coordination.until("all have their shares", PATIENCE, |s| settled(s, CONTROLLERS)).await;
    report("restarted, all have their shares", began.elapsed());
    // The first round is the takeover's; the ones after it are the sweep's alone.
    let logs = |world: &World| world.controllers.values().map(|part| part.log()).collect::<Vec<String>>();
    let wanted = |logs: &[String]| logs.iter().all(|log| looks(log).last().is_some_and(|look| look.at >= THIRD.end));
    block_in_place(|| {
        driftless_tests::processes::look_until("three sweeps", PATIENCE, || wanted(&logs(&world)).then_some(()))
    });
    stop.send(()).expect("it looks");
    let asked = looking.await.expect("it doesn't panic");
    let (rates, all) = (rates(&asked), asked.last().map(|look| look.requests.clone()).unwrap_or_default());
    let most = rates.iter().copied().max().unwrap_or_default();
    println!("etcd was asked: {all:?}; at most {most} in a second; second by second:");
    println!("{:?}", rates.iter().step_by(10).collect::<Vec<_>>());
    assert!(most <= REQUESTS_A_SECOND_MAX, "{most} requests in a second");
    assert!(all.values().sum::<u64>() > 100, "it was asked at all: {all:?}");

    for (name, snapshots) in &snapshots {
        let told = snapshots.told.lock().unwrap_or_else(PoisonError::into_inner);
        println!("{name}: whole snapshots by watch {:?}", told.values().map(|(whole, _)| whole).collect::<Vec<_>>());
        assert!(!told.is_empty(), "{name} watches through its proxy");
        for (whole, shards) in told.values() {
            // One that goes on where another broke off isn't told everything at all.
            assert!(*whole <= 1, "a watch of {name} was told everything more than once");
            // Shards that are added later come by themselves; once more only where they were let go meanwhile.
            assert!(shards.values().all(|times| *times <= 2), "{name} was told of a shard again and again: {shards:?}");
        }
    }
    let logs = logs(&world);
    let third: Vec<Look> = logs.iter().flat_map(|log| looks(log)).filter(|look| THIRD.contains(&look.at)).collect();
    let looked_at: BTreeSet<&str> = third.iter().map(|look| look.key).collect();
    assert_eq!(looked_at.len(), SERVICES, "every service was looked at");
    let tenths = histogram(&third);
    let total: usize = tenths.iter().sum();
    println!("looks of a sweep, by tenths of its {SWEEP:?}: {tenths:?}");
    assert!(tenths.iter().all(|n| *n as f64 <= TENTH_MAX * total as f64), "{tenths:?}");
    assert!(tenths.iter().filter(|n| **n > 0).count() >= 8, "{tenths:?}");
}

/// When a log's line was written, in seconds of its day.
fn second(line: &str) -> Option<f64> {
    let time = line.split('T').nth(1)?.split('Z').next()?;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    Some(parts.next()?? * 3_600.0 + parts.next()?? * 60.0 + parts.next()??)
}

/// What a sweep looked at, and when: in sweeps since its controller began with them.
struct Look<'l> {
    at: f64,
    key: &'l str,
}

/// In order.
fn looks(log: &str) -> Vec<Look<'_>> {
    const DAY: f64 = 24.0 * 3_600.0;
    let Some(start) = log.lines().find(|line| line.contains("controller started")).and_then(second) else {
        return Vec::new();
    };
    let look = |line| {
        let key = str::split(line, "looked key=").nth(1)?.split(' ').next()?;
        let at = (second(line)? - start).rem_euclid(DAY) / SWEEP.as_secs_f64();
        key.starts_with("Service/").then_some(Look { at, key })
    };
    log.lines().filter_map(look).collect()
}

/// By tenths of the third sweep, as it would be if none before it took longer than it should.
fn histogram(third: &[Look]) -> [usize; 10] {
    let mut tenths = [0; 10];
    for look in third {
        let tenth = ((look.at - THIRD.start) * 10.0) as usize;
        tenths.get_mut(tenth).into_iter().for_each(|n| *n += 1);
    }
    tenths
}
