//! Spans: one trace leads from a declaring call to the running process.
//!
//! A trace crosses processes and pauses, so no span lives in a thread's context: whoever acts reads the trace context
//! that is stored with what made it act (a call's metadata, a resource's last writer), and begins a [`Span`] under it. The
//! stored flag decides alone: where it says "not sampled" [`Tracer::child`] is a look at one byte and gives nothing, so
//! nothing is allocated.
//!
//! - `context`: W3C trace contexts.
//! - `span`: one span on its way.
//! - `names`: every span and attribute there is.
//! - `endpoint`: where they are sent.
//! - `batch`: export over OTLP, bounded, which never blocks anybody.
//! - `figures`: what became of the spans, for `/metrics`.

mod batch;
mod context;
mod endpoint;
mod figures;
pub mod names;
mod span;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use opentelemetry::InstrumentationScope;

pub use batch::{Counts, Error, QUEUE_DEFAULT, QUEUE_LIMIT};
pub use context::{Context, is_sampled, received, unsampled};
pub use endpoint::{Endpoint, EndpointError, Tls};
pub use figures::FAMILIES;
pub use span::Span;

use self::{batch::Batch, names::Name};

/// Where spans go, and how many traces are sampled.
#[derive(Clone, Debug)]
pub struct Config {
    pub endpoint: Endpoint,
    /// For https.
    pub tls: Option<Tls>,
    /// Of new traces, from 0 to 1. What is sampled elsewhere is kept.
    pub ratio: f64,
    /// "driftless-server": what the receiver shows.
    pub service: String,
    /// This one of them: "s1".
    pub instance: String,
    /// What else the receiver is told of the process. These win over what it's told anyhow.
    pub attributes: Vec<(String, String)>,
    /// Spans that wait for their export, from 1 to `QUEUE_LIMIT`.
    pub queue: usize,
}

impl Config {
    /// All traces are sampled.
    pub fn new(endpoint: Endpoint, service: impl Into<String>, instance: impl Into<String>) -> Self {
        let (service, instance) = (service.into(), instance.into());
        Self { endpoint, tls: None, ratio: 1.0, service, instance, attributes: Vec::new(), queue: QUEUE_DEFAULT }
    }
}

/// Makes spans for one part of a process; cheap to clone. Without a receiver it makes none.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Inner>>);

struct Inner {
    batch: Arc<Batch>,
    scope: InstrumentationScope,
    ratio: f64,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

impl Tracer {
    /// Makes no spans; contexts are handed on as they came.
    pub fn off() -> Self {
        Self(None)
    }

    /// Dials nothing yet. Within a runtime, on which it exports.
    pub fn start(config: &Config) -> Result<Self, Error> {
        let scope = scope("driftless");
        Ok(Self(Some(Arc::new(Inner { batch: Arc::new(Batch::start(config)?), scope, ratio: config.ratio }))))
    }

    /// The same receiver, for a part of the process: "driftless.controller".
    pub fn part(&self, name: &'static str) -> Self {
        Self(
            self.0
                .as_ref()
                .map(|inner| Arc::new(Inner { batch: inner.batch.clone(), scope: scope(name), ratio: inner.ratio })),
        )
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A new trace, sampled or not. Where there is no receiver it isn't, but it has an id all the same.
    pub fn root(&self) -> Context {
        let context = Context::random(false);
        match &self.0 {
            Some(inner) => context.sampled(inner.ratio),
            None => context,
        }
    }

    /// A span under that stored context, where it's sampled and somebody listens.
    pub fn child(&self, traceparent: &str, name: &'static Name) -> Option<Span> {
        self.make(traceparent, None, name)
    }

    /// The same, as the span that was promised: what it caused knows it already.
    pub fn child_at(&self, traceparent: &str, promised: Context, name: &'static Name) -> Option<Span> {
        self.make(traceparent, Some(promised), name)
    }

    fn make(&self, traceparent: &str, promised: Option<Context>, name: &'static Name) -> Option<Span> {
        let inner = self.0.as_ref().filter(|_| is_sampled(traceparent))?;
        let parent = Context::parse(traceparent)?;
        let context = promised.unwrap_or_else(|| parent.child());
        Some(Span::new(inner.batch.clone(), inner.scope.clone(), name, context, Some(parent)))
    }

    /// The first span of a trace.
    pub fn first(&self, context: Context, name: &'static Name) -> Option<Span> {
        let inner = self.0.as_ref().filter(|_| context.sampled)?;
        Some(Span::new(inner.batch.clone(), inner.scope.clone(), name, context, None))
    }

    /// What became of the spans so far.
    pub fn counts(&self) -> Counts {
        self.0.as_ref().map(|inner| inner.batch.counts()).unwrap_or_default()
    }

    /// Sends what waits, but waits itself no longer than that.
    pub async fn flush(&self, limit: Duration) {
        if let Some(inner) = &self.0 {
            inner.batch.flush(limit).await;
        }
    }
}

fn scope(name: &'static str) -> InstrumentationScope {
    InstrumentationScope::builder(name).with_version(env!("CARGO_PKG_VERSION")).build()
}

/// The context to hand on: the span's, or where there is none the one it would have been under.
pub fn context_of(span: Option<&Span>, traceparent: &str) -> String {
    span.map_or_else(|| traceparent.to_owned(), |span| span.context().to_string())
}
