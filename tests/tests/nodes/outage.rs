//! What runs outlives the control plane, and agents that die at any moment.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant, SystemTime},
};

use driftless_tests::{Cluster, Lines, processes::Process};

use crate::watched::{LONG, sleeper};

/// Every moment of an agent's start falls into it on a machine that isn't busy.
const MOMENT_MAX_MS: u64 = 1_500;

/// Lets time pass while a stream that says nothing more stands open; the clock is what the test is about.
fn pass(lines: &Lines, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        lines.next(end.saturating_duration_since(Instant::now()));
    }
}

#[test]
fn ten_seconds_without_a_control_plane_restart_and_replace_nothing() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2"]);
    cluster.apply_with(sleeper("web", 6, 4).as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let processes: Vec<Process> = before.iter().map(|i| cluster.process_of(i)).collect();
    cluster.kill_part("c1");
    cluster.kill_part("server");
    // Longer than sessions live, longer than `lost_after`.
    let down = Instant::now() + Duration::from_secs(10);
    driftless_tests::processes::look_until("10 s pass", LONG, || {
        assert!(processes.iter().all(|p| p.is_alive()));
        (Instant::now() > down).then_some(())
    });
    cluster.start_control_plane();
    // Both acts of the new one's prove that it looked at everything: it makes one more, and takes it back.
    for replicas in ["7", "6"] {
        cluster.run(&["scale", "service", "web", "--replicas", replicas]).ok();
        cluster.wait_ready("web", "40s");
    }
    let after = cluster.instances("web");
    assert!(before.iter().all(|i| after.contains(i)), "{before:#?}\n{after:#?}");
    assert!(processes.iter().all(|p| p.is_alive()));
}

#[test]
fn a_finished_instance_is_not_run_again_by_a_later_agent() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let ran = tempfile::NamedTempFile::new().expect("a temporary file");
    let script = format!("[sh, -c, 'echo ran >> {}']", ran.path().display());
    let once =
        sleeper("once", 1, 0).replace("[sleep, '86400']", &script).replace("stop_grace", "restart: Never, stop_grace");
    cluster.apply(&once).ok();
    let events = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    events.until_json("it is finished", LONG, |e| (e["resource"]["status"]["phase"] == "Finished").then_some(()));
    let before = cluster.instances("once");
    cluster.kill_part("n1");
    cluster.start_agent("n1");
    // Another one on the same node proves that the new agent acts.
    cluster.apply_with(sleeper("other", 1, 0).as_bytes(), &["--wait"]).ok();
    assert_eq!(cluster.instances("once"), before);
    assert_eq!(fs::read_to_string(ran.path()).expect("it is there"), "ran\n");
}

/// The sleeps that run below that cluster.
fn sleeps(cluster: &Cluster) -> BTreeSet<i32> {
    let all = driftless_tests::processes::below(cluster.dir());
    let is_sleep = |p: &Process| fs::read_to_string(format!("/proc/{}/comm", p.pid)).is_ok_and(|c| c.trim() == "sleep");
    all.into_iter().filter(is_sleep).map(|p| p.pid).collect()
}

/// A small generator, so that a run can be repeated from what it prints.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn an_agent_killed_at_any_moment_loses_doubles_and_orphans_nothing() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let mut seed = now.as_secs();
    println!("seed {seed}");
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let health = "health: { readiness: { exec: { command: ['true'] }, interval: 0.05s } }, stop_grace";
    let checked = sleeper("web", 1, 0).replace("stop_grace", health);
    cluster.apply(&checked).ok();
    let events = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    for round in 0..6 {
        // Up or down: starts, checks and stops are under way when it dies.
        let replicas = 1 + next(&mut seed) % 6;
        cluster.run(&["scale", "service", "web", "--replicas", &replicas.to_string()]).ok();
        pass(&events, Duration::from_millis(next(&mut seed) % MOMENT_MAX_MS));
        cluster.kill_part("n1");
        cluster.start_agent("n1");
        cluster.wait_ready("web", "40s");
        let wanted = usize::try_from(replicas).expect("small");
        driftless_tests::processes::look_until("exactly what was declared runs", LONG, || {
            let instances = cluster.instances("web");
            let pids: BTreeSet<i32> = instances.iter().map(|i| i.pid).collect();
            (instances.len() == wanted && pids.len() == wanted && sleeps(&cluster) == pids).then_some(())
        });
        println!("round {round}: {replicas} declared, {replicas} run");
    }
    cluster.run(&["delete", "service", "web", "--timeout", "20s"]).ok();
    assert!(sleeps(&cluster).is_empty());
}
