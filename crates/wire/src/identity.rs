//! Who calls, and in which trace: two entries of gRPC metadata.

use model::Actor;
use store::{Caller, Error, Result};
use telemetry::trace::received;
use tonic::metadata::{MetadataMap, MetadataValue};

pub const IDENTITY: &str = "driftless-identity";
pub const TRACEPARENT: &str = "traceparent";

/// Anonymous where it isn't said. A malformed trace context is dropped, and so are two of them, as W3C asks: the trace
/// starts anew. What a caller says beside it (`tracestate`) is for those who write it, and goes no further, however long.
pub fn caller(metadata: &MetadataMap) -> Result<Caller> {
    let refuse = || Error::invalid(IDENTITY, "should be <role>/<name>, the role user, controller, agent or server");
    let actor = match metadata.get(IDENTITY) {
        None => Actor::anonymous(),
        Some(value) => value.to_str().ok().and_then(Actor::parse).ok_or_else(refuse)?,
    };
    let mut said = metadata.get_all(TRACEPARENT).iter();
    let one = said.next().filter(|_| said.next().is_none());
    let traceparent = one.and_then(|value| value.to_str().ok()).map(received).unwrap_or_default();
    Ok(Caller { actor, traceparent })
}

/// Says who calls on a request.
pub fn sign(metadata: &mut MetadataMap, caller: &Caller) -> Result<()> {
    let refuse = |_| Error::invalid(IDENTITY, format!("{:?} can't be sent: it's not ASCII", caller.actor.as_str()));
    metadata.insert(IDENTITY, MetadataValue::try_from(caller.actor.as_str()).map_err(refuse)?);
    if let Some(value) = Some(received(&caller.traceparent)).filter(|t| !t.is_empty()).and_then(|t| t.parse().ok()) {
        metadata.insert(TRACEPARENT, value);
    }
    Ok(())
}
