//! Who says what of the fields that commands set beside manifests (`Kind::shared`): `scale` the number of replicas,
//! `rollout pause` whether anything is replaced.
//!
//! Whoever names such a field owns it from then on; what a manifest leaves out stays as its command set it.

use std::collections::BTreeMap;

use bytes::Bytes;
use store::{Error, Result};

use super::{
    declare::{Declared, Manager},
    message,
};

/// The owner of what `scale` sets.
pub const SCALE: &str = "scale";

/// The declared spec once it's settled who says what of the fields that commands set beside manifests; and what to tell of those
/// that a manifest left out.
pub fn settle(
    declared: &Declared,
    manager: Manager,
    stored: &Bytes,
    owners: &mut BTreeMap<String, String>,
) -> Result<(Bytes, Vec<String>)> {
    let type_name = declared.kind.info().spec_type;
    let corrupt = |error: prost::DecodeError| Error::Corrupt(format!("the spec of {}: {error}", declared.key));
    if manager == Manager::Scale {
        check_scale(declared, &message::changed(type_name, stored, &declared.spec).map_err(corrupt)?)?;
    }
    let mut spec = declared.spec.clone();
    let mut kept = Vec::new();
    for shared in declared.kind.shared() {
        let name = format!("spec.{}", shared.path);
        let path = message::path(type_name, shared.path).expect("a kind names fields of its own");
        let now = message::at(&spec, &path).map_err(corrupt)?;
        let before = message::at(stored, &path).map_err(corrupt)?;
        match manager {
            Manager::Scale | Manager::Edit if now == before => {}
            Manager::Scale | Manager::Edit if !now.is_empty() => drop(owners.insert(name, shared.owner.into())),
            Manager::Apply if now.is_empty() && owners.get(&name).is_some_and(|owner| owner == shared.owner) => {
                spec = message::with(&spec, &path, &before).map_err(corrupt)?;
                kept.extend((shared.kept)(&spec));
            }
            _ => drop(owners.remove(&name)),
        }
    }
    Ok((spec, kept))
}

fn check_scale(declared: &Declared, changed: &[u32]) -> Result<()> {
    let type_name = declared.kind.info().spec_type;
    let Some(scaled) = declared.kind.shared().iter().find(|shared| shared.owner == SCALE) else {
        return Err(Error::invalid("field_manager", format!("{} can't be scaled", declared.key)));
    };
    let other = changed.iter().map(|number| message::field_name(type_name, *number)).find(|name| name != scaled.path);
    let refuse = |field| {
        let message = format!("\"scale\" declares spec.{} alone, but spec.{field} differs too", scaled.path);
        Err(Error::invalid("field_manager", message))
    };
    other.map_or(Ok(()), refuse)
}
