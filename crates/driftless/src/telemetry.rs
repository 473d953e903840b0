//! What the roles write about their work: on stderr, for people or as JSON; and where their traces go.

use std::time::Duration;

use telemetry::trace::{self, Context, Span, Tracer, names};
use tracing_subscriber::EnvFilter;

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

/// Where traces go, and which.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Traces")]
pub struct Tracing {
    /// A receiver of traces (OTLP over gRPC), say http://127.0.0.1:4317. Without one no spans are made.
    #[arg(
        long = "otlp-endpoint",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        global = true,
        value_name = "URL",
        hide_short_help = true
    )]
    endpoint: Option<String>,
    /// How many of the new traces are sampled, from 0 to 1.
    #[arg(
        long = "trace-ratio",
        env = "DRIFTLESS_TRACE_RATIO",
        global = true,
        default_value_t = RATIO,
        value_parser = ratio,
        hide_short_help = true
    )]
    ratio: f64,
    /// What is declared by this call is sampled in any case.
    #[arg(long = "trace", global = true, hide_short_help = true)]
    always: bool,
    /// Where people look at traces; {trace} stands for the id: http://127.0.0.1:16686/trace/{trace}.
    #[arg(long = "trace-ui", env = "DRIFTLESS_TRACE_UI", global = true, value_name = "URL", hide_short_help = true)]
    ui: Option<String>,
}

/// One in ten, unless it's said.
const RATIO: f64 = 0.1;
/// A process that ends waits no longer than that for its spans to be taken.
const FLUSH_MAX: Duration = Duration::from_millis(500);

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "write a number from 0 to 1".into())
}

impl Tracing {
    /// Within a runtime.
    pub fn start(&self, role: &str, name: &str) -> anyhow::Result<Tracer> {
        // Set and empty is how compose files say "none".
        let Some(endpoint) = self.endpoint.clone().filter(|endpoint| !endpoint.is_empty()) else {
            return Ok(Tracer::off());
        };
        let (service, instance) = (format!("driftless-{role}"), name.to_owned());
        Ok(Tracer::start(&trace::Config { endpoint, ratio: self.ratio, service, instance })?)
    }

    /// The page about that trace.
    pub fn link(&self, trace: &str) -> Option<String> {
        self.ui.as_ref().filter(|ui| !ui.is_empty()).map(|ui| ui.replace("{trace}", trace))
    }
}

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
        if parent.is_none() && !tracing.always && !tracer.is_on() {
            return Ok(Self { tracer, span: None, traceparent: String::new() });
        }
        let mut context = parent.unwrap_or_else(|| tracer.root());
        context.sampled |= tracing.always;
        let mut span = match parent {
            Some(_) => tracer.child(&context.to_string(), &names::CLI),
            None => tracer.first(context, &names::CLI),
        };
        if let Some(span) = &mut span {
            span.rename(format!("driftless {verb}"));
            span.set(names::ACTOR, crate::client::user().to_string());
        }
        if tracing.always {
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
