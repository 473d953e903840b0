//! Spans of calls, on both sides, after OpenTelemetry's conventions for RPC. What is called then acts under the span: it
//! becomes the caller's trace context.

use store::{Caller, Result};
use telemetry::trace::{
    Span, Tracer,
    names::{self, ACTOR, ERROR_TYPE, Name, RPC_METHOD, RPC_STATUS, RPC_SYSTEM},
};
use tonic::Code;

use crate::error;

/// None where the caller's trace isn't sampled.
pub struct CallSpan(Option<Span>);

impl CallSpan {
    pub fn client(tracer: &Tracer, method: &'static str, caller: &mut Caller) -> Self {
        Self::under(tracer, &names::RPC_CLIENT, method, caller)
    }

    pub fn server(tracer: &Tracer, method: &'static str, caller: &mut Caller) -> Self {
        Self::under(tracer, &names::RPC_SERVER, method, caller)
    }

    /// Of a call that declares something: a caller without a trace gets one.
    pub fn declaring(tracer: &Tracer, method: &'static str, caller: &mut Caller) -> Self {
        if !caller.traceparent.is_empty() {
            return Self::server(tracer, method, caller);
        }
        let root = tracer.root();
        caller.traceparent = root.to_string();
        Self(tracer.first(root, &names::RPC_SERVER)).of(method, caller)
    }

    fn under(tracer: &Tracer, name: &'static Name, method: &'static str, caller: &mut Caller) -> Self {
        let span = tracer.child(&caller.traceparent, name);
        if let Some(span) = &span {
            caller.traceparent = span.context().to_string();
        }
        Self(span).of(method, caller)
    }

    fn of(mut self, method: &'static str, caller: &Caller) -> Self {
        if let Some(span) = &mut self.0 {
            let name = format!("driftless.v1.ResourceService/{method}");
            span.set(RPC_SYSTEM, "grpc");
            span.set(RPC_METHOD, name.clone());
            span.set(ACTOR, caller.actor.to_string());
            span.rename(name);
        }
        self
    }

    /// Ends it with what came out.
    pub fn end<T>(self, result: Result<T>) -> Result<T> {
        if let Some(mut span) = self.0 {
            let code = result.as_ref().err().map_or(Code::Ok, |error| error::to_status(error).code());
            span.set(RPC_STATUS, screaming(code));
            if let Err(error) = &result {
                span.set(ERROR_TYPE, screaming(code));
                span.fail(error);
            }
        }
        result
    }
}

/// As gRPC spells it: "NOT_FOUND".
fn screaming(code: Code) -> String {
    let mut text = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() && code != Code::Ok {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelled_as_grpc_does() {
        let codes = [Code::Ok, Code::NotFound, Code::FailedPrecondition, Code::Aborted].map(screaming);
        assert_eq!(codes, ["OK", "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED"]);
    }
}
