//! Conditions: keyed by type, one writer each.

use api::v1;

use crate::Time;

/// Which condition types a domain writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

impl Conditions {
    pub const NONE: Self = Self::Only(&[]);

    pub fn contains(self, condition_type: &str) -> bool {
        match self {
            Self::Only(types) => types.contains(&condition_type),
            Self::AllBut(types) => !types.contains(&condition_type),
        }
    }
}

/// A condition without its transition time, which `with_conditions` keeps or stamps.
pub fn condition(
    condition_type: &str,
    status: Option<bool>,
    reason: &str,
    message: impl Into<String>,
) -> v1::Condition {
    let status = match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    v1::Condition {
        r#type: condition_type.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: None,
    }
}

/// The conditions after one writer had its say: those of `own` types become `next`, the others stay. The transition
/// time moves only when a status does.
pub fn with_conditions(
    current: &[v1::Condition],
    next: Vec<v1::Condition>,
    own: Conditions,
    now: Time,
) -> Vec<v1::Condition> {
    let mut merged: Vec<v1::Condition> = current.iter().filter(|c| !own.contains(&c.r#type)).cloned().collect();
    for mut condition in next.into_iter().filter(|c| own.contains(&c.r#type)) {
        let before = current.iter().find(|c| c.r#type == condition.r#type);
        condition.last_transition_time = match before {
            Some(c) if c.status == condition.status && c.last_transition_time.is_some() => c.last_transition_time,
            _ => condition.last_transition_time.or(Some(now.into())),
        };
        merged.push(condition);
    }
    merged.sort_by(|a, b| a.r#type.cmp(&b.r#type));
    merged
}
