//! One span on its way. It ends, and goes to the batch, when it is dropped.

use std::{sync::Arc, time::SystemTime};

use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId, Value,
    trace::{Link, SpanContext, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::{
    batch::Batch,
    context::Context,
    names::{Attribute, Name},
};

/// Links of one span. What is beyond is counted.
pub const LINKS_MAX: usize = 32;

pub struct Span {
    name: &'static Name,
    context: Context,
    /// Taken when it ends.
    data: Option<Box<SpanData>>,
    ended: Option<SystemTime>,
    batch: Arc<Batch>,
}

impl Span {
    pub(super) fn new(
        batch: Arc<Batch>,
        scope: InstrumentationScope,
        name: &'static Name,
        context: Context,
        parent: Option<Context>,
    ) -> Self {
        let data = SpanData {
            span_context: sdk(context, false),
            parent_span_id: SpanId::from(parent.map_or(0, |parent| parent.span)),
            parent_span_is_remote: false,
            span_kind: name.kind.clone(),
            name: name.name.into(),
            start_time: SystemTime::now(),
            end_time: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: scope,
        };
        Self { name, context, data: Some(Box::new(data)), ended: None, batch }
    }

    /// What is caused by it goes under this.
    pub fn context(&self) -> Context {
        self.context
    }

    fn with(&mut self, change: impl FnOnce(&mut SpanData)) {
        if let Some(data) = &mut self.data {
            change(data);
        }
    }

    /// One of the name's own attributes.
    pub fn set(&mut self, attribute: Attribute, value: impl Into<Value>) {
        debug_assert!(self.name.attributes.contains(&attribute), "{attribute:?} is none of {}'s", self.name.name);
        self.with(|data| data.attributes.push(KeyValue::new(attribute.0, value)));
    }

    /// A more telling name, of few values: "driftless apply".
    pub fn rename(&mut self, name: impl Into<String>) {
        self.with(|data| data.name = name.into().into());
    }

    /// Another cause.
    pub fn link(&mut self, to: Context) {
        self.with(|data| match data.links.links.len() {
            LINKS_MAX.. => data.links.dropped_count += 1,
            _ => data.links.links.push(Link::new(sdk(to, true), Vec::new(), 0)),
        });
    }

    pub fn began(&mut self, at: SystemTime) {
        self.with(|data| data.start_time = at);
    }

    pub fn ended(&mut self, at: SystemTime) {
        self.ended = Some(at);
    }

    pub fn fail(&mut self, why: impl ToString) {
        self.with(|data| data.status = Status::error(why.to_string()));
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut data) = self.data.take() else { return };
        // Clocks of different machines may disagree: a span never ends before it began.
        let ended = self.ended.unwrap_or_else(SystemTime::now);
        data.start_time = data.start_time.min(ended);
        data.end_time = ended;
        self.batch.add(data);
    }
}

fn sdk(context: Context, remote: bool) -> SpanContext {
    let flags = if context.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    SpanContext::new(TraceId::from(context.trace), SpanId::from(context.span), flags, remote, TraceState::default())
}
