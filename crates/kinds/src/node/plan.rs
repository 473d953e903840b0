//! Is the node's agent there? Works under `leader`, since silence needs one judge.

use std::time::Duration;

use api::v1;
use model::{Decision, Key, Next, Time, Until, Why, condition};

use super::{KIND, Node, READY, STATUS};
use crate::{Item, Reconciler, Scope, View, any};

/// Silence before a node counts as Unknown.
pub const UNKNOWN_AFTER: Duration = Duration::from_secs(10);
/// Silence before it is noted at all: twice a redial's longest pause, so that an agent that restarts leaves no trace.
const NOTED_AFTER: Duration = Duration::from_secs(2);

pub struct Nodes;

impl Reconciler for Nodes {
    fn name(&self) -> &'static str {
        "node"
    }

    fn kind(&self) -> &'static str {
        KIND
    }

    fn scope(&self) -> Scope {
        Scope::Leader
    }

    fn wakes(&self, item: &Item) -> Vec<Key> {
        match item.key.kind() {
            KIND => vec![item.key.clone()],
            _ => Vec::new(),
        }
    }

    fn plan(&self, view: &View<'_>, item: &Item) -> Decision {
        let Some(node) = item.body::<Node>() else {
            return Next::Blocked(Why::new("NotANode", "the record can't be read as a Node")).into();
        };
        if view.world.agents().contains(item.key.name()) {
            let ready = condition(READY, Some(true), "AgentConnected", "its agent has a live session");
            return decision(None, ready, Next::Settled(Why::new("AgentConnected", "its agent has a live session")));
        }
        silent(view, node)
    }
}

/// No session: note it, then call it Unknown, each after a silence that this view itself witnessed.
fn silent(view: &View<'_>, node: &Node) -> Decision {
    let why = Why::new("AgentSilent", "its agent has no session");
    let Some(since) = node.silent_since else {
        let noted_at = view.live_since.plus(NOTED_AFTER);
        if view.now < noted_at {
            return Next::Wait(Until::Time(noted_at), why).into();
        }
        let ready = condition(READY, Some(node.ready), "AgentSilent", "its agent has no session");
        let ready = if node.ready { ready } else { unknown() };
        return decision(Some(view.now), ready, Next::Wait(Until::Time(view.now.plus(UNKNOWN_AFTER)), why));
    };
    let unknown_at = since.max(view.live_since).plus(UNKNOWN_AFTER);
    if view.now < unknown_at && node.ready {
        let ready = condition(READY, Some(true), "AgentSilent", "its agent has no session");
        return decision(Some(since), ready, Next::Wait(Until::Time(unknown_at), why));
    }
    decision(Some(since), unknown(), Next::Blocked(why))
}

fn unknown() -> v1::Condition {
    let message = "its agent has had no session for a while; what runs there is not known, and keeps running";
    condition(READY, None, "AgentSilent", message)
}

fn decision(silent_since: Option<Time>, ready: v1::Condition, next: Next) -> Decision {
    let status =
        v1::NodeStatus { silent_since: silent_since.map(Into::into), conditions: vec![ready], ..Default::default() };
    Decision { next, status: Some(any(STATUS, &status)) }
}
