//! Who calls, and in which trace: two entries of gRPC metadata.

use model::Actor;
use store::{Caller, Error, Result};
use tonic::metadata::{MetadataMap, MetadataValue};

pub const IDENTITY: &str = "driftless-identity";
pub const TRACEPARENT: &str = "traceparent";

/// Anonymous where it isn't said. A malformed trace context is dropped, as W3C asks: the trace starts anew.
pub fn caller(metadata: &MetadataMap) -> Result<Caller> {
    let refuse = || Error::invalid(IDENTITY, "should be <role>/<name>, the role user, controller, agent or server");
    let actor = match metadata.get(IDENTITY) {
        None => Actor::anonymous(),
        Some(value) => value.to_str().ok().and_then(Actor::parse).ok_or_else(refuse)?,
    };
    let traceparent = metadata.get(TRACEPARENT).and_then(|value| value.to_str().ok()).filter(|t| well_formed(t));
    Ok(Caller { actor, traceparent: traceparent.unwrap_or_default().to_owned() })
}

/// Says who calls on a request.
pub fn sign(metadata: &mut MetadataMap, caller: &Caller) -> Result<()> {
    let refuse = |_| Error::invalid(IDENTITY, format!("{:?} can't be sent: it's not ASCII", caller.actor.as_str()));
    metadata.insert(IDENTITY, MetadataValue::try_from(caller.actor.as_str()).map_err(refuse)?);
    if let Some(value) = Some(&caller.traceparent).filter(|t| well_formed(t)).and_then(|t| t.parse().ok()) {
        metadata.insert(TRACEPARENT, value);
    }
    Ok(())
}

/// `00-<32 hex>-<16 hex>-<2 hex>`; later versions may be longer.
fn well_formed(traceparent: &str) -> bool {
    let bytes = traceparent.as_bytes();
    bytes.len() >= 55
        && bytes.iter().enumerate().take(55).all(|(i, b)| match i {
            2 | 35 | 52 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}
