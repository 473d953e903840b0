//! Export over OTLP, in the background. A span is either put into a bounded queue at once or dropped and counted; nobody
//! ever waits for a receiver that is down, slow or failing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    RetryPolicy, SpanExporter, WithExportConfig, WithTonicConfig,
    tonic_types::transport::{Certificate, ClientTlsConfig, Identity},
};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};

use super::{Config, Endpoint, Tls};

/// Spans that wait for their export, where nothing else is said: at about 1 KiB each, 8 MiB.
pub const QUEUE_DEFAULT: usize = 8_192;
/// The most that may be asked for: 64 MiB.
pub const QUEUE_LIMIT: usize = 65_536;
/// Spans in one export. Below the 4 MiB that receivers take by default.
const BATCH_MAX: usize = 512;
/// How long the first of a batch waits for more.
const LINGER: Duration = Duration::from_millis(500);
/// For one export, its retries included; a batch that took longer is dropped.
const EXPORT_MAX: Duration = Duration::from_secs(10);
/// A receiver that restarts is tried again for about a second.
const RETRIES_MAX: usize = 3;

/// The receiver's address can't be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot export traces to {endpoint}")]
pub struct Error {
    endpoint: Endpoint,
    #[source]
    source: opentelemetry_otlp::ExporterBuildError,
}

/// What became of spans. Each ended in exactly one of these, or is still under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub exported: u64,
    /// There was no room for them any more.
    pub dropped: u64,
    /// The receiver didn't take them.
    pub failed: u64,
}

#[derive(Default)]
struct Counters {
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

enum Message {
    Span(Box<SpanData>),
    /// Answers once everything before it was dealt with.
    Flush(oneshot::Sender<()>),
}

pub struct Batch {
    queue: mpsc::Sender<Message>,
    counters: Arc<Counters>,
}

impl Batch {
    pub fn start(config: &Config) -> Result<Self, Error> {
        let failed = |source| Error { endpoint: config.endpoint.clone(), source };
        let retries = RetryPolicy::recommended().with_max_retries(RETRIES_MAX);
        let mut builder = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(config.endpoint.as_str())
            .with_timeout(EXPORT_MAX)
            .with_retry_policy(retries);
        if let Some(tls) = &config.tls {
            builder = builder.with_tls_config(client(tls));
        }
        let mut exporter = builder.build().map_err(failed)?;
        exporter.set_resource(&resource(config));
        let (queue, waiting) = mpsc::channel(config.queue.clamp(1, QUEUE_LIMIT));
        let counters = Arc::<Counters>::default();
        tokio::spawn(export(exporter, waiting, counters.clone()));
        Ok(Self { queue, counters })
    }

    pub fn add(&self, span: Box<SpanData>) {
        if self.queue.try_send(Message::Span(span)).is_err() {
            self.counters.dropped.fetch_add(1, Relaxed);
        }
    }

    pub async fn flush(&self, limit: Duration) {
        let (done, flushed) = oneshot::channel();
        let all = async {
            if self.queue.send(Message::Flush(done)).await.is_ok() {
                // Gone without an answer: there is nothing left to send either.
                let _ = flushed.await;
            }
        };
        // Whoever ends doesn't wait for a receiver.
        let _ = timeout(limit, all).await;
    }

    pub fn counts(&self) -> Counts {
        let Counters { exported, dropped, failed } = &*self.counters;
        Counts { exported: exported.load(Relaxed), dropped: dropped.load(Relaxed), failed: failed.load(Relaxed) }
    }
}

fn client(tls: &Tls) -> ClientTlsConfig {
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
    match &tls.identity {
        Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
        None => config,
    }
}

/// Of the environment nothing is read here.
fn resource(config: &Config) -> Resource {
    let more = config.attributes.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    let own = [
        KeyValue::new("telemetry.sdk.language", "rust"),
        KeyValue::new("telemetry.sdk.name", "opentelemetry"),
        KeyValue::new("service.namespace", "driftless"),
        KeyValue::new("service.instance.id", config.instance.clone()),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.name", config.service.clone()),
    ];
    Resource::builder_empty().with_attributes(own.into_iter().chain(more)).build()
}

/// Until the last who could add a span is gone.
async fn export(exporter: SpanExporter, mut waiting: mpsc::Receiver<Message>, counters: Arc<Counters>) {
    let mut failing = false;
    while let Some(Gathered { spans, flushed }) = gather(&mut waiting).await {
        let count = spans.len() as u64;
        if count > 0 {
            match timeout(EXPORT_MAX, exporter.export(spans)).await {
                Ok(Ok(())) => {
                    counters.exported.fetch_add(count, Relaxed);
                    failing = false;
                }
                outcome => {
                    counters.failed.fetch_add(count, Relaxed);
                    // Once, until it works again.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(?outcome, "traces are lost: their receiver doesn't take them");
                    }
                }
            }
        }
        flushed.into_iter().for_each(|done| _ = done.send(()));
    }
}

#[derive(Default)]
struct Gathered {
    spans: Vec<SpanData>,
    flushed: Vec<oneshot::Sender<()>>,
}

impl Gathered {
    fn take(&mut self, message: Message) {
        match message {
            Message::Span(span) => self.spans.push(*span),
            Message::Flush(done) => self.flushed.push(done),
        }
    }

    fn is_due(&self) -> bool {
        self.spans.len() >= BATCH_MAX || !self.flushed.is_empty()
    }
}

/// The next batch: full, or asked for, or as much as came within `LINGER`.
async fn gather(waiting: &mut mpsc::Receiver<Message>) -> Option<Gathered> {
    let mut gathered = Gathered::default();
    gathered.take(waiting.recv().await?);
    let due = Instant::now() + LINGER;
    while !gathered.is_due()
        && let Ok(Some(message)) = timeout_at(due, waiting.recv()).await
    {
        gathered.take(message);
    }
    Some(gathered)
}
