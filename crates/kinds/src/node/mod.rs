//! Node: a machine with an agent. Its agent reports it; the leader judges its silence.

use std::{any::Any as StdAny, sync::Arc};

use api::v1;
use bytes::Bytes;
use model::{Conditions, Domain, Key, Time, Violation, fields::Fields};
use prost::Message;

use crate::{Column, Info, Kind, Rights, Template, instance, placement, typed};

mod plan;
#[cfg(test)]
mod tests;

pub use plan::{Nodes, UNKNOWN_AFTER};

pub const KIND: &str = "Node";
pub const SPEC: &str = "driftless.v1.NodeSpec";
pub const STATUS: &str = "driftless.v1.NodeStatus";
pub const READY: &str = "Ready";
/// False, by its agent's word, while it doesn't believe the store: it stops nothing that the store merely doesn't name.
pub const CONFIRMED: &str = "Confirmed";
/// The reason of that once a user vouched for the store: it becomes true by itself.
pub const STOPPING_STRAYS: &str = "StoppingStrays";
/// False, by its agent's word, while it can't do its work, such as writing to its disk.
pub const DRIVER_WORKS: &str = "DriverWorks";
/// False, by its agent's word, while it can't enforce the limits that instances may declare.
pub const LIMITS_ENFORCED: &str = "LimitsEnforced";
/// What an agent says only where it isn't so.
pub const TROUBLES: [&str; 3] = [CONFIRMED, DRIVER_WORKS, LIMITS_ENFORCED];
/// Nothing is left on a node that is being drained.
pub const DRAINED: &str = "Drained";
/// Why that isn't so yet, as long as nobody has to do anything about it.
const DRAINING: &str = "Draining";
const TAKEN_BACK: &str = "TakenBack";
const GIVEN_UP: &str = "GivenUp";
const DRAIN_OF: &str = "drain of node ";

/// The leader's fields: `observed_generation`, which its Ready speaks of, and `silent_since`.
const LEADERS: &[u32] = &[1, 6];

/// Who asks an instance to go, where a drain of that node does. Only a drain takes back what was asked.
pub fn drain_of(node: &str) -> String {
    format!("{DRAIN_OF}{node}")
}

pub fn is_drain(requested_by: &str) -> bool {
    requested_by.starts_with(DRAIN_OF)
}

/// A node as decisions see it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Nothing new goes there; also while it's drained.
    pub cordon: bool,
    pub drain: bool,
    /// Its status tells of a drain, be it a past one.
    pub drain_told: bool,
    pub capacity: v1::Capacity,
    pub silent_since: Option<Time>,
    pub ready: bool,
    /// The identity of its machine's data dir.
    pub machine_id: String,
    /// What its agent says is not as it should be.
    pub troubles: Vec<v1::Condition>,
}

static INFO: Info = Info {
    kind: KIND,
    plural: "nodes",
    short: &["no"],
    namespaced: false,
    global: true,
    declared: false,
    spec_type: SPEC,
    status_type: STATUS,
    columns: &[
        Column::new("READY"),
        Column::new("CPU"),
        Column::new("MEMORY"),
        Column::new("DRIVER"),
        Column::new("TROUBLE"),
        Column::wide("VERSION"),
        Column::wide("SILENT-SINCE"),
    ],
};

pub struct NodeKind;

impl Kind for NodeKind {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn admit(&self, spec: &Bytes) -> Result<Template, Vec<Violation>> {
        match v1::NodeSpec::decode(spec.clone()) {
            Ok(_) => Ok(Template::default()),
            Err(error) => Err(vec![Violation::new("spec", error.to_string())]),
        }
    }

    fn rights(&self, domain: Domain) -> Rights {
        match domain {
            Domain::User => Rights { delete: true, remove: true, spec: Fields::ALL, ..Rights::NONE },
            Domain::Shard => Rights::NONE,
            Domain::Leader => Rights {
                remove: true,
                status: Fields::Only(LEADERS),
                conditions: Conditions::Only(&[READY, DRAINED]),
                ..Rights::NONE
            },
            Domain::Agent => Rights {
                create: true,
                status: Fields::AllBut(LEADERS),
                conditions: Conditions::AllBut(&[READY, DRAINED]),
                ..Rights::NONE
            },
        }
    }

    fn parse(&self, resource: &v1::Resource) -> Result<Arc<dyn StdAny + Send + Sync>, Violation> {
        let spec: v1::NodeSpec = typed("spec", resource.spec.as_ref())?;
        let status: v1::NodeStatus = typed("status", resource.status.as_ref())?;
        Ok(Arc::new(Node {
            cordon: spec.cordon || spec.drain,
            drain: spec.drain,
            drain_told: status.conditions.iter().any(|c| c.r#type == DRAINED),
            capacity: status.capacity.unwrap_or_default(),
            silent_since: status.silent_since.as_ref().map(Time::from),
            machine_id: status.machine_id,
            ready: status.conditions.iter().any(|c| c.r#type == READY && c.status == "True"),
            troubles: status
                .conditions
                .into_iter()
                .filter(|c| TROUBLES.contains(&c.r#type.as_str()) && c.status == "False")
                .collect(),
        }))
    }

    fn node(&self, resource: &v1::Resource) -> Option<String> {
        resource.metadata.as_ref().map(|m| m.name.clone())
    }

    fn in_use(&self, key: &Key, bound: &mut dyn Iterator<Item = Key>) -> Option<String> {
        let instances = bound.filter(|key| key.kind() == instance::KIND).count();
        let name = key.name();
        let them = if instances == 1 { "1 instance is" } else { &format!("{instances} instances are") };
        let refused = || {
            format!(
                "its agent is there, and {them} bound to it, which would be given up and replaced at once, whatever their \
                 services' disruption budgets say; 'driftless drain {name}' moves them away within these, and \
                 'driftless delete node {name} --now' doesn't wait for that"
            )
        };
        (instances > 0).then(refused)
    }

    fn bound_with(&self) -> Option<Key> {
        Some(Key::new(placement::KIND, "", placement::NAME))
    }

    fn told(&self, before: &v1::Resource, after: &v1::Resource) -> Option<String> {
        let spec = |resource: &v1::Resource| typed::<v1::NodeSpec>("spec", resource.spec.as_ref()).unwrap_or_default();
        told(&spec(before), &spec(after))
    }

    fn row(&self, resource: &v1::Resource) -> Vec<String> {
        let spec: v1::NodeSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        let status: v1::NodeStatus = typed("status", resource.status.as_ref()).unwrap_or_default();
        let capacity = status.capacity.unwrap_or_default();
        let ready = status.conditions.iter().find(|c| c.r#type == READY).map_or("Unknown", |c| c.status.as_str());
        let cordoned = match (spec.drain, spec.cordon) {
            (true, _) => ",draining",
            (false, true) => ",cordoned",
            (false, false) => "",
        };
        vec![
            format!("{ready}{cordoned}"),
            format!("{}m", capacity.cpu_millis),
            format!("{}Mi", capacity.memory_bytes >> 20),
            status.driver,
            trouble(&status.conditions),
            status.agent_version,
            status.silent_since.map(|t| t.to_string()).unwrap_or_default(),
        ]
    }
}

fn told(before: &v1::NodeSpec, after: &v1::NodeSpec) -> Option<String> {
    let word = |spec: &v1::NodeSpec| (spec.confirmed_incarnation.clone(), spec.confirmed_time);
    let mut words = Vec::new();
    if word(before) != word(after) {
        let incarnation = &after.confirmed_incarnation;
        words.push(format!(
            "confirmed: somebody vouched for the store (incarnation {incarnation}), so what it doesn't name there may be \
             stopped, at most half at a time"
        ));
    }
    words.extend(match (before.drain, after.drain) {
        (false, true) => {
            Some("is to be drained: what runs there is asked to go, within each service's budget".to_owned())
        }
        (true, false) => Some("is no longer to be drained".to_owned()),
        _ => None,
    });
    words.extend(match (before.cordon, after.cordon) {
        (false, true) => Some("cordoned: nothing new is placed there".to_owned()),
        (true, false) => Some("uncordoned: it takes part again in what is placed".to_owned()),
        _ => None,
    });
    (!words.is_empty()).then(|| words.join("; "))
}

/// Reasons of what the agent says is wrong, and of a drain that can't go on; in full they are for `describe`.
fn trouble(conditions: &[v1::Condition]) -> String {
    let goes_on = |c: &v1::Condition| c.r#type == DRAINED && [DRAINING, TAKEN_BACK].contains(&c.reason.as_str());
    let wrong = conditions.iter().filter(|c| c.r#type != READY && c.status == "False" && !goes_on(c));
    let reasons: Vec<&str> = wrong.map(|c| c.reason.as_str()).collect();
    if reasons.is_empty() { "-".into() } else { reasons.join(",") }
}
