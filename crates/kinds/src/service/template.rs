//! What instances are made from, byte for byte as declared: a field of the template that this build doesn't know must reach
//! the agents, which may be newer. So it does after a rollback, too, to what was complete before.

use api::v1;
use bytes::Bytes;
use model::fields::{self, Fields};
use prost::{DecodeError, Message};
use prost_types::Any;

use super::target::Target;
use crate::Item;

/// `template` has this number in the specs of services and of instances, and in what is kept as good.
const TEMPLATE: u32 = 3;
/// Of a service's status.
const LAST_GOOD: u32 = 7;
/// What is filled in from Configs; everything else is the declaration's.
const ENV: Fields = Fields::Only(&[2]);

/// An instance's spec, as encoded from what this build knows, with all that the template was declared with.
pub fn with_unknown(spec: Any, service: &Item, target: &Target) -> Any {
    // What was read as messages can be split into fields.
    patched(spec, |spec| {
        let known = fields::inner(spec, TEMPLATE)?;
        fields::with_inner(spec, TEMPLATE, &fields::replace(&whole(service, target)?, &known, ENV)?)
    })
}

/// A service's status, as encoded from what this build knows, with all that its last good template was declared with.
pub fn with_good_whole(status: Any, service: &Item, target: &Target) -> Any {
    patched(status, |status| {
        let known = fields::inner(status, LAST_GOOD)?;
        if known.is_empty() {
            return Ok(status.clone());
        }
        let hash = v1::GoodTemplate::decode(known.clone())?.template_hash;
        let stored = stored_good(service)?;
        let is_stored = v1::GoodTemplate::decode(stored.clone())?.template_hash == hash;
        let good = if is_stored { &stored } else { &known };
        let whole = if target.hash == hash { whole(service, target)? } else { fields::inner(good, TEMPLATE)? };
        let template = fields::replace(&whole, &fields::inner(&known, TEMPLATE)?, ENV)?;
        fields::with_inner(status, LAST_GOOD, &fields::with_inner(good, TEMPLATE, &template)?)
    })
}

fn patched(message: Any, patch: impl FnOnce(&Bytes) -> Result<Bytes, DecodeError>) -> Any {
    match patch(&Bytes::copy_from_slice(&message.value)) {
        Ok(value) => Any { value: value.into(), ..message },
        Err(_) => message,
    }
}

/// The target's template as it's stored.
fn whole(service: &Item, target: &Target) -> Result<Bytes, DecodeError> {
    match target.is_declared() {
        true => fields::inner(&bytes_of(service.resource.spec.as_ref()), TEMPLATE),
        false => fields::inner(&stored_good(service)?, TEMPLATE),
    }
}

fn stored_good(service: &Item) -> Result<Bytes, DecodeError> {
    fields::inner(&bytes_of(service.resource.status.as_ref()), LAST_GOOD)
}

fn bytes_of(any: Option<&Any>) -> Bytes {
    any.map_or_else(Bytes::new, |any| Bytes::copy_from_slice(&any.value))
}
