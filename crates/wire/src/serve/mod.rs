//! Any `store::Api` as gRPC, on a listener that the caller made.
//!
//! Adds what the wire asks for and nothing else: identities, limits, health, reflection, streams that end when the
//! server drains, and the early end of sessions whose process died (`early_end`).

mod agent;
mod coordination;
mod drain;
pub mod early_end;
mod hub;
mod incoming;
mod refuse;
mod relay;
mod resource;
mod watch;

use std::{
    convert::Infallible,
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use store::Api;
use telemetry::trace::Tracer;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch::Receiver},
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Status, Streaming,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tower::util::MapResponseLayer;

use self::{drain::Drain, early_end::EarlyEnd, hub::Hub};
use crate::{
    REQUEST_BYTES_MAX, error,
    rpc::{
        agent_service_server::AgentServiceServer, coordination_service_server::CoordinationServiceServer,
        resource_service_server::ResourceServiceServer,
    },
};

/// Open streams on one connection. hyper's own default of 200 is less than one busy client opens.
const STREAMS_MAX: u32 = 16_384;
/// Streams that a client reset before they were looked at; one that cancels all its watches at once is no attacker.
const PENDING_RESETS_MAX: usize = 4_096;
/// Bytes of one stream, and of all streams of a connection, that weren't looked at yet. The second is many times the
/// first, so that logs which nobody reads at the moment don't hold up the reports of the same agent.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 32 * 1024 * 1024;
/// Two unanswered pings' time until a silent client's streams break.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Open watches on one server; at 100,000 resources each may hold a snapshot's worth of pointers.
const WATCHES_MAX: usize = 16_384;
/// A stream's first message, which says what it's about, must come this soon.
const FIRST_MESSAGE_MAX: Duration = Duration::from_secs(10);

/// What health is asked for: all of it, or one service.
const SERVICES: [&str; 4] =
    ["", "driftless.v1.ResourceService", "driftless.v1.CoordinationService", "driftless.v1.AgentService"];

/// How to serve.
#[derive(Clone)]
pub struct Config {
    /// This server's name: what `get members` shows, and sessions record.
    pub name: String,
    /// Where other servers reach this one, to ask for logs of agents that are attached here. Empty: nowhere.
    pub address: String,
    /// Plain text where none.
    pub tls: Option<Tls>,
    /// False while the store can't be confirmed: health then says NOT_SERVING, and no session is ended early. Always
    /// ready where none.
    pub ready: Option<Receiver<bool>>,
    pub early_end: early_end::Times,
    /// From the shutdown until connections that are still open are cut. Streams are ended at once and calls finish, so
    /// only a peer that doesn't read gets that far.
    pub drain_max: Duration,
    pub tracer: Tracer,
}

impl Config {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            address: String::new(),
            tls: None,
            ready: None,
            early_end: early_end::Times::default(),
            // 5 s are promised; leaves one for what the process does after.
            drain_max: Duration::from_secs(4),
            tracer: Tracer::off(),
        }
    }
}

/// PEM, as read from the files. Not for printing: there's a key in it.
#[derive(Clone)]
pub struct Tls {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// Where set, clients must show a certificate of this authority.
    pub client_ca: Option<Vec<u8>>,
}

/// It couldn't start, or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot serve gRPC")]
    Transport(#[from] tonic::transport::Error),
    #[error("the protos' descriptors can't be served by reflection")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `shutdown`, then drains: no new connection, GOAWAY on the open ones, a last word on every stream. Returns
/// when all connections are closed, at most `drain_max` later.
pub async fn serve(
    api: Arc<dyn Api>,
    listener: TcpListener,
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let drain = Drain::default();
    let cut = CancellationToken::new();
    let health = HealthReporter::new();
    let service = Service::new(api, &config, drain.clone());
    let health_service = HealthService::from_health_reporter(health.clone());
    let routes = builder(&config)?
        .layer(MapResponseLayer::new(refuse::clearly as fn(_) -> _))
        .add_service(ResourceServiceServer::from_arc(service.clone()).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(CoordinationServiceServer::from_arc(service.clone()).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(AgentServiceServer::from_arc(service).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(HealthServer::new(health_service))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let serving = routes.serve_with_incoming_shutdown(incoming::incoming(listener, cut.clone()), async {
        shutdown.await;
        drain.begin();
    });
    tokio::select! {
        served = serving => Ok(served?),
        never = report_health(health, config.ready, &drain) => match never {},
        never = cut_after(&drain, config.drain_max, &cut) => match never {},
    }
}

fn builder(config: &Config) -> Result<Server, Error> {
    let mut server = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT));
    if let Some(tls) = &config.tls {
        let mut tls_config = ServerTlsConfig::new().identity(Identity::from_pem(&tls.certificate, &tls.key));
        if let Some(authority) = &tls.client_ca {
            tls_config = tls_config.client_ca_root(Certificate::from_pem(authority));
        }
        server = server.tls_config(tls_config)?;
    }
    Ok(server)
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(api::DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // Each version tells of both, or a client that asks the one takes the other to be missing.
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
}

/// Says NOT_SERVING while not ready and while draining; then ends the health watches too.
async fn report_health(mut health: HealthReporter, ready: Option<Receiver<bool>>, drain: &Drain) -> Infallible {
    let reported = async {
        let Some(mut ready) = ready else { return pending().await };
        loop {
            let status = match *ready.borrow_and_update() {
                true => ServingStatus::Serving,
                false => ServingStatus::NotServing,
            };
            set_health(&health, status).await;
            if ready.changed().await.is_err() {
                return pending().await;
            }
        }
    };
    set_health(&health, ServingStatus::Serving).await;
    tokio::select! {
        never = reported => never,
        () = drain.begun() => {}
    }
    set_health(&health, ServingStatus::NotServing).await;
    for service in SERVICES {
        health.clear_service_status(service).await;
    }
    pending().await
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in SERVICES {
        health.set_service_status(service, status).await;
    }
}

async fn cut_after(drain: &Drain, drain_max: Duration, cut: &CancellationToken) -> Infallible {
    drain.begun().await;
    tokio::time::sleep(drain_max).await;
    tracing::warn!("connections that were still open after the drain are cut");
    cut.cancel();
    pending().await
}

/// What the three services share.
struct Service {
    api: Arc<dyn Api>,
    name: String,
    address: String,
    tracer: Tracer,
    drain: Drain,
    early_end: Arc<EarlyEnd>,
    hub: Arc<Hub>,
    watches: Arc<Semaphore>,
}

impl Service {
    fn new(api: Arc<dyn Api>, config: &Config, drain: Drain) -> Arc<Self> {
        Arc::new(Self {
            early_end: EarlyEnd::new(api.clone(), config.early_end, drain.clone(), config.ready.clone()),
            api,
            name: config.name.clone(),
            address: config.address.clone(),
            tracer: config.tracer.clone(),
            drain,
            hub: Arc::default(),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
        })
    }
}

fn status(error: store::Error) -> Status {
    error::to_status(&error)
}

fn draining() -> Status {
    status(store::Error::Unavailable("this server is draining; go on with another".into()))
}

/// The message that opens a stream.
async fn first<T>(requests: &mut Streaming<T>) -> Result<T, Status> {
    let missing = || status(store::Error::invalid("", "the stream ended before its first message"));
    let late = || status(store::Error::invalid("", "the stream's first message didn't come in time"));
    let first = tokio::time::timeout(FIRST_MESSAGE_MAX, requests.message()).await.map_err(|_| late())?;
    first.map_err(refuse::inbound)?.ok_or_else(missing)
}
