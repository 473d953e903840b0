//! Whose word lets that go on which must not run twice, and for what.

use std::sync::Arc;

use api::v1;

use super::{loops::at_most_once, world::*};
use crate::{Agent, Config, driver::How};

/// Longer than any sweep, and than the time that the one of them has without a server.
const LONG: u64 = 60;

async fn two(world: &World) {
    world.server.assign(instance("once", at_most_once()));
    world.server.assign(instance("web", v1::InstanceTemplate::default()));
    world.until_ready(&[key("once"), key("web")]).await;
    world.after(LONG).await;
}

async fn renewed(world: &World) -> bool {
    let before = world.sim.renewals(&key("once"));
    world.after(LONG).await;
    world.sim.renewals(&key("once")) > before
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_name_it_prolongs_nothing() {
    for incarnation in ["store-a", "store-b"] {
        let world = World::new();
        two(&world).await;
        assert!(renewed(&world).await);
        let records = world.server.lose_everything(incarnation);
        world.after(LONG).await;
        assert_eq!(node_says(&world).len(), 1);
        assert!(!renewed(&world).await, "there is a session with {incarnation}, which names nothing");
        let said = world.server.node().unwrap().conditions.remove(0).message;
        assert!(said.contains("but for 1 with on_disconnect.stop_after"), "{said}");
        assert!(world.sim.crash(&key("once"), How::CutOff));
        world.after(600).await;
        assert_eq!(world.sim.running(), [key("web")], "it stays ended, and nothing else ends");

        records.into_iter().for_each(|record| world.server.assign(record));
        world.server.until(|server| server.status(&key("once")).is_some_and(|s| s.restarts == 1)).await;
        assert!(renewed(&world).await, "it's named again");
    }
}

/// A snapshot that never ends says nothing of what is in it, yet says whose it is.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_not_whole_cuts_nothing_short_unless_it_is_another_stores() {
    for (incarnation, goes_on) in [("store-a", true), ("store-b", false)] {
        let world = World::new();
        two(&world).await;
        world.server.lose_everything(incarnation);
        world.server.set_cut_short(true);
        world.after(LONG).await;
        assert_eq!(renewed(&world).await, goes_on, "{incarnation}");
    }
}

/// It tells its watchers nothing new.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_is_heard_at_once() {
    let world = World::new();
    two(&world).await;
    world.server.set_down(true);
    world.after(5).await;
    let before = world.sim.renewals(&key("once"));
    world.server.set_down(false);
    world.after(4).await;
    assert!(world.sim.renewals(&key("once")) > before, "neither a sweep nor a change comes so soon");
}

#[tokio::test(start_paused = true)]
async fn a_machine_with_work_of_one_node_is_refused_to_another() {
    let mut world = World::new();
    let other = |world: &World| {
        let agent = Agent::new(Config::new("n2"), Arc::clone(&world.sim) as _, Arc::clone(&world.server) as _);
        agent.run(std::future::ready(()))
    };
    let keys = world.run(&["web-0", "web-1"]).await;
    world.kill_agent().await;
    let refused = other(&world).await.unwrap_err().0;
    for said in ["2 instances of node n1", "start it with --node n1", "driftless drain n1", "docs/DEPLOY.md"] {
        assert!(refused.contains(said), "{refused}");
    }
    assert_eq!(world.sim.running(), keys);

    world.start_agent();
    keys.iter().for_each(|key| world.server.delete(key));
    world.server.until(|server| keys.iter().all(|key| !server.exists(key))).await;
    world.after(1).await;
    world.kill_agent().await;
    other(&world).await.expect("nothing is left there");
}
