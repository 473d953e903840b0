//! A watch that lies: an event that is lost, or altered, between etcd and a server, and between a server and a controller.
//! The cache behind it is found to be wrong and healed; that is counted, and the log says what differed.

use std::{
    io,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use api::v1;
use controller::Controller;
use kinds::{instance, service};
use model::Actor;
use prost::{Message, bytes::Bytes};
use server::{Config, Server};
use store::Store;
use store_etcd::testing::grpc_proxy::{Between, GrpcProxy};
use store_etcd::{EtcdStore, Options, testing::Etcd};
use tokio::{net::TcpListener, sync::watch};
use tonic::Status;
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    recorder::{Recorder, wish},
    state::{converged, service_spec, settled},
    world::{Shape, World, client},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// What an answer of a watch becomes; none: nothing to lie about in it.
type Lie = Box<dyn FnMut(&[u8]) -> Option<Vec<u8>> + Send>;

/// Tells one lie when it's asked to.
struct Liar {
    method: &'static str,
    lie: Mutex<Option<Lie>>,
}

impl Liar {
    fn on(method: &'static str) -> Arc<Self> {
        Arc::new(Self { method, lie: Mutex::new(None) })
    }

    fn once(&self, lie: impl FnMut(&[u8]) -> Option<Vec<u8>> + Send + 'static) {
        *self.lie.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(lie));
    }

    fn has_lied(&self) -> bool {
        self.lie.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Between for Liar {
    fn answer(&self, path: &str, _call: usize, message: Bytes) -> Result<Bytes, Status> {
        if !path.ends_with(self.method) {
            return Ok(message);
        }
        let mut lie = self.lie.lock().unwrap_or_else(PoisonError::into_inner);
        let told = lie.as_mut().and_then(|lie| lie(&message));
        if told.is_some() {
            *lie = None;
        }
        Ok(told.map_or(message, Bytes::from))
    }
}

/// What this process logs, which runs a server or a controller itself to see its counters.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// One for all tests of the process.
    fn start() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).init();
            log
        })
    }

    #[track_caller]
    fn assert_says(&self, what: &str, of: &str) {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(what)).collect();
        assert!(lines.iter().any(|line| line.contains(of)), "{what:?} of {of:?} isn't in {lines:#?}");
        lines.iter().for_each(|line| println!("{line}"));
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// etcd's answer to a watch, as far as lies need it. The header is passed on as it is.
#[derive(Clone, PartialEq, Message)]
struct EtcdAnswer {
    #[prost(bytes = "vec", tag = "1")]
    header: Vec<u8>,
    #[prost(int64, tag = "2")]
    watch_id: i64,
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<EtcdEvent>,
}

#[derive(Clone, PartialEq, Message)]
struct EtcdEvent {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    kv: Option<EtcdKeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct EtcdKeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
    #[prost(int64, tag = "6")]
    lease: i64,
}

/// Changes what is told of one key, where it's told.
fn etcd_lie(key: &'static str, mut lie: impl FnMut(&mut Vec<EtcdEvent>, usize) + Send + 'static) -> Lie {
    Box::new(move |answer| {
        let mut answer = EtcdAnswer::decode(answer).expect("etcd speaks its own protocol");
        let of_key = |event: &EtcdEvent| event.kv.as_ref().is_some_and(|kv| kv.key.ends_with(key.as_bytes()));
        let at = answer.events.iter().position(of_key)?;
        lie(&mut answer.events, at);
        Some(answer.encode_to_vec())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_etcd_and_a_server() {
    let log = Log::start();
    let etcd = Etcd::start().await;
    let liar = Liar::on("/etcdserverpb.Watch/Watch");
    let proxy = GrpcProxy::start(&etcd.endpoints()[0], liar.clone()).await;
    let store = Arc::new(EtcdStore::new(Options::new(vec![proxy.address.to_string()])).expect("an endpoint"));
    let mut config = Config::new("lied-to");
    config.audit_every = Duration::from_millis(200);
    let server = Arc::new(Server::start(config, store.clone()).await.expect("etcd answers"));
    server.ready().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let serving = wire::serve(server.clone(), listener, wire::Config::new("lied-to"), std::future::pending());
    let serving = tokio::spawn(serving);
    let (remote, recorder) = (client([address.as_str()]), Recorder::new());
    let version = async |name: &str| {
        let object = remote.get(&wish(name, 1, "").key()).await.expect("the server answers").expect("it exists");
        service_spec(&object.resource().expect("it decodes")).version
    };

    // Lost: the counter in `head` tells of more keys than came.
    recorder.apply_at_last("c", &remote, &[wish("lost", 1, "v1")]).await;
    liar.once(etcd_lie("/Service/default/lost", |events, at| drop(events.remove(at))));
    recorder.apply_at_last("c", &remote, &[wish("lost", 1, "v2")]).await;
    assert_eq!(version("lost").await, "v2");
    assert!(liar.has_lied());
    assert_eq!(store.counts().relists_missing, 1);
    log.assert_says("etcd's watch left something out; listed anew", "Service/default/lost");

    // Altered: nothing is missing, so only the audit can find it.
    let before = server.counters().healed.get();
    liar.once(etcd_lie("/Service/default/altered", |events, at| {
        let value = &mut events[at].kv.as_mut().expect("a put").value;
        let version = value.windows(5).position(|window| window == b"right").expect("the version is in it");
        value[version..version + 5].copy_from_slice(b"wrong");
    }));
    recorder.apply_at_last("c", &remote, &[wish("altered", 1, "right")]).await;
    let healed = async {
        while server.counters().healed.get() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, healed).await.expect("the audit finds it");
    assert!(liar.has_lied());
    assert_eq!(version("altered").await, "right");
    assert!(server.counters().audit_differences.get() >= 1);
    log.assert_says("the cache differs from the store; listing anew", "Service/default/altered");
    serving.abort();
}

/// Changes the first change that matches, or drops it (none).
fn watch_lie(lie: impl Fn(&v1::Resource) -> Option<Option<v1::Resource>> + Send + 'static) -> Lie {
    use v1::{change::Change, watch_response::Item};
    Box::new(move |answer| {
        let mut answer = v1::WatchResponse::decode(answer).expect("servers speak their own protocol");
        let Some(Item::Changes(group)) = &mut answer.item else { return None };
        let lied = group.changes.iter().enumerate().find_map(|(at, change)| match &change.change {
            Some(Change::Put(resource)) => Some((at, lie(resource)?)),
            _ => None,
        });
        match lied? {
            (at, Some(resource)) => group.changes[at].change = Some(Change::Put(resource)),
            (at, None) => drop(group.changes.remove(at)),
        }
        Some(answer.encode_to_vec())
    })
}

/// An instance that is ready, told as one that isn't.
fn unready(resource: &v1::Resource) -> Option<Option<v1::Resource>> {
    let kind = &resource.metadata.as_ref()?.kind;
    let status = resource.status.as_ref().filter(|_| kind == instance::KIND)?;
    let mut told = v1::InstanceStatus::decode(status.value.as_slice()).ok().filter(|status| status.ready)?;
    told.ready = false;
    let mut lied = resource.clone();
    lied.status.as_mut()?.value = told.encode_to_vec();
    Some(Some(lied))
}

/// A declaration that isn't told.
fn undeclared(resource: &v1::Resource) -> Option<Option<v1::Resource>> {
    let is = resource.metadata.as_ref()?.kind == service::KIND && service_spec(resource).version == "v2";
    is.then_some(None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_a_server_and_a_controller() {
    let log = Log::start();
    let world = World::start(Shape { servers: 1, controllers: 0, ..Shape::default() }).await;
    let liar = Liar::on("/driftless.v1.ResourceService/Watch");
    let proxy = GrpcProxy::start(&world.servers[0].address, liar.clone()).await;
    let actor = Actor::parse("controller/believer").expect("an actor");
    let remote = Arc::new(wire::Remote::new(wire::Options::new([proxy.address.to_string()], actor)).expect("it's one"));
    // Its own sweep is far too rare to find anything.
    let config = controller::Config { sweep: 10 * PATIENCE, ..controller::Config::default() };
    let controller = Controller::new(config, remote);
    let stats = controller.stats();
    let (end, ended) = watch::channel(false);
    let running = tokio::spawn(controller.run(ended));
    let (tail, coordination) = (world.tail(0), world.coordination());
    coordination.until("it has its share", PATIENCE, |s| settled(s, 1)).await;
    let differed = |stats: &AtomicU64| stats.load(Ordering::Relaxed);

    liar.once(watch_lie(unready));
    world.recorder.apply_at_last("c", &world.client(), &[wish("web", 2, "v1")]).await;
    tail.until("all is as declared, though it was told of one that isn't ready", PATIENCE, converged).await;
    assert!(liar.has_lied());
    let altered = differed(&stats.divergences);
    assert!(altered >= 1 && differed(&stats.relists) >= 1, "{stats:?}");
    log.assert_says("the cache was wrong here", "Instance/default/web-");

    liar.once(watch_lie(undeclared));
    world.recorder.apply_at_last("c", &world.client(), &[wish("web", 2, "v2")]).await;
    tail.until("all is as declared, though it wasn't told of the declaration", PATIENCE, converged).await;
    assert!(liar.has_lied());
    assert!(differed(&stats.divergences) > altered, "{stats:?}");
    log.assert_says("the cache was wrong here", "Service/default/web");
    end.send_replace(true);
    running.await.expect("it doesn't panic").expect("it ends in order");
    world.check(vec![tail]).await;
}
