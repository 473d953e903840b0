//! Servers that a test starts, and what else tests share.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use futures::StreamExt;
use model::Actor;
use store::{Api, SessionOpen, WatchItem, WatchStream};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use wire::{Config, Options, Remote};

use crate::double::Double;

/// Longer than anything here takes; past it a test has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes forever")
}

/// Asks again until it's so. The pause only keeps the machine quiet.
pub async fn eventually<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    let asking = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never so: {what}"));
}

/// A server on a free port of the loopback. Dropped without `drain`, it's as dead as a killed one.
pub struct Server {
    pub address: SocketAddr,
    drain: Option<oneshot::Sender<()>>,
    runtime: Option<tokio::runtime::Runtime>,
    serving: JoinHandle<()>,
}

impl Server {
    pub async fn start(api: Arc<dyn Api>) -> Self {
        Self::with(api, Config::new("s1")).await
    }

    pub async fn named(api: Arc<dyn Api>, name: &str) -> Self {
        Self::with(api, Config::new(name)).await
    }

    /// With a runtime of its own, so that all of it can be stopped at once.
    pub async fn with(api: Arc<dyn Api>, config: Config) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        // Unless the test says something else.
        let advertised = Some(config.address).filter(|a| !a.is_empty()).unwrap_or_else(|| address.to_string());
        let config = Config { address: advertised, ..config };
        let (drain, drained) = oneshot::channel::<()>();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let serving = runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            let shutdown = async {
                // A dropped sender is no signal.
                if drained.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            wire::serve(api, listener, config, shutdown).await.expect("it serves");
        });
        Self { address, drain: Some(drain), runtime: Some(runtime), serving }
    }

    /// As SIGTERM does; returns when it's done.
    pub async fn drain(mut self) {
        self.drain.take().expect("once").send(()).expect("it serves");
        soon(&mut self.serving).await.expect("it ends well");
    }

    pub fn begin_drain(&mut self) {
        self.drain.take().expect("once").send(()).expect("it serves");
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn remote(&self) -> Remote {
        remote([self.address()])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Drops every task of it at once; the kernel closes the sockets.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub fn remote(servers: impl IntoIterator<Item = String>) -> Remote {
    Remote::new(Options::new(servers, Actor::new("controller", "a"))).expect("good options")
}

pub async fn one() -> (Arc<Double>, Server, Remote) {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    let remote = server.remote();
    (double, server, remote)
}

pub fn session(id: &str, role: &str, name: &str) -> SessionOpen {
    SessionOpen {
        session: id.into(),
        role: role.into(),
        name: name.into(),
        server: String::new(),
        server_address: String::new(),
        ttl: Duration::from_secs(60),
        machine_id: String::new(),
    }
}

pub async fn next(stream: &mut WatchStream) -> WatchItem {
    soon(stream.next()).await.expect("the watch goes on").expect("the watch is well")
}

/// Reads past the snapshot.
pub async fn past_snapshot(stream: &mut WatchStream) {
    while !matches!(next(stream).await, WatchItem::SnapshotEnd { .. }) {}
}
