//! What is told of a node beside its record: whether it is heard, what it last said, and what is reserved there.

use api::v1;
use kinds::{
    instance::{self, Instance},
    node::Node,
    placement::{Reserved, most},
};
use model::{Filter, Time};

use crate::{
    client::Client,
    verbs::{apply, get},
    vouched, words,
};

/// What runs there, or has run to its end there.
pub async fn instances(client: &Client, name: &str) -> anyhow::Result<Vec<v1::Resource>> {
    let here = Filter { node: name.into(), ..Filter::kind(instance::KIND) };
    Ok(get::all(client, here).await?.0)
}

/// Lines of the head.
pub async fn head(
    client: &Client,
    node: &v1::Resource,
    instances: &[v1::Resource],
    entries: &[v1::HistoryEntry],
) -> anyhow::Result<Vec<(&'static str, String)>> {
    let name = node.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
    let state = vouched::coordination(client).await?;
    let member = state.members.iter().find(|member| member.role == "agent" && member.name == name);
    let session = match (member, read::<Node>(node).and_then(|node| node.silent_since)) {
        (Some(member), _) => format!("live, through server {}", member.server),
        (None, Some(since)) => format!("none since {}", told(since)),
        (None, None) => "none".into(),
    };
    let said = last_said(&format!("agent/{name}"), node, instances, entries);
    Ok(vec![("Session", session), ("Last said", said.unwrap_or_default()), ("Reserved", reserved(node, instances))])
}

/// The newest write of its agent, and of what.
fn last_said(
    agent: &str,
    node: &v1::Resource,
    instances: &[v1::Resource],
    entries: &[v1::HistoryEntry],
) -> Option<String> {
    let writes = instances.iter().chain([node]).filter_map(|resource| {
        let metadata = resource.metadata.as_ref()?;
        let is_its = metadata.last_writer.as_ref().is_some_and(|writer| writer.actor == agent);
        Some((Time::from(metadata.updated_time.as_ref()?), words::short(&apply::key(resource)))).filter(|_| is_its)
    });
    let entries = entries.iter().filter(|entry| entry.actor == agent).filter_map(|entry| {
        let why = entry.why.as_ref().map(|why| why.message.clone()).unwrap_or_default();
        Some((Time::from(entry.time.as_ref()?), why))
    });
    let (time, what) = writes.chain(entries).max_by_key(|(time, _)| *time)?;
    Some(format!("{}: {what}", told(time)))
}

fn told(time: Time) -> String {
    let time = prost_types::Timestamp::from(time);
    format!("{time} ({} ago)", words::age(Some(&time), words::now()))
}

/// By the same count as placement's.
fn reserved(node: &v1::Resource, instances: &[v1::Resource]) -> String {
    let capacity = read::<Node>(node).map(|node| node.capacity).unwrap_or_default();
    let instances: Vec<Instance> = instances.iter().filter_map(read::<Instance>).collect();
    let reserved = Reserved::of(&instances);
    format!(
        "cpu {}m of {}m, memory {}Mi of {}Mi, instances {} of {}",
        reserved.cpu_millis,
        capacity.cpu_millis,
        reserved.memory_bytes >> 20,
        capacity.memory_bytes >> 20,
        reserved.instances,
        most(&capacity),
    )
}

/// As decisions see it.
fn read<T: Clone + Send + Sync + 'static>(resource: &v1::Resource) -> Option<T> {
    let kind = kinds::kind(&resource.metadata.as_ref()?.kind)?;
    kind.parse(resource).ok()?.downcast_ref::<T>().cloned()
}

#[cfg(test)]
mod tests {
    use kinds::node;

    use super::*;

    fn node_resource() -> v1::Resource {
        let capacity = v1::Capacity { cpu_millis: 4_000, memory_bytes: 4 << 30, instances: 0 };
        let status = v1::NodeStatus { capacity: Some(capacity), ..Default::default() };
        resource(node::KIND, "n1", "controller/a", 9, None, Some(kinds::any(node::STATUS, &status)))
    }

    fn instance_resource(name: &str, writer: &str, seconds: i64, phase: &str) -> v1::Resource {
        let requests = v1::Amounts { cpu: "500m".into(), memory: "256Mi".into(), pids: 0 };
        let resources = v1::Resources { requests: Some(requests), ..Default::default() };
        let template = v1::InstanceTemplate { resources: Some(resources), ..Default::default() };
        let spec = v1::InstanceSpec { node: "n1".into(), template: Some(template), ..Default::default() };
        let status = v1::InstanceStatus { phase: phase.into(), ..Default::default() };
        let spec = kinds::any(instance::SPEC, &spec);
        resource(instance::KIND, name, writer, seconds, Some(spec), Some(kinds::any(instance::STATUS, &status)))
    }

    fn resource(
        kind: &str,
        name: &str,
        writer: &str,
        seconds: i64,
        spec: Option<prost_types::Any>,
        status: Option<prost_types::Any>,
    ) -> v1::Resource {
        let metadata = v1::Metadata {
            kind: kind.into(),
            name: name.into(),
            updated_time: Some(Time(seconds * 1_000_000).into()),
            last_writer: Some(v1::Writer { actor: writer.into(), ..Default::default() }),
            ..Default::default()
        };
        v1::Resource { metadata: Some(metadata), spec, status }
    }

    #[test]
    fn what_is_finished_reserves_nothing() {
        let here = [
            instance_resource("a", "agent/n1", 1, "Running"),
            instance_resource("b", "agent/n1", 1, "Pending"),
            instance_resource("c", "agent/n1", 1, "Finished"),
        ];
        assert_eq!(
            reserved(&node_resource(), &here),
            "cpu 1000m of 4000m, memory 512Mi of 4096Mi, instances 2 of 1000"
        );
    }

    #[test]
    fn the_newest_word_of_its_own_agent_is_told() {
        let here = [
            instance_resource("old", "agent/n1", 2, "Running"),
            instance_resource("new", "agent/n1", 3, "Running"),
            instance_resource("other", "agent/n2", 4, "Running"),
        ];
        let said = |entries: &[v1::HistoryEntry], here: &[v1::Resource]| {
            last_said("agent/n1", &node_resource(), here, entries)
                .map(|said| said.rsplit(": ").next().unwrap().to_owned())
        };
        assert_eq!(said(&[], &here).as_deref(), Some("instance/new"));
        let registered = v1::HistoryEntry {
            actor: "agent/n1".into(),
            time: Some(Time(1_000_000).into()),
            why: Some(v1::Why { message: "node n1 registered".into(), ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(said(&[registered], &[]).as_deref(), Some("node n1 registered"));
        assert_eq!(said(&[], &[]), None);
    }
}
