//! What instances are made from, byte for byte as declared: a field of the template that this build doesn't know must reach
//! the agents, which may be newer.

use bytes::Bytes;
use model::fields::{self, Fields};
use prost_types::Any;

use super::target::Target;
use crate::Item;

/// `template` has this number in the specs of services and of instances.
const TEMPLATE: u32 = 3;
/// What is filled in from Configs; everything else is the declaration's.
const ENV: Fields = Fields::Only(&[2]);

/// An instance's spec, as encoded from what this build knows, with what else the service declares. After a rollback there
/// is only what this build had kept.
pub fn with_all_declared(spec: Any, service: &Item, target: &Target) -> Any {
    if !target.is_declared() {
        return spec;
    }
    let Some(declared) = service.resource.spec.as_ref() else { return spec };
    let value = declared_in(&Bytes::copy_from_slice(&spec.value), &Bytes::copy_from_slice(&declared.value));
    // What was read as messages can be split into fields.
    value.map_or(spec.clone(), |value| Any { value: value.into(), ..spec })
}

fn declared_in(spec: &Bytes, declared: &Bytes) -> Result<Bytes, prost::DecodeError> {
    let (known, all) = (fields::inner(spec, TEMPLATE)?, fields::inner(declared, TEMPLATE)?);
    fields::with_inner(spec, TEMPLATE, &fields::replace(&all, &known, ENV)?)
}

#[cfg(test)]
mod tests {
    use api::v1;
    use prost::Message;

    use super::*;

    #[test]
    fn unknown_fields_stay_and_the_environment_is_filled_in() {
        let template = v1::InstanceTemplate { command: vec!["run".into()], ..Default::default() };
        let mut declared = v1::ServiceSpec { template: Some(template.clone()), ..Default::default() }.encode_to_vec();
        // The template once more, with nothing but field 2000: decoders merge the two.
        declared.extend([0x1a, 0x05, 0x82, 0x7d, 0x02, b'h', b'i']);
        let filled = v1::InstanceTemplate { env: [("A".to_owned(), "1".to_owned())].into(), ..template };
        let known = v1::InstanceSpec { slot: 4, template: Some(filled), ..Default::default() };
        let spec = declared_in(&known.encode_to_vec().into(), &declared.into()).expect("they are messages");
        assert_eq!(v1::InstanceSpec::decode(spec.clone()), Ok(known));
        assert!(spec.windows(2).any(|window| window == b"hi"));
    }
}
