//! Nodes that are not heard any more, and come back.

use driftless_tests::{Cluster, cluster::condition, processes::look_until};
use serde_json::Value;

use crate::watched::{LONG, Watched, sleeper};

#[test]
fn a_lost_nodes_instances_are_replaced_and_stopped_when_it_returns() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.apply_with(sleeper("web", 3, 2).as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let lost = before.iter().find(|i| i.node == "n1").expect("they are spread over all nodes").clone();
    let process = cluster.process_of(&lost);
    let mut watched = Watched::start(&cluster, 3);

    cluster.kill_part("n1");
    watched.until("it is replaced elsewhere", |r| r.on("n1") == 0 && r.ready() == 3);
    assert!(process.is_alive(), "what runs on a lost node keeps running");
    let releases = cluster.run(&["get", "releases", "-o", "json"]).ok().json();
    assert_eq!(releases["items"].as_array().map(Vec::len), Some(1), "{releases}");

    let gone = cluster.stream(&["get", "releases", "-w", "-o", "json"]);
    gone.until_json("the release is watched", LONG, |e| (e["event"] == "put").then_some(()));
    cluster.start_agent("n1");
    gone.until_json("the release is cleared", LONG, |e| (e["event"] == "deleted").then_some(()));
    assert!(!process.is_alive(), "the duplicate is stopped before its release is cleared");
    cluster.wait_ready("web", "60s");
    let after = cluster.instances("web");
    assert_eq!(after.len(), 3);
    let kept = before.iter().filter(|i| i.node != "n1");
    assert!(kept.into_iter().all(|i| after.contains(i)), "nothing else was touched: {before:?}, {after:?}");
}

#[test]
fn a_lost_node_is_not_called_drained_while_what_was_given_up_may_run_there() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.apply_with(sleeper("web", 3, 2).as_bytes(), &["--wait"]).ok();
    let lost = cluster.instances("web").into_iter().find(|i| i.node == "n1").expect("they are spread over all nodes");
    let process = cluster.process_of(&lost);
    cluster.kill_part("n1");
    cluster.run(&["drain", "n1", "--no-wait"]).ok();
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    let drained =
        |e: &Value| condition(&e["resource"], "Drained").cloned().filter(|_| e["resource"]["metadata"]["name"] == "n1");
    nodes.until_json("it says what may still run there", LONG, |e| {
        drained(e).filter(|c| c["reason"] == "GivenUp").map(drop)
    });
    assert!(process.is_alive(), "nobody could tell its node yet");
    cluster.run(&["drain", "n1", "--timeout", "1s"]).exits(5).says("1 instance given up while its agent was silent");

    cluster.start_agent("n1");
    cluster.run(&["drain", "n1", "--timeout", "60s"]).ok();
    assert!(!process.is_alive(), "it is stopped before that is said");
}

#[test]
fn a_service_that_is_deleted_while_a_node_is_lost_goes() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.apply_with(sleeper("web", 3, 2).as_bytes(), &["--wait"]).ok();
    let lost = cluster.instances("web").into_iter().find(|i| i.node == "n1").expect("they are spread over all nodes");
    let process = cluster.process_of(&lost);
    cluster.kill_part("n1");
    cluster.run(&["delete", "service", "web", "--timeout", "60s"]).ok();
    assert!(cluster.instances("web").is_empty());
    assert!(process.is_alive(), "nobody could tell its node yet");

    cluster.start_agent("n1");
    process.wait_gone(LONG);
    look_until("the node has cleared it", LONG, || {
        let releases = cluster.run(&["get", "releases", "-o", "json"]).ok().json();
        releases["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
}

/// What is bound to it may run where nobody hears of it: it would run twice.
#[test]
fn another_machine_gets_a_silent_nodes_name_once_its_work_was_given_up() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.apply_with(sleeper("web", 3, 2).as_bytes(), &["--wait"]).ok();
    let lost = cluster.instances("web").into_iter().find(|i| i.node == "n1").expect("they are spread over all nodes");
    let process = cluster.process_of(&lost);
    let mut watched = Watched::start(&cluster, 3);
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    // Or what replaces it might be the first that the other machine is given.
    cluster.run(&["cordon", "n1"]).ok();
    cluster.kill_part("n1");
    let other = cluster.node_dir("other").to_str().expect("a temporary path is text").to_owned();
    cluster.start_part("other", &["agent", "--node", "n1", "--data-dir", &other]);

    let of_n1 = |e: &Value| e["resource"]["metadata"]["name"] == "n1";
    let ready = |e: &Value| condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == "True");
    nodes.until_json("it is Unknown though another asks for its name", LONG, |e| (of_n1(e) && !ready(e)).then_some(()));
    watched.until("it is replaced elsewhere", |r| r.on("n1") == 0 && r.ready() == 3);
    nodes.until_json("the other is let in", LONG, |e| (of_n1(e) && ready(e)).then_some(()));
    let releases = cluster.stream(&["get", "releases", "-w", "-o", "json"]);
    releases.until_json("what was given up is said to be of another machine", LONG, |e| {
        condition(&e["resource"], "NodeGone").is_some_and(|c| c["reason"] == "OtherMachine").then_some(())
    });
    assert!(process.is_alive(), "the other never touched it");

    // The machine itself is told what became of its work: the other one left that word alone.
    cluster.kill_part("other");
    cluster.start_agent("n1");
    releases.until_json("the machine clears it", LONG, |e| (e["event"] == "deleted").then_some(()));
    assert!(!process.is_alive(), "it's stopped before its release is cleared");
}

/// Its instances were bound to the Node that was deleted; what ran of them is stopped, and all is as declared again.
#[test]
fn a_node_that_is_deleted_while_its_agent_runs_comes_back_by_itself() {
    let cluster = Cluster::of_nodes(&["n1"]);
    cluster.apply_with(sleeper("web", 2, 0).as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let processes: Vec<_> = before.iter().map(|instance| cluster.process_of(instance)).collect();
    let uid = |node: &serde_json::Value| node["metadata"]["uid"].clone();
    let old = uid(&cluster.run(&["get", "node", "n1", "-o", "json"]).ok().json());
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);

    let refused = cluster.run(&["delete", "node", "n1"]);
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    for said in ["2 instances are bound to it", "driftless drain n1", "driftless delete node n1 --now"] {
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    cluster.run(&["delete", "node", "n1", "--now", "--no-wait"]).ok();
    nodes.until_json("another record of it is ready", LONG, |e| {
        let ready = condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == "True");
        (ready && uid(&e["resource"]) != old).then_some(())
    });
    look_until("what was bound to it is replaced", LONG, || {
        let now = cluster.instances("web");
        let new = now.len() == 2 && now.iter().all(|i| i.ready && before.iter().all(|b| b.uid != i.uid));
        let releases = cluster.run(&["get", "releases", "-o", "json"]).ok().json();
        (new && releases["items"].as_array().is_some_and(Vec::is_empty)).then_some(())
    });
    cluster.wait_ready("web", "60s");
    processes.iter().for_each(|process| process.wait_gone(LONG));
    let told = cluster.run(&["history", "node", "n1"]).ok().stdout;
    assert!(told.contains("registered again: its record was gone while its agent ran"), "{told}");
    assert!(!told.contains("DriverWorks"), "nothing was wrong with the node: {told}");
}

#[test]
fn nothing_is_replaced_when_most_nodes_vanish_at_once() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.apply_with(sleeper("web", 3, 2).as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let placements = cluster.stream(&["get", "placements", "-w", "-o", "json"]);
    cluster.kill_part("n1");
    cluster.kill_part("n2");
    placements.until_json("the alarm is raised", LONG, |e| {
        let held = condition(&e["resource"], "NodesReachable").is_some_and(|c| c["reason"] == "Brake");
        held.then_some(())
    });
    assert!(cluster.run(&["get", "placements"]).ok().stdout.contains("Brake"));
    assert!(cluster.run(&["describe", "placement", "default"]).ok().stdout.contains("more than half of the nodes"));

    // Both are called Unknown 10 s after they fell silent: long after they would have been replaced.
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    let mut unknown = std::collections::BTreeSet::new();
    nodes.until_json("both are Unknown", LONG, |e| {
        let name = e["resource"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == "Unknown") {
            unknown.insert(name);
        }
        (unknown.len() == 2).then_some(())
    });
    let uids = |all: &[driftless_tests::cluster::Instance]| all.iter().map(|i| i.uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&cluster.instances("web")), uids(&before));
    alarms(&cluster);
    let log = cluster.log();
    let warned = log.lines().filter(|line| line.contains("WARN") && line.contains("key=Placement/default"));
    assert_eq!(
        warned.filter(|line| line.contains("more than half of the nodes")).count(),
        1,
        "once, and loudly: {log}"
    );

    // Once one of them is back the other is given its time, though it has been silent for long.
    let mut watched = Watched::start(&cluster, 3);
    cluster.start_agent("n2");
    let lifted = placements.until_json("the alarm is over", LONG, |e| {
        let reachable = condition(&e["resource"], "NodesReachable").filter(|c| c["status"] == "True")?;
        Some(second_of_day(&reachable["lastTransitionTime"]))
    });
    watched.until("what was on n1 is replaced", |r| r.on("n1") == 0 && r.ready() == 3);
    let instances = cluster.run(&["get", "instances", "-o", "json"]).ok().json();
    let all = instances["items"].as_array().expect("a list");
    let new: Vec<&Value> = all.iter().filter(|i| before.iter().all(|b| b.uid != i["metadata"]["uid"])).collect();
    assert_eq!(new.len(), 1, "{instances}");
    let waited = (second_of_day(&new[0]["metadata"]["createdTime"]) - lifted).rem_euclid(24.0 * 3600.0);
    assert!((10.0..60.0).contains(&waited), "it was replaced {waited} s after the alarm was over");
}

/// Wherever an operator looks while the brake holds, with two of three nodes silent, he is told.
fn alarms(cluster: &Cluster) {
    const ALARM: &str = "more than half of the nodes are silent, so nothing that runs on them is replaced";
    for shown in ["nodes", "services", "instances", "configs,nodes"] {
        let shown = cluster.run(&["get", shown]).ok();
        assert!(shown.stderr.contains(&format!("warning: {ALARM}")), "{shown:?}");
    }
    let instances = cluster.run(&["get", "instances"]).ok();
    assert!(instances.stderr.contains("shown as last heard of: 2 on n1, n2, which are not heard"), "{instances:?}");
    look_until("each that is asked says so", LONG, || {
        let asked = [
            ["describe", "node", "n1"],
            ["describe", "service", "web"],
            ["describe", "placement", "default"],
            ["why", "node", "n2"],
            ["why", "service", "web"],
            ["why", "placement", "default"],
            ["history", "placement", "default"],
        ];
        asked.iter().all(|words| cluster.run(words).ok().stdout.contains(ALARM)).then_some(())
    });
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    services.until_json("the service isn't called ready", LONG, |e| {
        let braked =
            condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == "Unknown" && c["reason"] == "Brake");
        (braked && e["resource"]["status"]["readyReplicas"] == 1).then_some(())
    });
    cluster.run(&["wait", "service", "web", "--for", "ready", "--timeout", "1s"]).exits(5);
}

/// Of a time as the server stamps it.
fn second_of_day(time: &Value) -> f64 {
    let text = time.as_str().unwrap_or_default();
    let clock = text.split_once('T').map_or("", |(_, clock)| clock.trim_end_matches('Z'));
    let parts: Vec<f64> = clock.split(':').filter_map(|part| part.parse().ok()).collect();
    assert_eq!(parts.len(), 3, "no time: {time}");
    parts[0] * 3600.0 + parts[1] * 60.0 + parts[2]
}
