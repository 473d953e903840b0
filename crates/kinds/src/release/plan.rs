//! Is anybody left whom it tells something? Works under `leader`, who alone may call a node gone.

use std::time::Duration;

use api::v1;
use model::{Decision, Key, Move, Next, Step, Time, Until, Why, condition};
use prost_types::Any;

use super::{KIND, NODE_GONE, STATUS};
use crate::{Item, Reconciler, Scope, View, World, any, node, typed};

/// How long one is kept from when its node was found to be gone, or to be another machine. An agent whose Node was deleted
/// while it runs registers again within seconds, and should find it then. A machine that comes back later still stops what
/// it runs, as what nobody assigned to it any more.
pub const KEPT: Duration = Duration::from_secs(60);

pub struct Releases;

impl Reconciler for Releases {
    fn name(&self) -> &'static str {
        "release"
    }

    fn kind(&self) -> &'static str {
        KIND
    }

    fn scope(&self) -> Scope {
        Scope::Leader
    }

    fn wakes(&self, world: &World, item: &Item) -> Vec<Key> {
        if item.key.kind() == KIND {
            return vec![item.key.clone()];
        }
        if item.key.kind() != node::KIND {
            return Vec::new();
        }
        let of = |one: &&std::sync::Arc<Item>| one.body::<v1::ReleaseSpec>().is_some_and(|r| r.node == item.key.name());
        world.of_kind(KIND).filter(of).map(|one| one.key.clone()).collect()
    }

    fn plan(&self, view: &View<'_>, item: &Item) -> Decision {
        let Some(release) = item.body::<v1::ReleaseSpec>() else {
            return Next::Blocked(Why::new("NotARelease", "the record can't be read as a Release")).into();
        };
        let said: v1::ReleaseStatus = typed("status", item.status()).unwrap_or_default();
        let gone = said.conditions.iter().find(|c| c.r#type == NODE_GONE && c.status == "True");
        let node = &release.node;
        let (reason, words) = match Addressee::of(view, release) {
            Addressee::There => {
                let message = format!("node {node} clears it once nothing of the instance is left there");
                let status = gone.map(|_| status(item, false, "NodeIsBack", format!("node {node} is there again")));
                return Decision { next: Next::Settled(Why::new("NodeClears", message)), status };
            }
            Addressee::Deleted => ("NodeGone", format!("node {node} was deleted: nobody is left to clear it")),
            Addressee::Replaced => {
                ("OtherMachine", format!("node {node} is another machine now: nobody is left to clear it"))
            }
        };
        let (why, status) = (Why::new(reason, words.clone()), Some(status(item, true, reason, words)));
        let since = gone.and_then(|c| c.last_transition_time.as_ref()).map_or(view.now, Time::from);
        let kept_until = since.plus(KEPT);
        if view.now < kept_until {
            return Decision { next: Next::Wait(Until::Time(kept_until), why), status };
        }
        let moves = vec![Move::Remove { key: item.key.clone(), uid: item.uid().into() }];
        Next::Do(Step { verb: "clear", moves }, why).into()
    }
}

/// Whom it tells something.
enum Addressee {
    There,
    Deleted,
    /// Its Node is another machine now, which knows nothing of the instance.
    Replaced,
}

impl Addressee {
    fn of(view: &View<'_>, release: &v1::ReleaseSpec) -> Self {
        let Some(item) = view.world.get(&Key::new(node::KIND, "", &release.node)) else { return Self::Deleted };
        // What can't be read is no proof of another machine.
        let replaced = item.body::<node::Node>().is_some_and(|node| !is_for(release, node));
        if replaced { Self::Replaced } else { Self::There }
    }
}

/// A machine that didn't say which one it is may be any.
pub fn is_for(release: &v1::ReleaseSpec, node: &node::Node) -> bool {
    release.machine_id.is_empty() || node.machine_id.is_empty() || release.machine_id == node.machine_id
}

/// Since when the node is gone is said by the condition, whose time the server stamps.
fn status(item: &Item, gone: bool, reason: &str, words: String) -> Any {
    let gone = condition(NODE_GONE, Some(gone), reason, words);
    let observed_generation = item.metadata().generation;
    any(STATUS, &v1::ReleaseStatus { observed_generation, conditions: vec![gone] })
}
