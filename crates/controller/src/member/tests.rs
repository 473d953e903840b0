//! The member against a store that restarts, falls mute, or takes its time; in simulated time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use model::Time;
use store::Store;
use tokio::task::JoinHandle;

use super::*;
use crate::{
    Config, Controller,
    testing::{LONG, Restarting, memory},
};

/// One that looks at things again so rarely that nothing but the protocol itself gives it something to say.
fn config() -> Config {
    Config { name: "c".into(), sweep: Duration::from_secs(3600), ..Config::default() }
}

struct Running {
    task: JoinHandle<()>,
    shutdown: watch::Sender<bool>,
}

fn start(store: &Arc<Restarting>) -> Running {
    let (shutdown, asked) = watch::channel(false);
    let controller = Controller::new(config(), store.clone());
    let task = tokio::spawn(async move { controller.run(asked).await.expect("it ends without an error") });
    Running { task, shutdown }
}

impl Running {
    async fn ended(self) {
        timeout(LONG, self.task).await.expect("it ends").expect("it doesn't panic");
    }
}

fn is_ready(members: &[v1::Member]) -> bool {
    members.iter().any(|member| member.report.as_ref().is_some_and(|report| report.ready))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_forgot_what_was_said_is_told_again() {
    let store = Restarting::new();
    let _running = start(&store);
    let before = store.shows("it is ready", is_ready).await;
    store.restart().await;
    let restarted = Instant::now();
    let after = store.shows("it is ready again", is_ready).await;
    assert_eq!(after[0].session, before[0].session, "attached again, not another");
    assert!(restarted.elapsed() < Duration::from_secs(1), "{:?}", restarted.elapsed());
}

/// The claims of an empty store are nobody's, at epoch 0, while this replica held them at an epoch from before.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_replaced_again_and_again_has_its_claims_taken_each_time() {
    let store = Restarting::new();
    let _running = start(&store);
    let owned = |state: &v1::Coordination| {
        let alive = |owner: &str| state.members.iter().any(|member| member.session == owner);
        state.claims.iter().filter(|claim| alive(&claim.owner)).count() == 3
    };
    store.shows_all("its claims", owned).await;
    for incarnation in ["second", "third", "fourth"] {
        let before = store.shows("it lives", |members| members.len() == 1).await.remove(0).session;
        store.become_another(incarnation).await;
        let after = store.shows_all(&format!("the claims of the {incarnation}"), owned).await;
        assert!(after.claims.iter().all(|claim| claim.owner != before), "{after:?}: by a session that held nothing");
    }
}

/// A report that was long on its way, over another server, replaces a newer one.
#[tokio::test(start_paused = true)]
async fn what_came_late_is_put_right_by_the_next_renewal() {
    let store = Restarting::new();
    let _running = start(&store);
    let session = store.shows("it is ready", is_ready).await.remove(0).session;
    store.now().beat(&session, Some(v1::MemberReport::default())).await.expect("it lives");
    let late = Instant::now();
    store.shows("it is ready again", is_ready).await;
    assert!(late.elapsed() < config().ttl / 2, "{:?}", late.elapsed());
}

#[tokio::test(start_paused = true)]
async fn it_hears_that_its_session_ended_while_nothing_else_is_heard() {
    let store = Restarting::new();
    let _running = start(&store);
    let first = store.shows("it is ready", is_ready).await.remove(0).session;
    store.mute.store(true, Ordering::Relaxed);
    store.break_streams();
    assert!(store.now().end_session(&first, None).await.expect("memory answers"));
    store.shows("another session", |members| members.iter().any(|m| m.session != first)).await;
}

#[tokio::test(start_paused = true)]
async fn it_does_not_leave_while_it_may_still_be_given_a_claim() {
    let store = Restarting::new();
    store.grants.send_replace(false);
    let running = start(&store);
    timeout(LONG, store.asked.subscribe().wait_for(|asked| *asked == 3)).await.expect("in time").expect("it lives");
    running.shutdown.send_replace(true);
    let leaving = |members: &[v1::Member]| members.iter().any(|m| m.report.as_ref().is_some_and(|r| r.leaving));
    store.shows("it leaves", leaving).await;
    tokio::time::sleep(config().leave_timeout / 2).await;
    assert!(!running.task.is_finished(), "what it asked for may come true, and would be nobody's");
    store.grants.send_replace(true);
    running.ended().await;
    store.shows("it left", <[v1::Member]>::is_empty).await;
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_asked_though_no_server_answers() {
    let store = Restarting::new();
    store.mute.store(true, Ordering::Relaxed);
    let running = start(&store);
    running.shutdown.send_replace(true);
    running.ended().await;
}

/// Workers and sweeps ask the holdings while they look at the cache, and a writer of the cache waits for them: a member
/// that asked the cache while it held the holdings would stop all of them for good.
#[test]
fn members_workers_and_writers_of_the_cache_never_wait_for_each_other_for_ever() {
    const ROUNDS: usize = 20_000;
    let shared = Controller::new(config(), memory()).shared;
    let mut member = Member::new(shared.clone(), "s".into(), 64);
    let ready = Some(v1::MemberReport { ready: true, ..Default::default() });
    let me = v1::Member { session: "s".into(), role: "controller".into(), report: ready, ..Default::default() };
    member.see(&v1::Coordination { members: vec![me], shards: 64, ..Default::default() });
    assert_eq!(member.assignment.len(), 65, "it asks the cache about each of them");
    let left = Arc::new(AtomicUsize::new(ROUNDS));
    let (done, ended) = mpsc::channel();
    let go_on = |done: mpsc::Sender<()>, mut act: Box<dyn FnMut() + Send>| {
        let left = left.clone();
        // Left behind where it hangs, which the test then says.
        thread::spawn(move || {
            while left.load(Ordering::Relaxed) > 0 {
                act();
            }
            _ = done.send(());
        })
    };
    let (worker, writer, counter) = (shared.clone(), shared.clone(), left.clone());
    go_on(done.clone(), Box::new(move || _ = worker.cache.world(|_| worker.holdings.is_active(LEADER))));
    go_on(done.clone(), Box::new(move || writer.cache.set_clock(Time::from_millis(1))));
    go_on(
        done,
        Box::new(move || {
            _ = member.report();
            _ = member.local();
            member.choose_shards();
            counter.fetch_sub(1, Ordering::Relaxed);
        }),
    );
    for _ in 0..3 {
        // However slow the machine is: as long as there is progress nobody waits for ever.
        let mut before = usize::MAX;
        while ended.recv_timeout(LONG).is_err() {
            let now = left.load(Ordering::Relaxed);
            assert!(now < before, "one of them waits for ever, with {now} rounds to go");
            before = now;
        }
    }
}
