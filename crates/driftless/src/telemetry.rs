//! What the roles write about their work, on stderr, for people or as JSON; and the trace of what a verb declares.

use std::time::Duration;

use telemetry::trace::{self, Context, Span, Tracer, names};
use tracing_subscriber::EnvFilter;

use crate::receiver::Tracing;

/// Where RUST_LOG says nothing.
const LEVEL: &str = "info";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// How to log on stderr; what is logged, RUST_LOG says.
    #[arg(long, value_enum, default_value = "human")]
    log_format: LogFormat,
}

pub fn start(args: &LogArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().with_default_directive(LEVEL.parse()?).from_env()?;
    // A stderr that is gone must not end the process by a panic.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let builder = builder.log_internal_errors(false);
    match args.log_format {
        LogFormat::Human => {
            use std::io::IsTerminal;
            builder.with_ansi(std::io::stderr().is_terminal()).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

/// A process that ends waits no longer than that for its spans to be taken.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Sends what there is before the process ends.
pub async fn flush(tracer: &Tracer) {
    tracer.flush(FLUSH_MAX).await;
}

/// The trace of what a verb declares.
pub struct Declaring {
    tracer: Tracer,
    span: Option<Span>,
    /// Empty: the server begins one.
    pub traceparent: String,
}

impl Declaring {
    /// Under the TRACEPARENT of the environment, where there is one. Says the trace's id where it was asked for.
    pub fn begin(tracing: &Tracing, verb: &str) -> anyhow::Result<Self> {
        let tracer = tracing.start("cli", &crate::client::host())?.part("driftless.cli");
        let parent = std::env::var("TRACEPARENT").ok().and_then(|text| Context::parse(&text));
        if parent.is_none() && !tracing.is_asked_for() && !tracer.is_on() {
            return Ok(Self { tracer, span: None, traceparent: String::new() });
        }
        let mut context = parent.unwrap_or_else(|| tracer.root());
        context.sampled |= tracing.is_asked_for();
        let mut span = match parent {
            Some(_) => tracer.child(&context.to_string(), &names::CLI),
            None => tracer.first(context, &names::CLI),
        };
        if let Some(span) = &mut span {
            span.rename(format!("driftless {verb}"));
            span.set(names::ACTOR, crate::client::user().to_string());
        }
        if tracing.is_asked_for() {
            let id = context.trace_id();
            crate::output::say(&format!("trace {}", tracing.link(&id).unwrap_or(id)));
        }
        let traceparent = trace::context_of(span.as_ref(), &context.to_string());
        Ok(Self { tracer, span, traceparent })
    }

    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    pub async fn end<T>(self, done: &anyhow::Result<T>) {
        if let (Some(mut span), Err(error)) = (self.span, done) {
            span.fail(error);
        }
        flush(&self.tracer).await;
    }
}
