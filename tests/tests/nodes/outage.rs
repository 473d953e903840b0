//! What runs outlives the control plane, and agents that die at any moment.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant, SystemTime},
};

use driftless_tests::{
    Cluster, Lines,
    cluster::{Instance, condition},
    processes::{Process, look_until},
    tree,
};
use rustix::process::Signal;
use store_etcd::testing::Etcd;

use crate::watched::{LONG, sleeper, sleeps};

/// Every moment of an agent's start falls into it on a machine that isn't busy.
const MOMENT_MAX_MS: u64 = 1_500;

/// Lets time pass while a stream that says nothing more stands open; the clock is what the test is about.
fn pass(lines: &Lines, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        lines.next(end.saturating_duration_since(Instant::now()));
    }
}

/// What is written so much later is told apart.
const NOTED_EVERY: Duration = Duration::from_millis(1_001);

/// Longer than sessions live, than `lost_after`, than any backoff.
const DOWN: Duration = Duration::from_secs(60);

/// A cluster without a control plane, and what runs in it all the same.
struct Outage {
    cluster: Cluster,
    before: Vec<Instance>,
    processes: Vec<Process>,
    readiness: BTreeSet<String>,
    /// A process of it crashes meanwhile.
    crashing: Instance,
    /// The supervisor that keeps its next run.
    again: Process,
}

impl Outage {
    /// A process crashes, and a node's agent is killed and started anew: that agent alone starts it again.
    fn begin(mut cluster: Cluster) -> Self {
        let health = "health: { readiness: { exec: { command: ['true'] } } }, stop_grace";
        let checked = sleeper("web", 6, 4).replace("stop_grace", health);
        cluster.apply_with(checked.as_bytes(), &["--wait"]).ok();
        cluster.apply_with(sleeper("crashing", 1, 0).as_bytes(), &["--wait"]).ok();
        let before = cluster.instances("web");
        let crashing = cluster.instances("crashing").remove(0);
        let processes: Vec<Process> = before.iter().map(|i| cluster.process_of(i)).collect();
        let readiness = transitions(&cluster);
        cluster.kill_part("c1");
        cluster.kill_part("server");
        cluster.process_of(&crashing).signal(Signal::KILL);
        let again = look_until("the crashed one runs again", LONG, || {
            tree::supervisor(&cluster.node_dir(&crashing.node), &crashing, 2).filter(|keeper| keeper.is_alive())
        });
        cluster.kill_part("n1");
        cluster.start_agent("n1");
        Self { cluster, before, processes, readiness, crashing, again }
    }

    #[track_caller]
    fn changes_nothing(&self) {
        assert!(self.processes.iter().all(|p| p.is_alive()));
        assert!(self.again.is_alive());
    }

    fn end(mut self) {
        self.cluster.start_control_plane();
        let cluster = &self.cluster;
        // Both acts of the new one's prove that it looked at everything: it makes one more, and takes it back.
        for replicas in ["7", "6"] {
            cluster.run(&["scale", "service", "web", "--replicas", replicas]).ok();
            cluster.wait_ready("web", "60s");
        }
        // Its node says so once it's back; until then the record is the one from before.
        look_until("the crash is told", LONG, || {
            let crashed = cluster.instances("crashing").remove(0);
            assert_eq!(crashed.uid, self.crashing.uid);
            (crashed.restarts == 1 && crashed.ready).then_some(())
        });
        let after = cluster.instances("web");
        assert!(self.before.iter().all(|i| after.contains(i)), "{:#?}\n{after:#?}", self.before);
        let kept = transitions(cluster);
        assert!(self.readiness.iter().all(|t| kept.contains(t)), "{:?}, {kept:?}", self.readiness);
        self.changes_nothing();
    }
}

/// On the embedded store and, in the same minute, on etcd, which is down as well.
#[test]
fn a_minute_without_a_control_plane_restarts_and_replaces_nothing() {
    let runtime = tokio::runtime::Runtime::new().expect("there are threads");
    let mut etcd = runtime.block_on(Etcd::start());
    let on_etcd = Cluster::of_nodes_on(&etcd.url(), &["n1", "n2"]);
    let outages = [Cluster::of_nodes(&["n1", "n2"]), on_etcd].map(Outage::begin);
    etcd.members[0].kill();
    let down = Instant::now() + DOWN;
    look_until("a minute passes", 2 * DOWN, || {
        outages.iter().for_each(Outage::changes_nothing);
        (Instant::now() > down).then_some(())
    });
    runtime.block_on(etcd.restart(0));
    outages.into_iter().for_each(Outage::end);
}

/// When each of the instances of `web` last became ready, or ceased to be.
fn transitions(cluster: &Cluster) -> BTreeSet<String> {
    let list = cluster.run(&["get", "instances", "-o", "json"]).ok().json();
    let all = list["items"].as_array().cloned().unwrap_or_default();
    let ours = all.iter().filter(|i| i["metadata"]["owner"]["name"] == "web");
    let ready = ours.filter_map(|i| Some((i["metadata"]["uid"].to_string(), condition(i, "Ready")?.clone())));
    ready.map(|(uid, c)| format!("{uid} {} {}", c["status"], c["lastTransitionTime"])).collect()
}

#[test]
fn a_finished_instance_is_not_run_again_by_a_later_agent() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let ran = tempfile::NamedTempFile::new().expect("a temporary file");
    let script = format!("[sh, -c, 'echo ran >> {}']", ran.path().display());
    let once =
        sleeper("once", 1, 0).replace("[sleep, '86400']", &script).replace("stop_grace", "restart: Never, stop_grace");
    cluster.apply(&once).ok();
    let events = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    let says = |e: &serde_json::Value| {
        let ready = condition(&e["resource"], "Ready")?;
        (ready["status"] == "True" && ready["message"] == "1 of 1 ready (1 finished)").then_some(())
    };
    events.until_json("it is finished, and as declared", LONG, says);
    let before = cluster.instances("once");
    cluster.kill_part("n1");
    cluster.start_agent("n1");
    // Another one on the same node proves that the new agent acts.
    cluster.apply_with(sleeper("other", 1, 0).as_bytes(), &["--wait"]).ok();
    assert_eq!(cluster.instances("once"), before);
    // Nor elsewhere: a drain has nothing to ask of it, and it isn't lost with its node.
    cluster.run(&["drain", "n1", "--timeout", "60s"]).ok();
    assert_eq!(cluster.instances("once"), before);
    assert_eq!(fs::read_to_string(ran.path()).expect("it is there"), "ran\n");
    let described = cluster.run(&["describe", "node", "n1"]).ok().stdout;
    for told in
        ["Session:      live, through server ", "Last said:", "Reserved:     cpu 0m of ", "instances 0 of ", "once-"]
    {
        assert!(described.contains(told), "no {told:?} in {described}");
    }
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
        cluster.wait_ready("web", "60s");
        let wanted = usize::try_from(replicas).expect("small");
        look_until("exactly what was declared runs", LONG, || {
            let instances = cluster.instances("web");
            let pids: BTreeSet<i32> = instances.iter().map(|i| i.pid).collect();
            (instances.len() == wanted && pids.len() == wanted && sleeps(&cluster) == pids).then_some(())
        });
        println!("round {round}: {replicas} declared, {replicas} run");
    }
    cluster.run(&["delete", "service", "web", "--timeout", "60s"]).ok();
    assert!(sleeps(&cluster).is_empty());
}

#[test]
fn a_store_that_is_not_known_stops_nothing_until_somebody_confirms_it() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.apply_with(sleeper("web", 2, 0).as_bytes(), &["--wait"]).ok();
    let processes: Vec<Process> = cluster.instances("web").iter().map(|i| cluster.process_of(i)).collect();
    cluster.kill_part("c1");
    cluster.kill_part("server");
    fs::remove_dir_all(cluster.dir().join("store")).expect("it's lost");
    cluster.start_control_plane();

    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    let said = nodes.until_json("the node doubts the store", LONG, |event| {
        let doubt = condition(&event["resource"], "Confirmed").filter(|c| c["status"] == "False")?;
        doubt["message"].as_str().map(str::to_owned)
    });
    assert!(
        said.contains("doesn't know 2 instances that are here") && said.contains("driftless node confirm n1"),
        "{said}"
    );
    // It goes on working for that store meanwhile.
    cluster.apply_with(sleeper("other", 1, 0).as_bytes(), &["--wait"]).ok();
    assert!(processes.iter().all(|p| p.is_alive()));

    cluster.run(&["node", "confirm", "nobody"]).exits(3).says("node/nobody not found");
    let confirmed = cluster.run(&["node", "confirm", "n1"]).ok().stdout;
    assert!(confirmed.starts_with("node/n1 confirmed"), "{confirmed}");
    nodes.until_json("the node trusts the store", LONG, |event| {
        condition(&event["resource"], "Confirmed").is_none_or(|c| c["status"] == "True").then_some(())
    });
    processes.iter().for_each(|p| p.wait_gone(LONG));
    let other = cluster.instances("other").remove(0);
    assert!(cluster.process_of(&other).is_alive() && other.restarts == 0, "what the store names runs on");
}

#[test]
fn logs_of_the_run_before_and_since_a_time_come_through_the_server() {
    let cluster = Cluster::of_nodes(&["n1"]);
    let go = cluster.dir().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
    let command = format!("command: [sh, -c, 'echo begin $$$$; {wait}; echo later $$$$; exec sleep 86400']");
    let talks = sleeper("web", 1, 0).replace("command: [sleep, '86400']", &command);
    assert!(talks.contains(&command), "{talks}");
    cluster.apply_with(talks.as_bytes(), &["--wait"]).ok();
    let first = cluster.instances("web").remove(0);
    cluster.run(&["logs", &first.name, "--previous"]).exits(1).says("was never restarted");
    let follow = cluster.stream(&["logs", "-f", &first.name]);
    follow.until("it has written something", LONG, |line| line.starts_with("begin").then_some(()));
    pass(&follow, NOTED_EVERY);
    fs::write(&go, "").expect("the directory can be written");
    follow.until("it has written all", LONG, |line| line.starts_with("later").then_some(()));
    let recent = cluster.run(&["logs", &first.name, "--since", "0s"]).ok().stdout;
    assert!(!recent.contains("begin"), "that was more than a second ago: {recent}");
    let all = format!("begin {0}\nlater {0}\n", first.pid);
    assert_eq!(cluster.run(&["logs", &first.name, "--since", "1h"]).ok().stdout, all);

    cluster.process_of(&first).signal(Signal::KILL);
    follow.until("it writes again", LONG, |line| (line.starts_with("later")).then_some(()));
    assert_eq!(cluster.run(&["logs", &first.name, "--previous"]).ok().stdout, all);
    assert_eq!(
        cluster.run(&["logs", &first.name, "--previous", "--tail", "1"]).ok().stdout,
        format!("later {}\n", first.pid)
    );
    cluster.run(&["logs", &first.name, "--previous", "-f"]).exits(2);
}
