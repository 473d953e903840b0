//! The loop's promises, one by one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::v1;
use model::Key;

use super::{double::Server, world::*};
use crate::{
    Agent, Clock, Config,
    agent::LOGS_MAX,
    driver::{Driver, How, Reached, sim},
};

fn phases(world: &World, name: &str) -> Vec<String> {
    world.server.reports(&key(name)).into_iter().map(|r| r.status.unwrap().phase).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_assigned_runs_and_is_reported() {
    let world = World::new();
    let template =
        v1::InstanceTemplate { ports: vec![v1::Port { name: "http".into(), port: 0 }], ..Default::default() };
    world.server.assign(instance("web-0", template));
    world.until_ready(&[key("web-0")]).await;
    let status = world.server.status(&key("web-0")).unwrap();
    assert_eq!((status.phase.as_str(), status.restarts, status.observed_generation), ("Running", 0, 1));
    assert!(status.pid > 0 && status.ports["http"] > 0 && status.started_time.is_some());
    let hello = &world.server.hellos()[0];
    assert!(!hello.status.as_ref().unwrap().machine_id.is_empty());
    assert_eq!(phases(&world, "web-0"), ["Running"], "one report says it all");
}

/// Two agents under one name: the one that is refused starts nothing of what it may see.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_refused_its_node_starts_nothing() {
    let world = World::new();
    world.server.set_taken(true);
    world.server.assign(instance("web-0", v1::InstanceTemplate::default()));
    world.after(60).await;
    assert!(world.sim.running().is_empty());
    world.server.set_taken(false);
    world.until_ready(&[key("web-0")]).await;
}

/// Whether the watch tells of it or only the next sweep does.
#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_registered_again_and_what_runs_is_left_alone() {
    let world = World::new();
    let keys = world.run(&["web-0"]).await;
    let before = world.server.status(&keys[0]);
    for vanish in [Server::vanish, Server::vanish_unsaid] {
        let hellos = world.server.hellos().len();
        vanish(&world.server, &Key::new("Node", "", "n1"));
        world.server.until(|server| server.hellos().len() > hellos).await;
        world.after(300).await;
        assert_eq!(world.server.hellos().len(), hellos + 1, "once is enough");
    }
    assert_eq!(world.server.status(&keys[0]), before);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_stops_reports_and_forgets() {
    let world = World::new();
    let keys = world.run(&["web-0", "web-1"]).await;
    world.server.delete(&keys[0]);
    world.server.until(|server| !server.exists(&keys[0])).await;
    let last = world.server.reports(&keys[0]).pop().unwrap();
    assert!(last.gone && !last.status.unwrap().ready);
    world.after(1).await;
    assert_eq!(world.sim.running(), [keys[1].clone()]);
    assert_eq!(world.sim.observe().await.unwrap().len(), 1, "nothing is kept of it");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_of_what_never_ran_is_gone_at_once() {
    let mut world = World::new();
    world.run(&["web-0"]).await;
    world.kill_agent().await;
    world.server.assign(instance("web-1", v1::InstanceTemplate::default()));
    world.server.delete(&key("web-1"));
    world.start_agent();
    world.server.until(|server| !server.exists(&key("web-1"))).await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_agents_successor_touches_nothing_that_runs() {
    let mut world = World::new();
    let keys = world.run(&["web-0", "web-1", "web-2"]).await;
    world.after(1).await;
    let before: Vec<_> = keys.iter().map(|key| world.server.status(key)).collect();
    world.kill_agent().await;
    let told = world.server.batches().len();
    world.start_agent();
    world.server.until(|server| server.batches().len() > told).await;
    world.after(120).await;
    let after: Vec<_> = keys.iter().map(|key| world.server.status(key)).collect();
    assert_eq!(before, after);
    assert!(
        world.server.batches()[told..].iter().all(|b| b.instances.iter().all(|i| i.status.as_ref().unwrap().ready))
    );
}

#[tokio::test(start_paused = true)]
async fn readiness_is_carried_over_an_agents_restart() {
    let mut world = World::new();
    world.server.assign(instance("web-0", readiness(tcp())));
    world.until_ready(&[key("web-0")]).await;
    // Long enough for the driver to have it noted.
    world.after(1).await;
    world.kill_agent().await;
    let told = world.server.batches().len();
    world.start_agent();
    world.after(10).await;
    let later = &world.server.batches()[told..];
    assert!(later.iter().flat_map(|b| &b.instances).all(|i| i.status.as_ref().unwrap().ready), "{later:?}");
}

/// Only its folder says that it is there: what is to be asked of it comes with the server's word.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_checked_once_the_server_says_what_it_is() {
    let mut world = World::new();
    let keys = [key("ready"), key("unready"), key("unchecked")];
    world.server.assign(instance("ready", readiness(tcp())));
    world.server.assign(instance("unready", readiness(tcp())));
    world.server.assign(instance("unchecked", v1::InstanceTemplate::default()));
    world.until_ready(&keys).await;
    world.sim.set_well(&keys[1], false);
    world.server.until(|server| !server.status(&keys[1]).unwrap().ready).await;
    world.after(1).await;
    world.kill_agent().await;
    keys.iter().for_each(|key| world.sim.damage(key));
    let told = world.server.batches().len();
    world.start_agent();
    world.after(10).await;
    let later = &world.server.batches()[told..];
    let said: BTreeSet<(String, bool)> = later
        .iter()
        .flat_map(|batch| &batch.instances)
        .map(|i| (i.key.clone().unwrap().name, i.status.clone().unwrap().ready))
        .collect();
    let expected = [("ready", true), ("unchecked", true), ("unready", false)];
    assert_eq!(said, expected.map(|(name, ready)| (name.to_owned(), ready)).into(), "as they were all the time");
    world.sim.set_well(&keys[0], false);
    world.sim.set_well(&keys[1], true);
    world.server.until(|s| !s.status(&keys[0]).unwrap().ready && s.status(&keys[1]).unwrap().ready).await;
    assert_eq!(world.sim.observe().await.unwrap().iter().map(|found| found.memory.run).max(), Some(1));
    assert!(world.sim.crash(&keys[2], How::Code(1)));
    world.server.until(|server| server.status(&keys[2]).unwrap().restarts == 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_exit_while_no_agent_looked_is_reported_and_restarted() {
    let mut world = World::new();
    let keys = world.run(&["web-0"]).await;
    world.kill_agent().await;
    assert!(world.sim.crash(&keys[0], How::Code(9)));
    world.start_agent();
    world.server.until(|server| server.status(&keys[0]).unwrap().restarts == 1).await;
    let status = world.server.status(&keys[0]).unwrap();
    assert!(status.ready);
    assert_eq!(status.last_exit.unwrap().code, Some(9));
}

/// Though no server can be reached: it ran here before.
#[tokio::test(start_paused = true)]
async fn what_was_just_being_started_again_is_by_the_next_agent() {
    let mut world = World::new();
    let keys = world.run(&["web-0"]).await;
    assert!(world.sim.crash(&keys[0], How::Code(9)));
    world.server.until(|server| server.status(&keys[0]).unwrap().restarts == 1).await;
    world.kill_agent().await;
    world.sim.break_off(&keys[0]);
    world.server.set_down(true);
    world.start_agent();
    world.after(60).await;
    assert_eq!(world.sim.running(), keys);
    let memory = &world.sim.observe().await.unwrap()[0].memory;
    assert_eq!((memory.run, memory.restarts), (2, 1), "it's the same run, and the same restart");
    assert_eq!((memory.failures, memory.last_exit.as_ref().unwrap().how.clone()), (1, How::Code(9)));
}

#[tokio::test(start_paused = true)]
async fn finished_means_finished_also_for_the_next_agent() {
    let mut world = World::new();
    let once = v1::InstanceTemplate { restart: "OnFailure".into(), ..Default::default() };
    world.server.assign(instance("job", once));
    world.until_ready(&[key("job")]).await;
    assert!(world.sim.crash(&key("job"), How::Code(0)));
    world.server.until(|server| server.status(&key("job")).unwrap().phase == "Finished").await;
    world.kill_agent().await;
    world.start_agent();
    world.after(600).await;
    assert!(world.sim.running().is_empty());
    assert_eq!(world.server.status(&key("job")).unwrap().phase, "Finished");
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_backs_off_and_writes_little() {
    let world = World::new();
    let keys = world.run(&["web-0"]).await;
    let mut waits = Vec::new();
    for restart in 1..=6 {
        let crashed = tokio::time::Instant::now();
        assert!(world.sim.crash(&keys[0], How::Code(1)));
        world.server.until(|server| server.status(&keys[0]).is_some_and(|s| s.ready && s.restarts == restart)).await;
        waits.push(crashed.elapsed().as_secs());
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16]);
    let reports = world.server.reports(&keys[0]).len();
    assert!(reports <= 1 + 2 * 6, "{reports} reports of six crashes");
    world.after(11).await;
    let crashed = tokio::time::Instant::now();
    assert!(world.sim.crash(&keys[0], How::Code(1)));
    world.server.until(|server| server.status(&keys[0]).is_some_and(|s| s.ready && s.restarts == 7)).await;
    assert_eq!(crashed.elapsed().as_secs(), 0, "it ran stably in between");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_node_says_nothing() {
    let world = World::new();
    world.run(&["web-0", "web-1"]).await;
    world.after(60).await;
    let told = world.server.batches().len();
    world.after(3600).await;
    assert_eq!(world.server.batches().len(), told);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_server_changes_nothing_on_the_node() {
    let world = World::new();
    let keys = world.run(&["web-0", "web-1"]).await;
    let before: Vec<_> = keys.iter().map(|key| world.server.status(key)).collect();
    world.server.set_down(true);
    world.server.end_sessions();
    world.after(60).await;
    assert_eq!(world.sim.running(), keys);
    world.server.set_down(false);
    world.server.until(|server| server.hellos().len() == 2).await;
    world.after(60).await;
    let after: Vec<_> = keys.iter().map(|key| world.server.status(key)).collect();
    assert_eq!(before, after);
    let sessions: Vec<String> = world.server.hellos().into_iter().map(|h| h.session).collect();
    assert_ne!(sessions[0], sessions[1], "a session that ended is never used again");
}

#[tokio::test(start_paused = true)]
async fn what_happened_in_an_outage_is_told_after_it() {
    let world = World::new();
    let keys = world.run(&["web-0"]).await;
    world.server.set_down(true);
    assert!(world.sim.crash(&keys[0], How::Signal(11)));
    world.after(30).await;
    assert_eq!(world.sim.running(), keys, "it's restarted without the server");
    world.server.set_down(false);
    world.server.until(|server| server.status(&keys[0]).unwrap().restarts == 1).await;
    assert_eq!(world.server.status(&keys[0]).unwrap().last_exit.unwrap().signal, Some(11));
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_the_check() {
    let world = World::new();
    world.server.assign(instance("web-0", readiness(tcp())));
    world.until_ready(&[key("web-0")]).await;
    world.sim.set_well(&key("web-0"), false);
    world.server.until(|server| !server.status(&key("web-0")).unwrap().ready).await;
    let status = world.server.status(&key("web-0")).unwrap();
    assert_eq!((status.phase.as_str(), status.restarts), ("Running", 0));
    world.sim.set_well(&key("web-0"), true);
    world.until_ready(&[key("web-0")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_instance_is_started_anew() {
    let world = World::new();
    let health = v1::Health { liveness: Some(tcp()), ..Default::default() };
    world.server.assign(instance("web-0", v1::InstanceTemplate { health: Some(health), ..Default::default() }));
    world.until_ready(&[key("web-0")]).await;
    world.sim.set_well(&key("web-0"), false);
    world.server.until(|server| server.status(&key("web-0")).unwrap().restarts == 1).await;
}

/// What it says of its limits, if anything.
fn limits_reached(world: &World, name: &str) -> Option<(String, String)> {
    let status = world.server.status(&key(name)).unwrap();
    let found = status.conditions.into_iter().find(|c| c.r#type == "LimitsReached" && c.status == "True");
    found.map(|c| (c.reason, c.message))
}

/// Told by its magnitude, so what goes on all the time isn't told all the time; and gone with the run.
#[tokio::test(start_paused = true)]
async fn what_comes_up_against_its_limits_says_so() {
    let mut world = World::new();
    let limits = v1::Amounts { pids: 50, memory: "64Mi".into(), ..Default::default() };
    let resources = v1::Resources { limits: Some(limits), ..Default::default() };
    world.server.assign(instance("web-0", v1::InstanceTemplate { resources: Some(resources), ..Default::default() }));
    world.until_ready(&[key("web-0")]).await;
    assert_eq!(limits_reached(&world, "web-0"), None);
    for (pids, memory, reason, message) in [
        (0, 1, "MemoryLimit", "it lost a process, killed for"),
        (1_234, 1, "PidsAndMemoryLimit", "it was refused 1000 or more processes"),
        (1_235, 0, "PidsLimit", "it was refused 1000 or more processes"),
    ] {
        world.sim.set_reached(&key("web-0"), Reached { pids, memory });
        world.after(6).await;
        let said = limits_reached(&world, "web-0").unwrap();
        assert!(said.0 == reason && said.1.contains(message), "{said:?}");
    }
    let reports = world.server.reports(&key("web-0")).len();
    for pids in 1_235..2_000 {
        world.sim.set_reached(&key("web-0"), Reached { pids, memory: 0 });
        world.after(1).await;
    }
    assert_eq!(world.server.reports(&key("web-0")).len(), reports);

    world.kill_agent().await;
    let batches = world.server.batches().len();
    world.start_agent();
    world.server.until(|server| server.batches().len() > batches).await;
    assert!(limits_reached(&world, "web-0").is_some(), "the next agent's first word says it too");
    world.sim.set_reached(&key("web-0"), Reached::default());
    assert!(world.sim.crash(&key("web-0"), How::Code(1)));
    world.server.until(|server| server.status(&key("web-0")).unwrap().restarts == 1).await;
    assert_eq!(limits_reached(&world, "web-0"), None, "it's another run");
}

#[tokio::test(start_paused = true)]
async fn many_changes_ride_in_few_batches() {
    let world = World::new();
    let names: Vec<String> = (0..300).map(|n| format!("web-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.run(&names).await;
    let batches = world.server.batches();
    assert!(batches.iter().all(|batch| batch.instances.len() <= 100));
    assert!(batches.len() <= 30, "{} batches", batches.len());
    let sequences: Vec<u64> = batches.iter().map(|b| b.sequence).collect();
    assert!(sequences.is_sorted());
}

/// Of what is stopped 20 s after the last word of a server.
pub fn at_most_once() -> v1::InstanceTemplate {
    let after = prost_types::Duration { seconds: 20, nanos: 0 };
    let on_disconnect = Some(v1::OnDisconnect { stop_after: Some(after) });
    v1::InstanceTemplate { on_disconnect, ..Default::default() }
}

/// A leader that noted its silence has not seen the session that this node has now, and counts from before.
#[tokio::test(start_paused = true)]
async fn a_renewal_counts_only_while_the_record_does_not_call_the_node_silent() {
    let world = World::new();
    world.server.assign(instance("once", at_most_once()));
    world.until_ready(&[key("once")]).await;
    let record = |silent_since| {
        let status = v1::NodeStatus { silent_since, ..Default::default() };
        let status = Some(kinds::any(kinds::node::STATUS, &status));
        v1::Resource { status, ..resource(&Key::new("Node", "", "n1"), &v1::NodeSpec::default()) }
    };
    world.server.assign(record(Some(prost_types::Timestamp::default())));
    world.after(21).await;
    assert!(world.sim.crash(&key("once"), How::CutOff));
    world.after(600).await;
    assert!(world.sim.running().is_empty());
    world.server.assign(record(None));
    world.server.until(|server| server.status(&key("once")).is_some_and(|s| s.ready && s.restarts == 1)).await;
}

#[tokio::test(start_paused = true)]
async fn what_must_run_at_most_once_is_not_started_while_cut_off() {
    let world = World::new();
    world.server.assign(instance("once", at_most_once()));
    world.until_ready(&[key("once")]).await;
    world.server.set_down(true);
    world.after(10).await;
    assert!(world.sim.crash(&key("once"), How::Code(1)));
    world.after(1).await;
    assert_eq!(world.sim.running(), [key("once")], "there was a word within its time");
    world.after(60).await;
    assert!(world.sim.crash(&key("once"), How::CutOff));
    world.after(600).await;
    assert!(world.sim.running().is_empty());
    world.server.set_down(false);
    world.server.until(|server| server.status(&key("once")).is_some_and(|s| s.ready && s.restarts == 2)).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_stopped_for_good_is_not_started_by_an_agent_that_knows_nothing_yet() {
    let mut world = World::new();
    let keys = world.run(&["web-0", "web-1"]).await;
    world.server.delete(&keys[0]);
    world.server.until(|server| !server.exists(&keys[0])).await;
    // Before it could hear that its report was taken, let alone forget.
    world.kill_agent().await;
    world.server.set_down(true);
    world.start_agent();
    world.after(600).await;
    assert_eq!(world.sim.running(), keys[1..]);
    world.server.set_down(false);
    world.after(1).await;
    assert_eq!(world.sim.observe().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn readiness_changes_after_as_many_answers_as_the_check_says() {
    let world = World::new();
    let second = prost_types::Duration { seconds: 1, nanos: 0 };
    let check = v1::Check { interval: Some(second), success_threshold: 2, failure_threshold: 3, ..tcp() };
    world.server.assign(instance("web-0", readiness(check)));
    world.until_ready(&[key("web-0")]).await;
    for (well, answers) in [(false, 3), (true, 2), (false, 3)] {
        let changed = tokio::time::Instant::now();
        world.sim.set_well(&key("web-0"), well);
        world.server.until(|server| server.status(&key("web-0")).unwrap().ready == well).await;
        let took = changed.elapsed().as_secs_f64();
        // The first of them comes at any moment within an interval, and intervals differ by a tenth.
        let (least, most) = (0.9 * f64::from(answers - 1), 1.1 * f64::from(answers) + 0.1);
        assert!((least..most).contains(&took), "{took} s for {answers} answers in a row");
    }
    assert_eq!(world.server.status(&key("web-0")).unwrap().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_alive_for_as_long_as_the_check_allows_is_left_alone() {
    let world = World::new();
    let second = prost_types::Duration { seconds: 1, nanos: 0 };
    let check = v1::Check { interval: Some(second), failure_threshold: 5, ..tcp() };
    let health = v1::Health { liveness: Some(check), ..Default::default() };
    world.server.assign(instance("web-0", v1::InstanceTemplate { health: Some(health), ..Default::default() }));
    world.until_ready(&[key("web-0")]).await;
    for _ in 0..5 {
        // At most four answers, then one that begins the count anew.
        world.sim.set_well(&key("web-0"), false);
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        world.sim.set_well(&key("web-0"), true);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    assert_eq!(world.server.status(&key("web-0")).unwrap().restarts, 0);
    world.sim.set_well(&key("web-0"), false);
    world.server.until(|server| server.status(&key("web-0")).unwrap().restarts == 1).await;
}

#[tokio::test(start_paused = true)]
async fn only_so_many_logs_are_read_at_once() {
    let (server, driver) = (Server::new(), sim::Sim::new(sim::Config::default(), Clock::start()));
    let agent = Agent::new(Config::new("n1"), Arc::new(driver), server.clone());
    let logs = agent.logs();
    server.assign(instance("web-0", v1::InstanceTemplate::default()));
    let _running = tokio::spawn(agent.run(std::future::pending()));
    server.until(|server| server.status(&key("web-0")).is_some_and(|status| status.ready)).await;
    let open =
        || logs.open(v1::LogStart { namespace: "default".into(), instance: "web-0".into(), ..Default::default() });
    let mut read = Vec::new();
    for _ in 0..LOGS_MAX {
        read.push(open().await.expect("there is room"));
    }
    let refused = open().await.err().expect("there is none").to_string();
    assert!(refused.contains("256 logs of this node are read already"), "{refused}");
    read.pop();
    assert!(open().await.is_ok(), "one has ended");
}
