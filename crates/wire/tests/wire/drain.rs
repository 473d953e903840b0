//! What a server says and does when it is told to stop.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::join_all};
use store::{Error, Store, WatchItem, WatchOptions};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::Instant};
use wire::Config;

use crate::{
    double::Double,
    setup::{Server, next, one, past_snapshot, remote, session, soon},
};

/// A server that is told to stop has ended by then.
const PROMISED: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watches_end_within_five_seconds() {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    let remotes = [server.remote(), server.remote()];
    let opening = (0..1_000).map(|n| remotes[n % 2].watch(WatchOptions::default()));
    let mut watches: Vec<_> = join_all(opening).await.into_iter().map(|watch| watch.unwrap()).collect();
    for items in &mut watches {
        past_snapshot(items).await;
    }
    let before = Instant::now();
    let reading = tokio::spawn(join_all(watches.into_iter().map(async |mut items| {
        let last = next(&mut items).await;
        assert!(matches!(&last, WatchItem::End { reason, .. } if reason == "DRAINING"), "{last:?}");
        assert_eq!(soon(items.next()).await, None, "nothing after the end");
    })));
    server.drain().await;
    soon(reading).await.unwrap();
    assert!(before.elapsed() < PROMISED, "{:?}", before.elapsed());
}

#[tokio::test]
async fn peers_that_do_not_read_are_cut() {
    // What the process does after it has its time, too; and a machine that is busy takes some more here.
    let config = Config::new("s1");
    assert!(config.drain_max <= PROMISED - Duration::from_secs(1));
    let config = Config { drain_max: Duration::from_secs(1), ..config };
    let server = Server::with(Arc::new(Double::default()), config).await;
    // One that never said anything, one that holds an unread watch, one that holds a reflection stream.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(b"PRI * HT").await.unwrap();
    let remote = server.remote();
    let unread = remote.watch(WatchOptions::default()).await.unwrap();
    remote.open_session(session("a", "controller", "one")).await.unwrap();
    let before = Instant::now();
    server.drain().await;
    assert!(before.elapsed() < PROMISED, "{:?}", before.elapsed());
    drop(unread);
}

#[tokio::test]
async fn other_streams_break_so_that_clients_move() {
    let (double, server, remote) = one().await;
    let mut states = remote.coordination().await.unwrap();
    soon(states.next()).await.unwrap().unwrap();
    remote.open_session(session("a", "controller", "one")).await.unwrap();
    soon(states.next()).await.unwrap().unwrap();
    server.drain().await;
    let broken = soon(states.next()).await.unwrap();
    assert!(matches!(&broken, Err(Error::Unavailable(why)) if why.contains("draining")), "{broken:?}");
    assert!(soon(states.next()).await.is_none());
    drop(double);
}

#[tokio::test]
async fn no_new_connection_while_draining() {
    let double = Arc::new(Double::default());
    let mut server = Server::start(double.clone()).await;
    let _watch = server.remote().watch(WatchOptions::default()).await.unwrap();
    server.begin_drain();
    // Accepted or not, it's of no use; other servers are.
    let other = Server::start(double.clone()).await;
    remote([server.address(), other.address()]).head().await.unwrap();
}
