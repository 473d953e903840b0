//! A real receiver of spans for tests and benchmarks: OTLP over gRPC on a free port, which can be slow, fail, or be gone.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1,
};
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};
use tonic::{
    Request, Response, Status,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

/// How it takes what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Takes,
    /// Answers with an error that is not worth a retry.
    Fails,
    /// Doesn't answer.
    Hangs,
}

/// A span as it came, with ids in hex.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub service: String,
    pub instance: String,
    /// What else is said of the process.
    pub resource: HashMap<String, String>,
    pub scope: String,
    pub name: String,
    pub kind: String,
    pub trace: String,
    pub id: String,
    /// Empty: the first of its trace.
    pub parent: String,
    pub links: Vec<String>,
    /// Nanoseconds since the Unix epoch.
    pub start: u64,
    pub end: u64,
    pub attributes: HashMap<String, String>,
    pub failed: bool,
}

impl Span {
    /// Empty where it has none.
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}

#[derive(Clone)]
struct Taken {
    spans: Arc<Mutex<Vec<Span>>>,
    mood: watch::Receiver<Mood>,
}

/// Ends, and refuses connections from then on, when it's dropped.
pub struct Receiver {
    address: SocketAddr,
    taken: Taken,
    mood: watch::Sender<Mood>,
    runtime: Option<Runtime>,
}

impl Receiver {
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"))
    }

    /// Where another one was.
    pub fn start_at(address: SocketAddr) -> Self {
        Self::serve(address, None)
    }

    /// For https, by that certificate and key (PEM).
    pub fn start_tls(certificate: &str, key: &str) -> Self {
        let identity = Identity::from_pem(certificate, key);
        Self::serve("127.0.0.1:0".parse().expect("an address"), Some(ServerTlsConfig::new().identity(identity)))
    }

    /// The same, and whoever sends must show a certificate that this authority signed.
    pub fn start_tls_for(certificate: &str, key: &str, authority: &[u8]) -> Self {
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
        let tls = tls.client_ca_root(Certificate::from_pem(authority));
        Self::serve("127.0.0.1:0".parse().expect("an address"), Some(tls))
    }

    fn serve(address: SocketAddr, tls: Option<ServerTlsConfig>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread can be started");
        let (mood, watched) = watch::channel(Mood::Takes);
        let taken = Taken { spans: Arc::default(), mood: watched };
        let listener = std::net::TcpListener::bind(address).expect("the port is free");
        listener.set_nonblocking(true).expect("a socket can be");
        let address = listener.local_addr().expect("it's bound");
        let listener = {
            let _within = runtime.enter();
            TcpListener::from_std(listener).expect("it doesn't block")
        };
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let service = TraceServiceServer::new(taken.clone());
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).expect("the certificate is one");
        }
        runtime.spawn(server.add_service(service).serve_with_incoming(incoming));
        Self { address, taken, mood, runtime: Some(runtime) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    pub fn spans(&self) -> Vec<Span> {
        self.taken.lock().clone()
    }

    /// What came since this was called last.
    pub fn take(&self) -> Vec<Span> {
        std::mem::take(&mut self.taken.lock())
    }

    pub fn trace(&self, id: &str) -> Vec<Span> {
        self.taken.lock().iter().filter(|span| span.trace == id).cloned().collect()
    }
}

impl Drop for Receiver {
    /// Its port is closed when this returns. Elsewhere, since a runtime must not end within another one.
    fn drop(&mut self) {
        let runtime = self.runtime.take();
        std::thread::spawn(move || drop(runtime)).join().expect("a runtime ends without a panic");
    }
}

impl Taken {
    fn lock(&self) -> MutexGuard<'_, Vec<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl TraceService for Taken {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut mood = self.mood.clone();
        // One that hangs answers once its mood has changed.
        let now = *mood.wait_for(|mood| *mood != Mood::Hangs).await.map_err(|_| Status::aborted("it ends"))?;
        if now == Mood::Fails {
            return Err(Status::invalid_argument("as the test wants it"));
        }
        let mut spans = Vec::new();
        for part in request.into_inner().resource_spans {
            let resource = attributes(&part.resource.unwrap_or_default().attributes);
            for scoped in part.scope_spans {
                let scope = scoped.scope.unwrap_or_default().name;
                spans.extend(scoped.spans.into_iter().map(|span| read(span, &resource, &scope)));
            }
        }
        // At once: where the last that a process told of is here, so is all that it told of before.
        self.lock().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn read(span: v1::Span, resource: &HashMap<String, String>, scope: &str) -> Span {
    let of = |key: &str| resource.get(key).cloned().unwrap_or_default();
    Span {
        service: of("service.name"),
        instance: of("service.instance.id"),
        resource: resource.clone(),
        scope: scope.to_owned(),
        kind: span.kind().as_str_name().trim_start_matches("SPAN_KIND_").to_lowercase(),
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        attributes: attributes(&span.attributes),
        failed: span.status.is_some_and(|status| status.code() == v1::status::StatusCode::Error),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(pairs: &[KeyValue]) -> HashMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let value = |pair: &KeyValue| pair.value.as_ref().and_then(|v| v.value.as_ref()).map(text).unwrap_or_default();
    pairs.iter().map(|pair| (pair.key.clone(), value(pair))).collect()
}
