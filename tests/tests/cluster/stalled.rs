//! A controller whose watch says nothing from the moment on that it makes children: it never makes more than it should.
//!
//! What matters is how many sweeps come by meanwhile, not the time: they come every second here and every 30 s by default,
//! so this stands for many minutes.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use api::v1;
use kinds::instance;
use prost::{Message, bytes::Bytes};
use store_etcd::testing::grpc_proxy::{Between, GrpcProxy, Hold};
use tokio::sync::watch;

use crate::{
    recorder::wish,
    state::{converged, settled},
    world::{Shape, World},
};

const CHILDREN: i32 = 7;
const PATIENCE: Duration = Duration::from_secs(90);
/// Each sweep lists what no digest vouched for.
const SWEEPS: usize = 20;
/// The first watch, and another after the first was silent for too long.
const WATCHES: usize = 2;

/// Stalls the watch just before the step that makes children goes on to the server.
#[derive(Default)]
struct Staller {
    hold: OnceLock<watch::Sender<Hold>>,
    lists: AtomicUsize,
    watches: AtomicUsize,
    news: watch::Sender<()>,
}

impl Between for Staller {
    fn request(&self, path: &str, _call: usize, message: Bytes) -> Bytes {
        let creates = |message: Bytes| v1::CommitRequest::decode(message).is_ok_and(|step| step.verb == "create");
        if path.ends_with("/Commit") && creates(message.clone()) {
            self.hold.get().expect("it was just started").send_replace(Hold::Answers("/Watch"));
        }
        let stalled = self.hold.get().is_some_and(|hold| *hold.borrow() != Hold::Nothing);
        self.lists.fetch_add(usize::from(stalled && path.ends_with("/List")), Ordering::Relaxed);
        self.watches.fetch_add(usize::from(path.ends_with("/Watch")), Ordering::Relaxed);
        self.news.send_replace(());
        message
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_stalls_right_after_children_were_made_brings_no_more_of_them() {
    let mut world = World::start(Shape { servers: 1, controllers: 0, sweep: "1s", ..Shape::default() }).await;
    let staller = Arc::new(Staller::default());
    let proxy = GrpcProxy::start(&world.servers[0].address, staller.clone()).await;
    staller.hold.set(proxy.hold.clone()).expect("nobody else does");
    world.add_controller_at("p", &proxy.address.to_string());
    let (tail, coordination) = (world.tail(0), world.coordination());
    coordination.until("it has its share", PATIENCE, |s| settled(s, 1)).await;
    world.recorder.apply_at_last("first", &world.client(), &[wish("web", CHILDREN, "v1")]).await;

    let mut news = staller.news.subscribe();
    let swept = news.wait_for(|()| {
        // One list may need several pages, but not of so few resources.
        staller.lists.load(Ordering::Relaxed) >= SWEEPS && staller.watches.load(Ordering::Relaxed) >= WATCHES
    });
    tokio::time::timeout(PATIENCE, swept).await.expect("it sweeps on").expect("the sender is here");
    assert_eq!(made(&tail.events()), usize::try_from(CHILDREN).expect("a small number"));
    proxy.hold.send_replace(Hold::Nothing);
    tail.until("all is as declared", PATIENCE, converged).await;
    assert_eq!(made(&tail.events()), usize::try_from(CHILDREN).expect("a small number"));
    println!("sweeps while the watch was mute: {}", staller.lists.load(Ordering::Relaxed));
    world.check(vec![tail]).await;
}

/// Instances that ever were.
fn made(events: &[crate::tail::Event]) -> usize {
    let instances = events.iter().filter(|event| event.key.kind() == instance::KIND);
    let uids = instances.filter_map(|event| Some(event.resource.as_ref()?.metadata.as_ref()?.uid.clone()));
    uids.collect::<std::collections::BTreeSet<String>>().len()
}
