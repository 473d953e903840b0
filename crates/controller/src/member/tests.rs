//! The member against a store that restarts, falls mute, or takes its time; in simulated time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use model::{Key, Object, Revision, Time};
use store::{
    ClaimChange, Cluster, CoordinationStream, Head, HistoryQuery, List, LogRecord, Memory, Page, Result, Store,
    Transaction, WatchOptions, WatchStream,
};
use tokio::task::JoinHandle;

use super::*;
use crate::{Config, Controller};

/// Until what must happen; far longer than it takes.
const LONG: Duration = Duration::from_secs(60);

/// A store whose sessions are kept by whoever runs it at the moment: as `Embedded`, whose sessions end with its process.
#[derive(Default)]
struct Restarting {
    inner: watch::Sender<Option<Arc<Memory>>>,
    opened: Mutex<Vec<SessionOpen>>,
    /// Nothing is heard of the cluster and its members: whoever asks waits.
    mute: AtomicBool,
    /// Claim changes are counted, and passed on only while this is so.
    grants: watch::Sender<bool>,
    asked: watch::Sender<u64>,
}

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(Cluster { incarnation: "i".into(), shards: 2 }))
}

impl Restarting {
    fn new() -> Arc<Self> {
        let store = Self::default();
        store.inner.send_replace(Some(memory()));
        store.grants.send_replace(true);
        Arc::new(store)
    }

    fn now(&self) -> Arc<Memory> {
        self.inner.borrow().clone().expect("it runs")
    }

    /// Nothing is known of sessions any more. Clients attach theirs again at once, as `wire` does.
    async fn restart(&self) {
        let next = memory();
        let opened = self.opened.lock().expect("nobody panics with it").clone();
        for open in opened {
            next.open_session(open).await.expect("it was never ended here");
        }
        self.inner.send_replace(Some(next));
    }

    async fn heard(&self) {
        if self.mute.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    fn break_streams(&self) {
        self.inner.send_modify(|_| {});
    }

    /// Every member as it is shown, as soon as that fits.
    async fn shows(&self, what: &str, fits: impl Fn(&[v1::Member]) -> bool) -> Vec<v1::Member> {
        let shown = async {
            let mut states = self.now().coordination().await.expect("memory answers");
            loop {
                let state = states.next().await.expect("it never ends").expect("it never fails");
                if fits(&state.members) {
                    return state.members.clone();
                }
            }
        };
        timeout(LONG, shown).await.unwrap_or_else(|_| panic!("not shown: {what}"))
    }
}

#[async_trait]
impl Store for Restarting {
    async fn cluster(&self) -> Result<Cluster> {
        self.heard().await;
        self.now().cluster().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.now().get(key).await
    }

    async fn list(&self, list: List) -> Result<Page> {
        self.now().list(list).await
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        self.now().watch(options).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        self.now().commit(transaction).await
    }

    async fn head(&self) -> Result<Head> {
        self.now().head().await
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        self.heard().await;
        let mut inner = self.inner.subscribe();
        inner.mark_unchanged();
        let states = self.now().coordination().await?;
        Ok(states.take_until(async move { _ = inner.changed().await }).boxed())
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.opened.lock().expect("nobody panics with it").push(open.clone());
        self.now().open_session(open).await
    }

    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()> {
        self.now().beat(session, report).await
    }

    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool> {
        self.now().end_session(session, attach).await
    }

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim> {
        self.asked.send_modify(|asked| *asked += 1);
        _ = self.grants.subscribe().wait_for(|grants| *grants).await;
        self.now().change_claim(change).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>> {
        self.now().history(query).await
    }

    async fn trim_history(&self, up_to: Revision) -> Result<usize> {
        self.now().trim_history(up_to).await
    }
}

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
        ended.recv_timeout(LONG).expect("one of them waits for ever");
    }
}
