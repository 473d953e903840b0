//! Config: values that instances take their environment from. Has no reconciler: services look at it.

use std::{any::Any as StdAny, sync::Arc};

use api::v1;
use bytes::Bytes;
use model::{Domain, Violation, fields::Fields};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Column, Info, Kind, Rights, Template, service,
    text::{Checker, env_name},
    typed,
};

pub const KIND: &str = "Config";
pub const SPEC: &str = "driftless.v1.ConfigSpec";
pub const STATUS: &str = "driftless.v1.ConfigStatus";
/// Bytes of all values together: they are copied into every instance that uses them.
const DATA_MAX: usize = 64 * 1024;

pub struct ConfigKind;

static INFO: Info = Info {
    kind: KIND,
    plural: "configs",
    short: &["cfg"],
    namespaced: true,
    global: true,
    declared: true,
    spec_type: SPEC,
    status_type: STATUS,
    columns: &[Column::new("VALUES"), Column::wide("DIGEST")],
};

impl Kind for ConfigKind {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn admit(&self, spec: &Bytes) -> Result<Template, Vec<Violation>> {
        let spec = v1::ConfigSpec::decode(spec.clone()).map_err(|e| vec![Violation::new("spec", e.to_string())])?;
        let mut check = Checker::default();
        for (name, value) in &spec.data {
            check.require(
                env_name(name),
                &format!("spec.data[{name:?}]"),
                "a name holds letters, digits and '_', and starts with no digit",
            );
            check.require(
                !value.contains('\0'),
                &format!("spec.data[{name:?}]"),
                "holds a NUL byte, which no process can be given",
            );
        }
        let bytes: usize = spec.data.iter().map(|(name, value)| name.len() + value.len()).sum();
        check.require(bytes <= DATA_MAX, "spec.data", format!("{bytes} bytes; at most {DATA_MAX}"));
        if !check.violations.is_empty() {
            return Err(check.violations);
        }
        Ok(Template { hash: format!("{:010x}", xxh3_64(&spec.encode_to_vec()) >> 24), warnings: Vec::new() })
    }

    fn rights(&self, domain: Domain) -> Rights {
        match domain {
            Domain::User => Rights { create: true, remove: true, spec: Fields::ALL, ..Rights::NONE },
            Domain::Shard | Domain::Leader | Domain::Agent => Rights::NONE,
        }
    }

    fn users(&self) -> &'static [&'static str] {
        &[service::KIND]
    }

    fn parse(&self, resource: &v1::Resource) -> Result<Arc<dyn StdAny + Send + Sync>, Violation> {
        Ok(Arc::new(typed::<v1::ConfigSpec>("spec", resource.spec.as_ref())?))
    }

    fn row(&self, resource: &v1::Resource) -> Vec<String> {
        let spec: v1::ConfigSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        let digest = resource.metadata.as_ref().map(|m| m.template_hash.clone()).unwrap_or_default();
        vec![spec.data.len().to_string(), digest]
    }
}
