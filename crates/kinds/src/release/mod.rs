//! Release: tells a node that came back that an instance of its was given up and replaced while it was silent.
//!
//! Written in the same transaction that removes the lost Instance's record; named by that instance's uid. The node's
//! agent stops what it names and removes it. Only the machine that the instance ran on may do so: one whose Node was deleted,
//! or is another machine now, so that nobody is left to do it, the leader removes.

use std::{any::Any as StdAny, sync::Arc};

use api::v1;
use bytes::Bytes;
use model::{Conditions, Domain, Violation, fields::Fields};

use crate::{Column, Info, Kind, Rights, Template, typed};

mod plan;
#[cfg(test)]
mod tests;

pub use plan::{KEPT, Releases, is_for};

pub const KIND: &str = "Release";
pub const SPEC: &str = "driftless.v1.ReleaseSpec";
pub const STATUS: &str = "driftless.v1.ReleaseStatus";
/// True while nobody is left whom it tells something.
pub const NODE_GONE: &str = "NodeGone";

pub struct ReleaseKind;

static INFO: Info = Info {
    kind: KIND,
    plural: "releases",
    short: &[],
    namespaced: true,
    global: false,
    declared: false,
    spec_type: SPEC,
    status_type: STATUS,
    columns: &[Column::new("NODE"), Column::new("INSTANCE")],
};

impl Kind for ReleaseKind {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn admit(&self, _spec: &Bytes) -> Result<Template, Vec<Violation>> {
        Ok(Template::default())
    }

    fn rights(&self, domain: Domain) -> Rights {
        match domain {
            Domain::Shard => Rights { create: true, spec: Fields::ALL, ..Rights::NONE },
            Domain::Leader => Rights {
                remove: true,
                status: Fields::Only(&[1]),
                conditions: Conditions::Only(&[NODE_GONE]),
                ..Rights::NONE
            },
            Domain::Agent | Domain::User => Rights { remove: true, ..Rights::NONE },
        }
    }

    fn parse(&self, resource: &v1::Resource) -> Result<Arc<dyn StdAny + Send + Sync>, Violation> {
        Ok(Arc::new(typed::<v1::ReleaseSpec>("spec", resource.spec.as_ref())?))
    }

    fn node(&self, resource: &v1::Resource) -> Option<String> {
        typed::<v1::ReleaseSpec>("spec", resource.spec.as_ref()).ok().map(|spec| spec.node)
    }

    /// A service that is deleted gives up what runs on a lost node, too.
    fn outlives_owner(&self) -> bool {
        true
    }

    fn row(&self, resource: &v1::Resource) -> Vec<String> {
        let spec: v1::ReleaseSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        vec![spec.node, spec.instance.unwrap_or_default().name]
    }
}
