use futures::StreamExt;
use store::{Memory, SessionOpen};
use tokio::sync::watch;

use super::*;

const STORM: Duration = Duration::from_secs(1);

/// Streams that are open, and when (in milliseconds) others broke; does the brake hold at `now`?
#[track_caller]
fn check(open: usize, breaks: &[u64], now: u64, holds: bool) {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut brake = Brake { open: open + breaks.len(), ..Brake::default() };
    breaks.iter().for_each(|millis| brake.broke(at(*millis), STORM));
    assert_eq!(brake.holds(at(now), STORM), holds, "{open} open, broken at {breaks:?}, seen at {now}");
}

#[tokio::test]
async fn the_brake_tells_a_crash_from_a_storm() {
    // One or two are never a storm, be they all there were.
    check(0, &[0], 300, false);
    check(0, &[0, 0], 300, false);
    check(0, &[0, 0, 0], 300, true);
    // Half is none; more than half is.
    check(3, &[0, 0, 0], 300, false);
    check(2, &[0, 0, 0], 300, true);
    check(100, &[0; 100], 300, false);
    check(99, &[0; 100], 300, true);
    // Only what broke within a second counts.
    check(0, &[0, 400, 800], 1_000, true);
    check(0, &[0, 400, 800], 1_001, false);
    // A stream that broke shortly after this one counts too.
    check(0, &[0, 100, 200], 300, true);
}

/// Sessions in a store, attached here; the clock stands still until everybody waits.
struct Bench {
    memory: Arc<Memory>,
    early_end: Arc<EarlyEnd>,
    drain: Drain,
    ready: watch::Sender<bool>,
}

impl Bench {
    fn new() -> Self {
        let (memory, drain) = (Arc::new(Memory::default()), Drain::default());
        let (ready, receiver) = watch::channel(true);
        let early_end = EarlyEnd::new(memory.clone(), Times::default(), drain.clone(), Some(receiver));
        Self { memory, early_end, drain, ready }
    }

    async fn attach(&self, session: &str) -> Attached {
        let open = SessionOpen {
            session: session.into(),
            role: "controller".into(),
            name: session.into(),
            server: "s1".into(),
            server_address: String::new(),
            ttl: Duration::from_secs(3_600),
            machine_id: String::new(),
        };
        let attach = self.memory.open_session(open).await.expect("it opens");
        self.early_end.attach(session.into(), attach)
    }

    async fn attach_all(&self, count: usize) -> Vec<Attached> {
        let mut attached = Vec::new();
        for n in 0..count {
            attached.push(self.attach(&format!("many-{n}")).await);
        }
        attached
    }

    /// How many sessions are alive so many milliseconds later.
    async fn alive_after(&self, millis: u64) -> usize {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        let state = self.memory.coordination().await.expect("a stream").next().await.expect("a state");
        state.expect("it's well").members.len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_its_time_to_come_back_is_over() {
    let bench = Bench::new();
    drop(bench.attach("a").await);
    assert_eq!(bench.alive_after(299).await, 1);
    assert_eq!(bench.alive_after(2).await, 0);
}

#[tokio::test(start_paused = true)]
async fn attached_anew_it_lives() {
    let bench = Bench::new();
    drop(bench.attach("a").await);
    assert_eq!(bench.alive_after(299).await, 1);
    let again = bench.attach("a").await;
    assert_eq!(bench.alive_after(10_000).await, 1);
    drop(again);
    assert_eq!(bench.alive_after(301).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_closed_in_order_is_left_alone() {
    let bench = Bench::new();
    bench.attach("a").await.close();
    assert_eq!(bench.alive_after(10_000).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_left_to_the_ttl_and_a_later_crash_is_not() {
    let bench = Bench::new();
    let mut survivors = bench.attach_all(3).await;
    let mut storm = Vec::new();
    for n in 0..4 {
        storm.push(bench.attach(&format!("storm-{n}")).await);
    }
    drop(storm);
    assert_eq!(bench.alive_after(5_000).await, 7);
    survivors.pop();
    assert_eq!(bench.alive_after(301).await, 6);
}

#[tokio::test(start_paused = true)]
async fn half_of_many_is_no_storm() {
    let bench = Bench::new();
    let mut attached = bench.attach_all(8).await;
    attached.truncate(4);
    assert_eq!(bench.alive_after(301).await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_away_ends_nothing() {
    let bench = Bench::new();
    drop(bench.attach("stale").await);
    bench.ready.send_replace(false);
    assert_eq!(bench.alive_after(301).await, 1);
    bench.ready.send_replace(true);
    drop(bench.attach("draining").await);
    bench.drain.begin();
    assert_eq!(bench.alive_after(10_000).await, 2);
}
