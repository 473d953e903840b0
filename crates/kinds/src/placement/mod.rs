//! Placement: one record that every bind writes, so that two binds never share a stale view of capacity.

use std::{any::Any as StdAny, sync::Arc};

use api::v1;
use bytes::Bytes;
use model::{Conditions, Domain, Violation, fields::Fields};

use crate::{Column, Info, Kind, Rights, Template, instance::PLACED, typed};

mod plan;
mod reserved;
#[cfg(test)]
mod tests;

pub use plan::Placements;
pub use reserved::{Reserved, most};

pub const KIND: &str = "Placement";
/// The one record, made with the cluster.
pub const NAME: &str = "default";
pub const SPEC: &str = "driftless.v1.PlacementSpec";
pub const STATUS: &str = "driftless.v1.PlacementStatus";
/// False while the brake holds: more than half of the nodes are silent at once.
pub const REACHABLE: &str = "NodesReachable";
/// What it means, wherever somebody looks.
pub const BRAKE: &str = "more than half of the nodes are silent, so nothing that runs on them is replaced";

static INFO: Info = Info {
    kind: KIND,
    plural: "placements",
    short: &[],
    namespaced: false,
    global: true,
    declared: false,
    spec_type: SPEC,
    status_type: STATUS,
    columns: &[Column::new("UNPLACED"), Column::new("REASON"), Column::new("NODES")],
};

pub struct PlacementKind;

impl Kind for PlacementKind {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn admit(&self, _spec: &Bytes) -> Result<Template, Vec<Violation>> {
        Ok(Template::default())
    }

    fn rights(&self, domain: Domain) -> Rights {
        match domain {
            Domain::Leader => Rights { status: Fields::ALL, conditions: Conditions::AllBut(&[]), ..Rights::NONE },
            _ => Rights::NONE,
        }
    }

    fn parse(&self, resource: &v1::Resource) -> Result<Arc<dyn StdAny + Send + Sync>, Violation> {
        let status: v1::PlacementStatus = typed("status", resource.status.as_ref())?;
        Ok(Arc::new(status))
    }

    fn row(&self, resource: &v1::Resource) -> Vec<String> {
        let status: v1::PlacementStatus = typed("status", resource.status.as_ref()).unwrap_or_default();
        let reason = |name: &str| {
            let said = status.conditions.iter().find(|c| c.r#type == name);
            said.map(|c| c.reason.clone()).unwrap_or_default()
        };
        vec![status.unplaced.to_string(), reason(PLACED), reason(REACHABLE)]
    }
}
