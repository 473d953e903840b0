//! Service: N copies of one command, kept running, replaced in an orderly way when the template changes.

use std::{any::Any as StdAny, sync::Arc, time::Duration};

use api::{manifest::Range, v1};
use bytes::Bytes;
use model::{Conditions, Domain, Key, Violation, fields::Fields};

use prost::Message;

use crate::{Column, Info, Kind, Rights, Shared, Template, config, instance, typed};

mod admit;
pub mod evictions;
mod fleet;
mod lost;
mod plan;
mod rest;
mod sensible;
mod status;
mod target;
mod template;
#[cfg(test)]
mod tests;

pub use admit::REPLICAS_MAX;
pub use lost::{Judge, brake};
pub use plan::Services;
pub use status::AVAILABLE;

pub const KIND: &str = "Service";
pub const SPEC: &str = "driftless.v1.ServiceSpec";
pub const STATUS: &str = "driftless.v1.ServiceStatus";
pub const READY: &str = "Ready";
pub const PROGRESSING: &str = "Progressing";

/// A declared service with every default filled in; can't be wrong.
#[derive(Clone, Debug)]
pub struct Service {
    pub replicas: usize,
    pub version: String,
    pub template: v1::InstanceTemplate,
    /// Instances above `replicas`, those still stopping included.
    pub surge: usize,
    /// Instances that may be missing from `replicas` ready ones.
    pub unavailable: usize,
    pub min_available: usize,
    /// As declared; what it comes to for an instance says `lost::Patience`.
    pub lost_after: Duration,
    pub min_ready: MinReady,
    pub progress_deadline: Option<Duration>,
    pub auto_rollback: bool,
    pub pause: bool,
    /// What earlier looks wrote down.
    pub status: v1::ServiceStatus,
}

impl Service {
    /// Ready ones that no eviction goes below. Where nothing is declared, nothing is kept.
    fn floor(&self) -> usize {
        if self.replicas == 0 { 0 } else { self.min_available }
    }
}

/// How long an instance of the target's template must have been ready before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinReady {
    Declared(Duration),
    /// Nothing was declared, and nothing checks whether it's ready.
    Unchecked(Duration),
}

impl MinReady {
    /// `at_stake`: ready instances of another template would be stopped for it.
    fn asked(self, at_stake: bool) -> Duration {
        match self {
            Self::Declared(time) => time,
            Self::Unchecked(time) if at_stake => time,
            Self::Unchecked(_) => Duration::ZERO,
        }
    }
}

static INFO: Info = Info {
    kind: KIND,
    plural: "services",
    short: &["svc"],
    namespaced: true,
    global: false,
    declared: true,
    spec_type: SPEC,
    status_type: STATUS,
    columns: &[
        Column::new("READY"),
        Column::new("UPDATED"),
        Column::new("VERSION"),
        Column::new("STATUS"),
        Column::wide("REVISION"),
        Column::wide("MESSAGE"),
    ],
};

/// `scale`, and `rollout pause`.
static SHARED: [Shared; 2] = [
    Shared { path: "replicas", owner: "scale", kept: |_| None },
    Shared { path: "rollout.pause", owner: "rollout pause", kept: still_paused },
];

fn still_paused(spec: &Bytes) -> Option<String> {
    let paused = v1::ServiceSpec::decode(spec.clone()).ok()?.rollout?.pause();
    let words = "still paused by 'rollout pause', since the manifest doesn't name spec.rollout.pause: nothing is replaced \
                 until 'driftless rollout resume'";
    paused.then(|| words.to_owned())
}

/// The version that runs, as people call it.
pub fn running(resource: &v1::Resource) -> String {
    let spec: v1::ServiceSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
    let status: v1::ServiceStatus = typed("status", resource.status.as_ref()).unwrap_or_default();
    let generation = resource.metadata.as_ref().map_or(0, |metadata| metadata.generation);
    let ready = status.conditions.iter().any(|c| c.r#type == READY && c.status == "True");
    status::version(&spec, &status, ready && status.observed_generation == generation)
}

pub struct ServiceKind;

impl Kind for ServiceKind {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn admit(&self, spec: &Bytes) -> Result<Template, Vec<Violation>> {
        admit::admit(spec)
    }

    fn rights(&self, domain: Domain) -> Rights {
        match domain {
            Domain::User => Rights { create: true, delete: true, spec: Fields::ALL, ..Rights::NONE },
            Domain::Shard => {
                Rights { remove: true, status: Fields::ALL, conditions: Conditions::AllBut(&[]), ..Rights::NONE }
            }
            Domain::Leader | Domain::Agent => Rights::NONE,
        }
    }

    fn ranges(&self) -> &'static [Range<'static>] {
        &admit::RANGES
    }

    fn shared(&self) -> &'static [Shared] {
        &SHARED
    }

    fn parse(&self, resource: &v1::Resource) -> Result<Arc<dyn StdAny + Send + Sync>, Violation> {
        let spec: v1::ServiceSpec = typed("spec", resource.spec.as_ref())?;
        match admit::service(&spec) {
            Ok(service) => {
                let status = typed("status", resource.status.as_ref())?;
                Ok(Arc::new(Service { status, ..service }))
            }
            Err(violations) => Err(violations.into_iter().next().expect("an error names a violation")),
        }
    }

    fn uses(&self, resource: &v1::Resource) -> Vec<(&'static str, Key)> {
        let spec: v1::ServiceSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        let namespace = resource.metadata.as_ref().map(|metadata| metadata.namespace.clone()).unwrap_or_default();
        let from = spec.template.unwrap_or_default().env_from.into_iter();
        from.map(|from| ("spec.template.env_from", Key::new(config::KIND, &namespace, &from.config))).collect()
    }

    fn has_seen(&self, resource: &v1::Resource, used: &Key) -> Option<i64> {
        let status: v1::ServiceStatus = typed("status", resource.status.as_ref()).ok()?;
        status.observed_configs.get(used.name()).copied().filter(|_| used.kind() == config::KIND)
    }

    fn proof(&self, resource: &v1::Resource) -> Duration {
        let spec: v1::ServiceSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        if spec.replicas == Some(0) { Duration::ZERO } else { instance::proof(spec.template.as_ref()) }
    }

    fn failed(&self, resource: &v1::Resource) -> Option<String> {
        let status: v1::ServiceStatus = typed("status", resource.status.as_ref()).ok()?;
        let metadata = resource.metadata.as_ref()?;
        let current = status.observed_generation == metadata.generation && metadata.deletion_time.is_none();
        current.then(|| status::failed(&status)).flatten()
    }

    fn amiss(&self, condition: &v1::Condition) -> bool {
        status::amiss(condition)
    }

    fn row(&self, resource: &v1::Resource) -> Vec<String> {
        let spec: v1::ServiceSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        let status: v1::ServiceStatus = typed("status", resource.status.as_ref()).unwrap_or_default();
        let metadata = resource.metadata.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|c| c.r#type == READY);
        let is_current = status.observed_generation == metadata.generation;
        let word = if metadata.deletion_time.is_some() {
            "Deleting".to_owned()
        } else if !is_current {
            "Pending".to_owned()
        } else {
            ready.map_or("Pending", |c| if c.status == "True" { "Ready" } else { c.reason.as_str() }).to_owned()
        };
        vec![
            format!("{}/{}", status.ready_replicas, spec.replicas.unwrap_or(1)),
            status.updated_replicas.to_string(),
            running(resource),
            word,
            metadata.revision.to_string(),
            ready.map(|c| c.message.clone()).unwrap_or_default(),
        ]
    }
}
