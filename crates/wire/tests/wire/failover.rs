//! Several servers, of which some don't answer.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use model::{Actor, Revision};
use store::{
    Error, Store, Transaction, WatchItem, WatchOptions,
    conformance::{create, put, resource},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::Instant,
};
use wire::{Options, Remote};

use crate::{
    double::Double,
    setup::{Server, next, past_snapshot, remote, soon},
};

fn commit(name: &str) -> Transaction {
    Transaction { writes: vec![put(resource(name), Revision::ZERO)], ..Default::default() }
}

/// An address where nobody listens. As long as the socket is held, nobody else is given its port.
fn nobody() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

#[tokio::test]
async fn the_next_server_takes_over_within_a_second() {
    let double = Arc::new(Double::default());
    let (first, second) = (Server::start(double.clone()).await, Server::start(double.clone()).await);
    let remote = remote([first.address(), second.address()]);
    let mut items = remote.watch(WatchOptions::default()).await.unwrap();
    past_snapshot(&mut items).await;
    let token = {
        let revision = create(&remote, "a").await;
        assert!(matches!(next(&mut items).await, WatchItem::Changes(_)));
        store::ResumeToken { incarnation: remote.cluster().await.unwrap().incarnation, revision }
    };

    let before = Instant::now();
    drop(first);
    let broken = soon(items.next()).await.unwrap();
    assert!(matches!(broken, Err(Error::Unavailable(_))), "{broken:?}");
    assert_eq!(soon(items.next()).await, None);
    create(&remote, "b").await;
    let resume = Some(token);
    let mut items = remote.watch(WatchOptions { resume, ..Default::default() }).await.unwrap();
    let WatchItem::Changes(group) = next(&mut items).await else { panic!("it goes on where it was") };
    assert_eq!(group.changes[0].key().name(), "b");
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}

#[tokio::test]
async fn writes_that_were_never_sent_go_to_the_next_server() {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    let ((_first, first), (_second, second)) = (nobody(), nobody());
    let remote = remote([first, second, server.address()]);
    remote.commit(commit("a")).await.unwrap();
    assert_eq!(double.heard().len(), 1);
}

#[tokio::test]
async fn without_any_server_nothing_is_done_and_it_says_so() {
    let (_held, address) = nobody();
    let remote = remote([address]);
    let before = Instant::now();
    for answered in [remote.commit(commit("a")).await.map(drop), remote.head().await.map(drop)] {
        assert!(matches!(&answered, Err(Error::Unavailable(why)) if why.contains("refused")), "{answered:?}");
    }
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}

/// A proxy that passes requests on, and breaks where an answer would come back.
async fn swallowing(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut upstream = TcpStream::connect(server).await.unwrap();
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = upstream.split();
        let requests = tokio::io::copy(&mut from_client, &mut to_server);
        let answers = async {
            // Settings and the like go through; the first frame of an answer (HEADERS) ends it.
            let mut head = [0; 9];
            while from_server.read_exact(&mut head).await.is_ok() && head[3] != 1 {
                let mut body = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
                from_server.read_exact(&mut body).await.unwrap();
                to_client.write_all(&[&head[..], &body].concat()).await.unwrap();
            }
        };
        tokio::select! {
            _ = requests => {}
            () = answers => {}
        }
    });
    address
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_not_repeated() {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    let remote = remote([swallowing(server.address()).await, server.address()]);
    let lost = soon(remote.commit(commit("a"))).await;
    assert!(matches!(lost, Err(Error::OutcomeUnknown(_))), "{lost:?}");
    assert_eq!(double.heard().len(), 1, "once");
    // The next call goes to the other server.
    assert!(remote.head().await.unwrap().revision > Revision::ZERO);
}

#[tokio::test]
async fn a_frozen_server_is_left_by_keep_alive() {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    // Accepts by its backlog, and never says a word.
    let frozen = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = frozen.local_addr().unwrap().to_string();
    let remote = remote([address, server.address()]);
    let before = Instant::now();
    // It was sent, for all that is known.
    let lost = soon(remote.commit(commit("a"))).await;
    assert!(lost.is_err(), "{lost:?}");
    remote.commit(commit("b")).await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(3), "{:?}", before.elapsed());
}

#[tokio::test]
async fn bad_options_are_refused() {
    let refused = |servers: &[&str]| Remote::new(Options::new(servers.iter().copied(), Actor::anonymous())).err();
    assert!(matches!(refused(&[]), Some(Error::Invalid(_))));
    assert!(matches!(refused(&["127.0.0.1:7400", "not an address"]), Some(Error::Invalid(_))));
    assert!(refused(&["127.0.0.1:7400", "http://[::1]:7400", "localhost:7400"]).is_none());
}
