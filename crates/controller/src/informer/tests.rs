//! The informer against a server that says what the test wants; in simulated time.

use model::Time;
use store::WatchItem;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::*;
use crate::{
    Config, Controller,
    testing::{LONG, Opened, Restarting},
};

struct World {
    shared: Arc<Shared>,
    opened: mpsc::UnboundedReceiver<Opened>,
    informer: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.informer.abort();
    }
}

impl World {
    fn new(wanted: &[u32]) -> Self {
        let store = Restarting::new();
        let (watches, opened) = mpsc::unbounded_channel();
        *store.watches.lock().expect("nobody panics with it") = Some(watches);
        let shared = Controller::new(Config::default(), store).shared;
        let informer = tokio::spawn(run(shared.clone()));
        let world = Self { shared, opened, informer };
        world.want(wanted);
        world
    }

    fn want(&self, shards: &[u32]) {
        self.shared.wanted.send_replace(Some(Arc::new(shards.to_vec())));
    }

    /// The next watch that asks for these from its beginning.
    async fn opened(&mut self, shards: &[u32]) -> Opened {
        let next = async {
            loop {
                let opened = self.opened.recv().await.expect("the informer runs");
                if opened.options.filter.shards.as_deref() == Some(shards) {
                    return opened;
                }
            }
        };
        timeout(LONG, next).await.expect("it is opened")
    }

    /// Everything that was sent, and every change of what is wanted, has been looked at.
    async fn digested(&self) {
        // The clock moves only when nobody has anything to do.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn covered(&self) -> Vec<u32> {
        self.shared.cache.covered().into_iter().collect()
    }
}

impl Opened {
    fn tell(&self, item: WatchItem) {
        self.items.send(Ok(item)).expect("it is listened to");
    }

    /// A complete snapshot of nothing.
    fn snapshot(&self, incarnation: &str, partial: Option<&[u32]>, revision: i64) {
        let (revision, partial) = (Revision(revision), partial.map(<[u32]>::to_vec));
        let incarnation = incarnation.to_owned();
        self.tell(WatchItem::SnapshotStart { incarnation, revision, time: Time::from_millis(1), partial });
        self.tell(WatchItem::SnapshotEnd { revision });
    }
}

/// Whatever broke it: a server that restarts, again and again, is gone back to at once.
#[tokio::test(start_paused = true)]
async fn a_watch_that_told_something_is_opened_again_at_once() {
    let mut world = World::new(&[1]);
    let began = Instant::now();
    for revision in 1..=20 {
        let watch = world.opened(&[1]).await;
        watch.snapshot("i", None, revision);
        world.digested().await;
        watch.items.send(Err(store::Error::Unavailable("it restarts".into()))).expect("it is listened to");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// As from another server than the one before, that lags behind it.
#[tokio::test(start_paused = true)]
async fn a_snapshot_older_than_what_was_seen_covers_nothing() {
    let mut world = World::new(&[1]);
    let watch = world.opened(&[1]).await;
    watch.snapshot("i", None, 10);
    world.digested().await;
    world.shared.cache.advance(Revision(20));
    world.want(&[1, 2]);
    world.digested().await;
    watch.snapshot("i", Some(&[2]), 15);
    let next = world.opened(&[1, 2]).await;
    assert_eq!(world.covered(), [1]);
    next.snapshot("i", None, 20);
    world.digested().await;
    assert_eq!(world.covered(), [1, 2]);
}

/// A reader that is too slow is told everything anew, as of before it asked for more.
#[tokio::test(start_paused = true)]
async fn a_whole_snapshot_in_the_middle_of_a_watch_covers_what_was_covered() {
    let mut world = World::new(&[1]);
    let watch = world.opened(&[1]).await;
    watch.snapshot("i", None, 10);
    world.digested().await;
    world.want(&[1, 2]);
    world.digested().await;
    watch.snapshot("i", None, 11);
    world.digested().await;
    assert_eq!(world.covered(), [1]);
    watch.snapshot("i", Some(&[2]), 11);
    watch.snapshot("i", None, 12);
    world.digested().await;
    assert_eq!(world.covered(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_another_one_begins_anew_however_low_its_revisions() {
    let mut world = World::new(&[1]);
    let watch = world.opened(&[1]).await;
    watch.snapshot("i", None, 10);
    watch.snapshot("restored", None, 3);
    world.digested().await;
    assert_eq!((world.shared.cache.revision(), world.covered()), (Revision(3), vec![1]));
}
