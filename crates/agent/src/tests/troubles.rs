//! What the node can't do, and defects of the agent's own.

use std::{sync::Arc, time::Duration};

use api::v1;

use super::{
    double::{Asked, Server},
    world::*,
};
use crate::{
    Agent, Clock, Config,
    assigned::Assigned,
    driver::{Driver, How, Launch, sim},
};

#[tokio::test(start_paused = true)]
async fn a_node_that_can_keep_nothing_says_so_starts_nothing_and_recovers() {
    let world = World::new();
    let keys = world.run(&["web-0", "web-1"]).await;
    world.after(1).await;
    world.sim.set_full(true);
    world.after(60).await;
    let cannot = [("DriverWorks".to_owned(), "CannotWrite".to_owned())];
    assert_eq!(node_says(&world), cannot, "before anything has to be kept");
    world.server.assign(instance("web-2", v1::InstanceTemplate::default()));
    world.after(60).await;
    let late = world.server.status(&key("web-2")).unwrap();
    let said: Vec<_> = late.conditions.iter().map(|c| (c.reason.as_str(), c.message.as_str())).collect();
    assert_eq!(said[0], ("NodeTrouble", "simulated to be full"));
    let told = world.server.batches().len();
    world.after(600).await;
    assert_eq!(world.server.batches().len(), told, "it tries again and again, and has nothing new to say");
    assert_eq!(world.sim.running(), keys);
    world.sim.set_full(false);
    world.after(30).await;
    assert_eq!(world.sim.running().len(), 3);
    assert_eq!(node_says(&world), []);
}

/// Each has its own words for it, and is tried again and again.
#[tokio::test(start_paused = true)]
async fn the_troubles_of_many_instances_are_one_of_the_nodes() {
    let world = World::new();
    let keys = ["web-1", "web-2", "web-3"].map(key);
    for key in &keys {
        world.sim.set_portless(key, true);
        world.server.assign(instance(key.name(), v1::InstanceTemplate::default()));
        world.after(1).await;
    }
    world.after(60).await;
    let said = || world.server.node().unwrap().conditions.into_iter().map(|c| c.message).collect::<Vec<_>>();
    assert_eq!(said(), ["simulated to have no port for web-1"]);
    let told = world.server.batches().len();
    world.after(600).await;
    assert_eq!(world.server.batches().len(), told, "there is nothing new to say");
    world.sim.set_portless(&keys[0], false);
    world.after(30).await;
    assert_eq!(said(), ["simulated to have no port for web-2"]);
    world.server.delete(&keys[1]);
    world.sim.set_portless(&keys[2], false);
    world.after(30).await;
    assert_eq!(node_says(&world), []);
}

#[tokio::test(start_paused = true)]
async fn what_works_on_a_full_disk_does_not_hide_that_it_is_full() {
    let world = World::new();
    let keys = world.run(&["web-0", "web-1"]).await;
    world.after(1).await;
    world.sim.set_full(true);
    world.server.assign(instance("web-2", v1::InstanceTemplate::default()));
    world.after(60).await;
    world.server.delete(&keys[0]);
    world.server.until(|server| !server.exists(&keys[0])).await;
    world.after(1).await;
    assert_eq!(world.sim.running(), keys[1..], "what was asked to go goes");
    assert_eq!(node_says(&world), [("DriverWorks".into(), "CannotWrite".into())]);
}

#[tokio::test(start_paused = true)]
async fn an_action_that_panics_is_tried_again_and_takes_nobody_with_it() {
    let world = World::new();
    world.sim.set_defective(&key("bad"), true);
    world.server.assign(instance("bad", v1::InstanceTemplate::default()));
    world.run(&["good"]).await;
    let said = |server: &Server| server.status(&key("bad")).is_some_and(|s| format!("{s:?}").contains("panicked"));
    world.server.until(said).await;
    world.sim.set_defective(&key("bad"), false);
    world.until_ready(&[key("bad"), key("good")]).await;
}

/// It would look alive, and never hear of anything, or never say anything, again.
#[tokio::test(start_paused = true)]
async fn an_agent_of_which_a_part_panicked_ends() {
    for asked in [Asked::Watch, Asked::Report] {
        let (server, driver) = (Server::new(), sim::Sim::new(sim::Config::default(), Clock::start()));
        server.set_panics(asked);
        server.assign(instance("web-0", v1::InstanceTemplate::default()));
        let running = Agent::new(Config::new("n1"), Arc::new(driver), server).run(std::future::pending());
        let ended = tokio::time::timeout(Duration::from_secs(600), running).await.expect("it ends");
        assert!(ended.is_err_and(|trouble| trouble.0.contains("panicked")), "{asked:?}");
    }
}

/// It must not take that run for the one that it couldn't start.
#[tokio::test(start_paused = true)]
async fn what_somebody_keeps_when_it_is_to_be_started_is_the_run_that_is_known() {
    let world = World::new();
    let keys = world.run(&["web-0"]).await;
    let run = async || world.sim.observe().await.unwrap().remove(0).memory.run;
    assert!(world.sim.crash(&keys[0], How::Code(1)));
    world.server.until(|server| server.status(&keys[0]).is_some_and(|s| s.ready && s.restarts == 1)).await;
    assert!(world.sim.crash(&keys[0], How::Code(1)));
    world.server.until(|server| server.status(&keys[0]).is_some_and(|s| s.phase == "BackOff")).await;
    let found = world.sim.observe().await.unwrap().remove(0);
    let Assigned { id, resource, template, .. } = Assigned::read(found.resource).unwrap();
    let launch = Launch { id, resource, template, memory: found.memory, contact_until: None };
    world.sim.start(launch).await.unwrap();
    world.until_ready(&keys).await;
    assert_eq!(run().await, 2);
    assert_eq!(world.server.status(&keys[0]).unwrap().restarts, 1);
    assert!(world.sim.crash(&keys[0], How::Code(1)));
    world.server.until(|server| server.status(&keys[0]).is_some_and(|s| s.ready && s.restarts == 2)).await;
    assert_eq!(run().await, 3, "the next one");
}
