//! The servers, and which of them is used now.
//!
//! One HTTP/2 connection for each server that was ever used, dialled when it's first needed. All calls go to the current
//! server; whoever finds it unreachable, or is told that it can't serve, moves everybody on to the next.

use std::{
    future::Future,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use store::{Caller, Error, Result};
use tokio::time::Instant;
use tonic::{
    Extensions, Request, Response, Status,
    metadata::MetadataMap,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::Options;
use crate::{
    RESPONSE_BYTES_MAX,
    error::{Call, UNANSWERED, from_status},
    identity,
    rpc::{
        agent_service_client::AgentServiceClient, coordination_service_client::CoordinationServiceClient,
        resource_service_client::ResourceServiceClient,
    },
};

/// Unread bytes of one stream, and of all streams of a connection. The second is many times the first, so that a few
/// watches that nobody reads at the moment don't hold up the beats of a session.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// A ping must be answered more patiently where there's no other server to go to.
const ALONE_PATIENCE: u32 = 5;
/// First pause between two rounds of dialling.
const REDIAL_MIN: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub struct Server {
    index: usize,
    channel: Channel,
}

impl Server {
    pub fn resources(&self) -> ResourceServiceClient<Channel> {
        ResourceServiceClient::new(self.channel.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX)
    }

    pub fn coordination(&self) -> CoordinationServiceClient<Channel> {
        CoordinationServiceClient::new(self.channel.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX)
    }

    pub fn agents(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX)
    }
}

#[derive(Debug)]
pub struct Pool {
    servers: Vec<Server>,
    current: AtomicUsize,
    pub deadline: Duration,
    redial_max: Duration,
}

impl Pool {
    pub fn new(options: &Options) -> Result<Self> {
        let server = |(index, address): (usize, &String)| -> Result<Server> {
            let refuse = |error: tonic::transport::Error| {
                let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Error::invalid("server", format!("{address:?} is no address like 127.0.0.1:7400: {cause}"))
            };
            let endpoint = endpoint(address, options).map_err(refuse)?;
            Ok(Server { index, channel: endpoint.connect_lazy() })
        };
        if options.servers.is_empty() {
            return Err(Error::invalid("server", "name at least one, such as 127.0.0.1:7400"));
        }
        Ok(Self {
            servers: options.servers.iter().enumerate().map(server).collect::<Result<_>>()?,
            current: AtomicUsize::new(0),
            deadline: options.deadline,
            redial_max: options.redial_max,
        })
    }

    pub fn current(&self) -> Server {
        self.servers[self.current.load(Ordering::Relaxed)].clone()
    }

    /// All of them, the current one first.
    pub fn all(&self) -> impl Iterator<Item = Server> {
        let current = self.current.load(Ordering::Relaxed);
        let (before, after) = self.servers.split_at(current);
        after.iter().chain(before).cloned()
    }

    /// That server can't serve. Many may find this out at once, but everybody moves on by one.
    pub fn leave(&self, server: &Server) {
        let next = (server.index + 1) % self.servers.len();
        // An error means that somebody else already moved on.
        if self.current.compare_exchange(server.index, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::debug!(from = server.index, to = next, "moved on to another server");
        }
    }

    /// One unary call, or the opening of a stream, within the deadline. `Unavailable` means that nothing was done (see
    /// `from_status`), so the next server is asked: each once, and for a read one more time.
    pub async fn call<T, F>(&self, call: Call, rpc: impl Fn(Server) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let give_up = Instant::now() + self.deadline;
        let mut attempts = self.servers.len() + usize::from(call == Call::Read);
        loop {
            let server = self.current();
            let error = match tokio::time::timeout_at(give_up, rpc(server.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => from_status(&status, call),
                Err(_) => {
                    self.leave(&server);
                    return Err(self.too_late(call));
                }
            };
            if matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown(_)) {
                self.leave(&server);
            }
            attempts -= 1;
            if attempts == 0 || !matches!(error, Error::Unavailable(_)) {
                return Err(error);
            }
        }
    }

    fn too_late(&self, call: Call) -> Error {
        let text = format!("{UNANSWERED} within {} ms", self.deadline.as_millis());
        match call {
            Call::Read => Error::Unavailable(text),
            Call::Write => Error::OutcomeUnknown(text),
        }
    }

    pub fn backoff(&self) -> Backoff {
        Backoff { next: REDIAL_MIN.min(self.redial_max), max: self.redial_max }
    }
}

fn endpoint(address: &str, options: &Options) -> Result<Endpoint, tonic::transport::Error> {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let uri = match address.split_once("://") {
        Some((_, rest)) => format!("{scheme}://{rest}"),
        None => format!("{scheme}://{address}"),
    };
    let patience = if options.servers.len() == 1 { ALONE_PATIENCE } else { 1 };
    let mut endpoint = Endpoint::from_shared(uri)?
        .connect_timeout(options.connect_timeout * patience)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(options.keep_alive_interval * patience)
        .keep_alive_timeout(options.keep_alive_timeout * patience)
        .keep_alive_while_idle(true);
    if let Some(tls) = &options.tls {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        if let Some(domain) = &tls.domain {
            config = config.domain_name(domain);
        }
        endpoint = endpoint.tls_config(config)?;
    }
    Ok(endpoint)
}

/// Metadata that says who calls; one for all attempts of a call.
#[derive(Clone, Debug)]
pub struct Signature(MetadataMap);

impl Signature {
    pub fn new(caller: &Caller) -> Result<Self> {
        let mut metadata = MetadataMap::new();
        identity::sign(&mut metadata, caller)?;
        Ok(Self(metadata))
    }

    pub fn on<M>(&self, message: M) -> Request<M> {
        Request::from_parts(self.0.clone(), Extensions::new(), message)
    }
}

/// What was answered, without gRPC around it.
pub async fn answer<T>(rpc: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    rpc.await.map(Response::into_inner)
}

/// Pauses between rounds of dialling: doubling, with jitter, up to a second, which is well under a session's TTL.
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    pub async fn pause(&mut self) {
        let pause = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = (self.next * 2).min(self.max);
        tokio::time::sleep(pause).await;
    }
}
