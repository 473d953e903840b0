//! A server with a thousand open watches dies: each goes on at another, with nothing lost and nothing told twice.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use driftless_tests::history::{Stream, Told};
use model::Filter;
use rustix::process::Signal;
use store::WatchItem;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    recorder::wish,
    tail::{follow, told},
    world::{Shape, World, report},
};

const WATCHES: usize = 1_000;
const CONNECTIONS: usize = 10;
const WRITES: usize = 90;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Watcher {
    told: Arc<Mutex<Vec<Told>>>,
    at: watch::Sender<i64>,
}

impl Watcher {
    /// Snapshots of these watches are empty but for what the first server made.
    fn take(&self, item: &WatchItem) {
        let at = match item {
            WatchItem::SnapshotStart { .. } => 0,
            WatchItem::Snapshot(objects) => {
                assert!(objects.is_empty(), "nothing of the kind exists yet");
                0
            }
            WatchItem::SnapshotEnd { revision } => {
                let all = Default::default();
                self.told.lock().expect("no watcher panics").push(Told::Snapshot { revision: revision.0, all });
                revision.0
            }
            WatchItem::Changes(group) => group.to.0,
            WatchItem::Bookmark(bookmark) => bookmark.revision.0,
            WatchItem::End { .. } => 0,
        };
        self.told.lock().expect("no watcher panics").extend(told(item));
        self.at.send_if_modified(|known| std::mem::replace(known, at.max(*known)) < at);
    }

    async fn reached(&self, revision: i64) {
        let mut at = self.at.subscribe();
        let reached = tokio::time::timeout(PATIENCE, at.wait_for(|at| *at >= revision)).await;
        assert!(reached.is_ok(), "a watch is at {} after {PATIENCE:?}, not at {revision}", *self.at.borrow());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watches_go_on_at_another_server() {
    let world = World::start(Shape { controllers: 0, agents: 0, ..Shape::default() }).await;
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| world.client_from(0)).collect();
    let mut tasks = JoinSet::new();
    let new = || Watcher { told: Arc::default(), at: watch::Sender::new(0) };
    let watchers: Vec<Watcher> = (0..WATCHES).map(|_| new()).collect();
    for (n, watcher) in watchers.iter().cloned().enumerate() {
        let filter = Filter::kind(kinds::service::KIND);
        tasks.spawn(follow(clients[n % CONNECTIONS].clone(), filter, move |item| watcher.take(&item)));
    }
    let (recorder, writer, other) = (world.recorder.clone(), world.client_from(1), world.client_of(1));
    let write =
        async |n: usize| recorder.apply_at_last("w", &writer, &[wish(format!("s{}", n % 7), 1, format!("v{n}"))]).await;
    for watcher in &watchers {
        watcher.reached(1).await;
    }
    let mut last = 0;
    for n in 0..WRITES / 3 {
        last = write(n).await;
    }
    for watcher in &watchers {
        watcher.reached(last).await;
    }
    // It dies in the midst of more.
    let mut killed = None;
    for n in WRITES / 3..WRITES {
        if n == WRITES / 2 {
            world.servers[0].part.process().signal(Signal::KILL);
            killed = Some(Instant::now());
        }
        last = write(n).await;
        if n % 10 == 0 {
            recorder.list("reader", &other).await.expect("the other server answers");
        }
    }
    for watcher in &watchers {
        watcher.reached(last).await;
    }
    report("server killed, all watches have all", killed.expect("it was killed").elapsed());
    tasks.shutdown().await;
    let stream = |(n, watcher): (usize, &Watcher)| {
        let told = std::mem::take(&mut *watcher.told.lock().expect("no watcher panics"));
        Stream { name: format!("watch {n}"), prefix: format!("{}/", kinds::service::KIND), told }
    };
    let streams: Vec<Stream> = watchers.iter().enumerate().map(stream).collect();
    let checked = world.check_with(streams).await;
    assert_eq!(checked.snapshots, WATCHES, "each was answered by one snapshot, and then resumed");
    assert!(checked.told >= WATCHES * WRITES / 2, "{checked:?}");
}
