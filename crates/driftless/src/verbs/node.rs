//! `driftless cordon`, `uncordon`, `drain`, `node confirm`: what may run on a node. The servers and controllers do the
//! work; a drain goes on when this program ends.

use std::{collections::BTreeSet, time::Duration};

use api::v1;
use model::Key;
use prost::Message;
use prost_reflect::Value;

use super::{apply, wait};
use crate::{client::Client, edit, exit::Trouble, output, standing, words};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless cordon n1
  driftless cordon n1 n2 n3
  driftless uncordon n1

Nothing moves back by itself to a node that is uncordoned: what runs elsewhere stays there, and the node takes part again \
in what is placed from then on (a rollout, a scale, a replacement).")]
pub struct Args {
    /// Their names.
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless drain n1
  driftless drain n1 n2 --timeout 10m
  driftless drain n1 --no-wait

The drain goes on in the cluster when this command is ended; 'driftless uncordon n1' takes it back. What holds it up is told \
while it waits: which service, by which budget, and what to declare where only that helps.")]
pub struct DrainArgs {
    /// Their names. What runs there goes within the same budgets, however many they are.
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// How long to wait until nothing is left there.
    #[arg(long, default_value = "5m", value_parser = words::duration)]
    timeout: Duration,
    /// Only ask for it.
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, clap::Subcommand)]
pub enum NodeVerb {
    /// Vouch for the store, so that the node may stop what the store doesn't assign to it.
    #[command(after_help = "Example:
  driftless describe node n1          its condition Confirmed says what the store doesn't know
  driftless node confirm n1

A node stops nothing merely because a store that it doesn't know, an empty or a restored one, doesn't name it. Look first \
whether it's the store that should be there; what isn't assigned to the node is stopped then, at most half of it at a time, \
until nothing of it is left; the condition stays until then. Of a node in no doubt there is nothing to confirm. Another store has to be vouched for anew, and so has the same one \
should it miss most of what is there once more.")]
    Confirm {
        /// Its name.
        node: String,
    },
}

pub async fn run(client: &Client, verb: NodeVerb) -> anyhow::Result<()> {
    match verb {
        NodeVerb::Confirm { node } => confirm(client, &node).await,
    }
}

/// Names the incarnation, so that whatever store comes after it has to be vouched for anew; and the time, so that the agent
/// can tell it from an earlier one, which is used up.
async fn confirm(client: &Client, node: &str) -> anyhow::Result<()> {
    let key = key(node)?;
    let name = words::short(&key);
    if !doubts(&edit::get(client, &key).await?) {
        return output::print(&format!("{name} doubts nothing: there is nothing to confirm\n"));
    }
    let incarnation = client.api.cluster().await?.incarnation;
    let time = prost_types::Timestamp::from(words::now());
    edit::spec(client, &key, "edit", |spec| {
        edit::set(spec, "confirmed_incarnation", Value::String(incarnation.clone()))?;
        edit::set(spec, "confirmed_time.seconds", Value::I64(time.seconds))?;
        edit::set(spec, "confirmed_time.nanos", Value::I32(time.nanos))
    })
    .await?;
    output::print(&format!(
        "{name} confirmed: it stops what this store (incarnation {incarnation}) doesn't name, half of it at a time; \
         its condition Confirmed stays until nothing of it is left\n"
    ))
}

/// By its agent's word.
fn doubts(node: &v1::Resource) -> bool {
    standing::Head::of(node).condition(kinds::node::CONFIRMED).is_some_and(|confirmed| confirmed.status == "False")
}

fn key(node: &str) -> anyhow::Result<Key> {
    Ok(words::of_kind(&kinds::node::NodeKind, node, "")?)
}

/// As they are now. A name that is wrong is found out before anything is done to the others.
async fn named(client: &Client, names: &[String]) -> anyhow::Result<Vec<v1::Resource>> {
    let keys = names.iter().map(|name| key(name)).collect::<Result<BTreeSet<Key>, _>>()?;
    let mut nodes = Vec::new();
    for key in &keys {
        nodes.push(edit::get(client, key).await?);
    }
    Ok(nodes)
}

fn spec(node: &v1::Resource) -> v1::NodeSpec {
    let bytes = node.spec.as_ref().map_or(&[][..], |spec| spec.value.as_slice());
    v1::NodeSpec::decode(bytes).unwrap_or_default()
}

pub async fn cordon(client: &Client, args: Args) -> anyhow::Result<()> {
    for node in named(client, &args.nodes).await? {
        let key = apply::key(&node);
        edit::spec(client, &key, "edit", |spec| edit::set(spec, "cordon", Value::Bool(true))).await?;
        output::print(&format!("{} cordoned\n", words::short(&key)))?;
    }
    Ok(())
}

pub async fn uncordon(client: &Client, args: Args) -> anyhow::Result<()> {
    let (closed, open): (Vec<_>, Vec<_>) = named(client, &args.nodes).await?.into_iter().partition(|node| {
        let spec = spec(node);
        spec.cordon || spec.drain
    });
    for node in &open {
        output::print(&format!("{} was not cordoned\n", words::short(&apply::key(node))))?;
    }
    for node in &closed {
        let key = apply::key(node);
        edit::spec(client, &key, "edit", |spec| {
            edit::set(spec, "cordon", Value::Bool(false))?;
            edit::set(spec, "drain", Value::Bool(false))
        })
        .await?;
        output::print(&format!("{} uncordoned\n", words::short(&key)))?;
    }
    if !closed.is_empty() {
        output::say("what runs elsewhere stays there; new instances may be placed here again");
    }
    Ok(())
}

pub async fn drain(client: &Client, args: DrainArgs) -> anyhow::Result<()> {
    let mut drained = Vec::new();
    for node in named(client, &args.nodes).await? {
        let key = apply::key(&node);
        drained.push(edit::spec(client, &key, "edit", |spec| edit::set(spec, "drain", Value::Bool(true))).await?);
        if args.no_wait {
            output::print(&format!("{} is being drained\n", words::short(&key)))?;
        }
    }
    if args.no_wait {
        return Ok(());
    }
    let names: Vec<String> = drained.iter().map(|node| apply::key(node).name().to_owned()).collect();
    let goal = standing::Goal::condition(kinds::node::DRAINED);
    let waiting = wait::Waiting { taken_back, ..wait::Waiting::new(goal, args.timeout) };
    let waited = wait::until(client, drained, &waiting).await;
    waited.map_err(|error| goes_on(error, &names.join(" ")))
}

/// Somebody uncordoned it meanwhile.
fn taken_back(node: &v1::Resource) -> Option<String> {
    let drains = spec(node).drain;
    let name = words::short(&apply::key(node));
    (!drains).then(|| {
        format!(
            "the drain of {name} was taken back ('driftless history {name}' says by whom); what went before stays away"
        )
    })
}

/// Only the waiting has come to its end.
fn goes_on(error: anyhow::Error, nodes: &str) -> anyhow::Error {
    match error.downcast::<Trouble>() {
        Ok(Trouble::TimedOut(words)) => Trouble::TimedOut(format!(
            "{words}; the drain goes on in the cluster ('driftless drain {nodes}' waits again, 'driftless uncordon {nodes}' \
             takes it back)"
        ))
        .into(),
        Ok(other) => other.into(),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_that_is_waited_for_no_longer_is_said_to_go_on() {
        let told = goes_on(Trouble::TimedOut("timed out: web-0 can't go".into()).into(), "n1").to_string();
        assert!(told.starts_with("timed out: web-0 can't go; the drain goes on"), "{told}");
        assert!(told.contains("'driftless uncordon n1'"), "{told}");
        let other = goes_on(Trouble::NotFound("node/n1 was deleted meanwhile".into()).into(), "n1");
        assert_eq!(other.to_string(), "node/n1 was deleted meanwhile");
        assert!(matches!(other.downcast_ref(), Some(Trouble::NotFound(_))), "the exit code depends on it");
    }
}
