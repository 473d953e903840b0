//! Whether a resource is what somebody waits for. Pure, and the same for every kind.

use api::v1;
use model::Time;
use prost::Message;

/// What every kind's status starts with.
#[derive(Clone, PartialEq, Message)]
pub struct Head {
    #[prost(int64, tag = "1")]
    pub observed_generation: i64,
    #[prost(message, repeated, tag = "2")]
    pub conditions: Vec<v1::Condition>,
}

impl Head {
    /// Unreadable is as if nothing was reported.
    pub fn of(resource: &v1::Resource) -> Self {
        let bytes = resource.status.as_ref().map_or(&[][..], |any| any.value.as_slice());
        Self::decode(bytes).unwrap_or_default()
    }

    pub fn condition(&self, condition_type: &str) -> Option<&v1::Condition> {
        self.conditions.iter().find(|c| c.r#type.eq_ignore_ascii_case(condition_type))
    }
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    Deleted,
    /// The condition has that status, said of the declared generation.
    Condition {
        condition_type: String,
        status: String,
    },
}

impl Goal {
    pub fn ready() -> Self {
        Self::condition("Ready")
    }

    pub fn condition(condition_type: &str) -> Self {
        Self::Condition { condition_type: condition_type.into(), status: "True".into() }
    }

    /// "ready", "deleted", "Progressing", "Progressing=False".
    pub fn parse(text: &str) -> Result<Self, String> {
        let (condition_type, status) = text.split_once('=').unwrap_or((text, "True"));
        if condition_type.is_empty() || !["True", "False", "Unknown"].contains(&status) {
            return Err("write ready, deleted, a condition's type, or TYPE=True|False|Unknown".into());
        }
        Ok(match text {
            "deleted" => Self::Deleted,
            _ => Self::Condition { condition_type: condition_type.into(), status: status.into() },
        })
    }

    /// However it was spelled.
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Condition { condition_type, status } => {
                condition_type.eq_ignore_ascii_case("Ready") && status == "True"
            }
            Self::Deleted => false,
        }
    }

    /// Since when it's met, for a condition.
    pub fn since(&self, resource: &v1::Resource) -> Option<Time> {
        match self {
            Self::Condition { condition_type, .. } if self.is_met(Some(resource)) => {
                let head = Head::of(resource);
                let time = head.condition(condition_type).and_then(|c| c.last_transition_time);
                Some(time.as_ref().map(Time::from).unwrap_or_default())
            }
            _ => None,
        }
    }

    pub fn is_met(&self, resource: Option<&v1::Resource>) -> bool {
        match (self, resource) {
            (Self::Deleted, resource) => resource.is_none(),
            (Self::Condition { .. }, None) => false,
            (Self::Condition { condition_type, status }, Some(resource)) => {
                let head = Head::of(resource);
                let metadata = resource.metadata.as_ref();
                metadata.is_some_and(|m| m.generation == head.observed_generation && m.deletion_time.is_none())
                    && head.condition(condition_type).is_some_and(|c| c.status == *status)
            }
        }
    }
}

/// How it stands, in one line: why it's not there yet, where something knows.
pub fn words(resource: &v1::Resource, goal: &Goal) -> String {
    let metadata = resource.metadata.clone().unwrap_or_default();
    let head = Head::of(resource);
    if metadata.deletion_time.is_some() {
        return match metadata.finalizers.as_slice() {
            [] => "is being deleted".into(),
            waiting => format!("is being deleted, waits for {}", waiting.join(", ")),
        };
    }
    if head.observed_generation < metadata.generation && *goal != Goal::Deleted {
        let (observed, declared) = (head.observed_generation, metadata.generation);
        return format!("generation {declared} is not yet looked at (the status is of {observed})");
    }
    let Goal::Condition { condition_type, .. } = goal else {
        let asked = kinds::kind(&metadata.kind).and_then(|kind| kind.asked_to_go(resource));
        return asked.unwrap_or_else(|| "is there, and nobody asked for it to go".into());
    };
    match head.condition(condition_type) {
        None => format!("says nothing of {condition_type}"),
        Some(c) if c.status == "True" && c.r#type == "Ready" => and("ready", &c.message),
        Some(c) => and(if c.reason.is_empty() { &c.status } else { &c.reason }, &c.message),
    }
}

fn and(what: &str, more: &str) -> String {
    if more.is_empty() { what.to_owned() } else { format!("{what}: {more}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(generation: i64, observed: i64, status: &str) -> v1::Resource {
        let condition = v1::Condition {
            r#type: "Ready".into(),
            status: status.into(),
            reason: "Replacing".into(),
            message: "1 of 3".into(),
            ..Default::default()
        };
        let status = v1::ServiceStatus {
            observed_generation: observed,
            conditions: vec![condition],
            ready_replicas: 1,
            ..Default::default()
        };
        v1::Resource {
            metadata: Some(v1::Metadata { generation, ..Default::default() }),
            status: Some(prost_types::Any { type_url: String::new(), value: status.encode_to_vec() }),
            spec: None,
        }
    }

    #[test]
    fn ready_speaks_of_the_declared_generation_only() {
        assert!(Goal::ready().is_met(Some(&resource(2, 2, "True"))));
        assert!(!Goal::ready().is_met(Some(&resource(2, 1, "True"))));
        assert!(!Goal::ready().is_met(Some(&resource(2, 2, "False"))));
        assert!(!Goal::ready().is_met(None));
        assert!(!Goal::ready().is_met(Some(&v1::Resource::default())));
    }

    #[test]
    fn what_is_being_deleted_is_not_ready() {
        let mut going = resource(2, 2, "True");
        going.metadata.as_mut().unwrap().deletion_time = Some(prost_types::Timestamp::default());
        assert!(!Goal::ready().is_met(Some(&going)));
        assert!(!Goal::Deleted.is_met(Some(&going)));
        assert!(Goal::Deleted.is_met(None));
    }

    #[test]
    fn goals_are_read() {
        assert_eq!(Goal::parse("deleted"), Ok(Goal::Deleted));
        assert!(Goal::parse("ready").unwrap().is_met(Some(&resource(1, 1, "True"))));
        assert!(Goal::parse("Ready=False").unwrap().is_met(Some(&resource(1, 1, "False"))));
        assert!(Goal::parse("Ready=Maybe").is_err());
        assert!(Goal::parse("=True").is_err());
    }

    #[test]
    fn every_spelling_of_ready_is_ready() {
        for spelling in ["ready", "Ready", "ready=True"] {
            assert!(Goal::parse(spelling).unwrap().is_ready(), "{spelling}");
        }
        for other in ["deleted", "ready=False", "Progressing"] {
            assert!(!Goal::parse(other).unwrap().is_ready(), "{other}");
        }
    }

    #[test]
    fn words_say_why_not() {
        assert_eq!(words(&resource(2, 2, "False"), &Goal::ready()), "Replacing: 1 of 3");
        let old = words(&resource(3, 2, "True"), &Goal::ready());
        assert_eq!(old, "generation 3 is not yet looked at (the status is of 2)");
        let mut silent = resource(2, 2, "True");
        let mut head = Head::of(&silent);
        head.conditions[0].message.clear();
        silent.status.as_mut().unwrap().value = head.encode_to_vec();
        assert_eq!(words(&silent, &Goal::ready()), "ready");
    }

    #[test]
    fn of_what_should_be_gone_it_is_said_who_asked_and_what_holds_it() {
        assert_eq!(words(&resource(3, 2, "True"), &Goal::Deleted), "is there, and nobody asked for it to go");
        let evict = v1::Eviction { requested_by: "user/ann".into(), time: None };
        let status = v1::InstanceStatus { evict: Some(evict), ..Default::default() };
        let instance = v1::Resource {
            metadata: Some(v1::Metadata { kind: "Instance".into(), ..Default::default() }),
            status: Some(prost_types::Any { type_url: String::new(), value: status.encode_to_vec() }),
            spec: None,
        };
        let told = words(&instance, &Goal::Deleted);
        assert_eq!(told, "asked to go by user/ann, stays until its service's disruption budget lets it go");
    }
}
