//! Is anybody left whom it tells something? Works under `leader`, who alone may call a node gone.

use std::time::Duration;

use api::v1;
use model::{Decision, Key, Move, Next, Step, Time, Until, Why};

use super::KIND;
use crate::{Item, Reconciler, Scope, View, World, node};

/// How long one is kept though its node isn't there. An agent whose Node was deleted while it runs registers again within
/// seconds, and should find it then. A machine that comes back later still stops what it runs, as what nobody assigned to
/// it any more.
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
        let node = Key::new(node::KIND, "", &release.node);
        if view.world.get(&node).is_some() {
            let message = format!("node {} clears it once nothing of the instance is left there", release.node);
            return Next::Settled(Why::new("NodeClears", message)).into();
        }
        let kept_until = item.metadata().created_time.as_ref().map(Time::from).unwrap_or_default().plus(KEPT);
        let why = Why::new("NodeGone", format!("node {} was deleted: nobody is left to clear it", release.node));
        if view.now < kept_until {
            return Next::Wait(Until::Time(kept_until), why).into();
        }
        let moves = vec![Move::Remove { key: item.key.clone(), uid: item.uid().into() }];
        Next::Do(Step { verb: "clear", moves }, why).into()
    }
}
