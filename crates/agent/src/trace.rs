//! The spans of an instance from its assignment to the report that it is healthy. What happens to it later, happens by
//! itself, and belongs to no declaration's trace.

use std::time::{Duration, SystemTime};

use api::v1;
use model::Time;
use telemetry::trace::{
    Context, Span, Tracer, context_of, is_sampled,
    names::{self, *},
    unsampled,
};

use crate::driver::Id;

/// Where in a trace an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What happens next is under this.
    under: String,
    /// When what it's under was over.
    since: SystemTime,
}

impl Trace {
    /// What the record says of its cause.
    pub fn of(resource: &v1::Resource) -> Option<Self> {
        let metadata = resource.metadata.as_ref()?;
        let written = metadata.last_writer.as_ref().map(|writer| writer.traceparent.as_str()).unwrap_or_default();
        let under = if is_sampled(written) { written.to_owned() } else { unsampled(metadata.traceparent.clone()) };
        (!under.is_empty()).then(|| Self { under, since: SystemTime::now() })
    }

    /// The process was started: asked for then, and running now.
    pub fn started(&mut self, tracer: &Tracer, id: &Id, node: &str, asked: Time, pid: i64) {
        let mut span = tracer.child(&self.under, &names::PROCESS_START);
        if let Some(span) = &mut span {
            span.began(system(asked));
            span.set(PID, pid);
        }
        self.reached(span, id, node);
    }

    /// A check said for the first time that it is ready.
    pub fn healthy(&mut self, tracer: &Tracer, id: &Id, node: &str) {
        let mut span = tracer.child(&self.under, &names::FIRST_HEALTHY);
        if let Some(span) = &mut span {
            span.began(self.since);
        }
        self.reached(span, id, node);
    }

    fn reached(&mut self, mut span: Option<Span>, id: &Id, node: &str) {
        if let Some(span) = &mut span {
            span.set(KEY, id.key.to_string());
            span.set(UID, id.uid.to_string());
            span.set(NODE, node.to_owned());
        }
        self.under = context_of(span.as_ref(), &self.under);
        self.since = SystemTime::now();
    }
}

fn system(time: Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0.max(0).unsigned_abs())
}

/// The watch has just brought these: one span for each commit.
pub fn delivered<'a>(tracer: &Tracer, node: &str, records: impl Iterator<Item = &'a v1::Resource>) {
    let mut spans: Vec<(&str, Span, i64)> = Vec::new();
    for metadata in records.filter_map(|resource| resource.metadata.as_ref()) {
        let Some(writer) = &metadata.last_writer else { continue };
        if let Some((_, _, count)) = spans.iter_mut().find(|(under, ..)| *under == writer.traceparent) {
            *count += 1;
            continue;
        }
        let Some(mut span) = tracer.child(&writer.traceparent, &names::WATCH_DELIVER) else { continue };
        span.began(system(metadata.updated_time.as_ref().map(Time::from).unwrap_or_default()));
        span.set(MESSAGING_SYSTEM, "driftless");
        span.set(MESSAGING_OPERATION, "deliver");
        span.set(MESSAGING_TYPE, "receive");
        span.set(MESSAGING_DESTINATION, "watch");
        span.set(REVISION, metadata.revision);
        span.set(NODE, node.to_owned());
        spans.push((&writer.traceparent, span, 1));
    }
    for (_, mut span, count) in spans {
        span.set(MESSAGING_COUNT, count);
    }
}

/// The spans of one report, one for each trace that it tells something of.
#[derive(Default)]
pub struct Report {
    traces: Vec<(u128, Span, i64)>,
}

impl Report {
    /// Notes on an instance's report under what it comes.
    pub fn add(&mut self, tracer: &Tracer, node: &str, report: &mut v1::InstanceReport, trace: &Trace) {
        report.traceparent.clone_from(&trace.under);
        let Some(context) = Context::parse(&trace.under).filter(|context| context.sampled) else { return };
        let known = self.traces.iter().position(|(id, ..)| *id == context.trace);
        let at = known.or_else(|| {
            let mut span = tracer.child(&trace.under, &names::STATUS_REPORT)?;
            span.set(MESSAGING_SYSTEM, "driftless");
            span.set(MESSAGING_OPERATION, "report");
            span.set(MESSAGING_TYPE, "send");
            span.set(MESSAGING_DESTINATION, "report");
            span.set(NODE, node.to_owned());
            self.traces.push((context.trace, span, 0));
            Some(self.traces.len() - 1)
        });
        let Some((_, span, count)) = at.and_then(|at| self.traces.get_mut(at)) else { return };
        *count += 1;
        if known.is_some() {
            span.link(context);
        }
        report.traceparent = span.context().to_string();
    }

    pub fn end<T>(self, answer: &store::Result<T>) {
        for (_, mut span, count) in self.traces {
            span.set(MESSAGING_COUNT, count);
            answer.as_ref().err().into_iter().for_each(|error| span.fail(error));
        }
    }
}
