//! What an operator must not miss while he looks at a table: said below it, on standard error, so that no program that
//! reads the table is disturbed. Nothing here may keep the table from being shown.

use std::collections::BTreeSet;

use api::v1;
use kinds::{node, placement};
use model::{Filter, Key};

use crate::{client::Client, output, standing::Head, verbs::get};

/// Silent nodes that are named; the rest is a number.
const NAMED: usize = 3;

/// What is to be said below a table of these.
pub async fn say(client: &Client, shown: &[v1::Resource]) {
    let nodes: Vec<String> = shown.iter().filter_map(bound_to).collect();
    if !nodes.is_empty()
        && let Ok((all, _)) = get::all(client, Filter::kind(node::KIND)).await
    {
        let heard: BTreeSet<&str> = all.iter().filter(|n| is(n, node::READY, "True")).filter_map(name).collect();
        unheard(&nodes, &heard).into_iter().for_each(|line| output::say(&line));
    }
    let record = client.api.get(&Key::new(placement::KIND, "", placement::NAME)).await;
    if let Ok(Some(record)) = record
        && let Ok(resource) = record.resource()
        && is(&resource, placement::REACHABLE, "False")
    {
        output::say(&format!("warning: {} (driftless why placement {})", placement::BRAKE, placement::NAME));
    }
}

fn unheard(nodes: &[String], heard: &BTreeSet<&str>) -> Option<String> {
    let silent: Vec<&str> = nodes.iter().map(String::as_str).filter(|node| !heard.contains(node)).collect();
    let names: BTreeSet<&str> = silent.iter().copied().collect();
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let which = if names.len() == 1 { "which is not heard" } else { "which are not heard" };
    let line = format!("warning: shown as last heard of: {} on {named}{more}, {which}", silent.len());
    (!silent.is_empty()).then_some(line)
}

/// The node that it's on; none for what is a node.
fn bound_to(resource: &v1::Resource) -> Option<String> {
    let metadata = resource.metadata.as_ref()?;
    kinds::kind(&metadata.kind)?.node(resource).filter(|node| *node != metadata.name)
}

fn name(resource: &v1::Resource) -> Option<&str> {
    resource.metadata.as_ref().map(|metadata| metadata.name.as_str())
}

fn is(resource: &v1::Resource, condition: &str, status: &str) -> bool {
    Head::of(resource).condition(condition).is_some_and(|c| c.status == status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_heard_is_counted_and_its_nodes_are_named() {
        let nodes = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let said = |names: &str| unheard(&nodes(names), &BTreeSet::from(["n1"]));
        assert_eq!(said("n1 n1"), None);
        let line = said("n1 n2 n2").expect("two are on n2");
        assert_eq!(line, "warning: shown as last heard of: 2 on n2, which is not heard");
        let line = said("n2 n3 n4 n5 n6").expect("all are");
        assert_eq!(line, "warning: shown as last heard of: 5 on n2, n3, n4 and 2 more, which are not heard");
    }
}
