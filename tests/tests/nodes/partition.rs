//! A node that nobody reaches any more, though it runs on: the cable is pulled, and put back.

use std::{collections::BTreeSet, time::Instant};

use driftless_tests::{
    Cluster,
    cluster::{Instance, condition},
    network::Hub,
    processes::look_until,
};
use serde_json::Value;

use crate::watched::{LONG, Watched, at_most_once, sleeper, sleeps};

/// The same service, of another template.
fn changed(manifest: &str) -> String {
    manifest.replace("spec:\n", "spec:\n  version: v2\n").replace("86400", "86401")
}

#[track_caller]
fn wait_node(cluster: &Cluster, node: &str, ready: &str) {
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("the node is judged", LONG, |e| {
        let is = condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == ready);
        (e["resource"]["metadata"]["name"] == node && is).then_some(())
    });
}

/// So many are declared, recorded and running, of that version, and nothing else is.
#[track_caller]
fn exactly(cluster: &Cluster, replicas: usize, version: &str) -> Vec<Instance> {
    look_until("exactly what was declared runs", LONG, || {
        let instances = cluster.instances("web");
        let pids: BTreeSet<i32> = instances.iter().map(|i| i.pid).collect();
        let right = instances.iter().all(|i| i.ready && i.version == version);
        (right && instances.len() == replicas && pids.len() == replicas && sleeps(cluster) == pids).then_some(instances)
    })
}

#[test]
fn a_node_that_was_cut_off_while_the_template_changed_ends_on_the_new_one() {
    let Some(mut hub) = Hub::enter() else { return };
    let (cluster, far) = Cluster::of_nodes_and_far(&["n2", "n3"], "n1", &mut hub);
    let manifest = sleeper("web", 3, 2);
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let old = before.iter().find(|i| i.node == "n1").expect("they are spread over all nodes");
    let old = cluster.process_of(old);

    let mut watched = Watched::start(&cluster, 3);
    far.cut();
    watched.until("it is replaced elsewhere", |r| r.on("n1") == 0 && r.ready() == 3);
    assert!(old.is_alive(), "what runs on a lost node keeps running");
    assert!(watched.fewest_ready >= 2, "once only {} were ready", watched.fewest_ready);

    cluster.apply_with(changed(&manifest).as_bytes(), &["--wait"]).ok();
    watched.until("only new ones are left", |r| r.0.values().all(|i| i.version == "v2") && r.ready() == 3);
    let meanwhile = cluster.instances("web");
    assert!(meanwhile.iter().all(|i| i.node != "n1"), "{meanwhile:?}");
    assert!(old.is_alive(), "nobody can tell it yet");

    let releases = cluster.stream(&["get", "releases", "-w", "-o", "json"]);
    releases.until_json("the release is watched", LONG, |e| (e["event"] == "put").then_some(()));
    let mut watched = Watched::start(&cluster, 3);
    far.heal();
    releases.until_json("the release is cleared", LONG, |e| (e["event"] == "deleted").then_some(()));
    assert!(!old.is_alive(), "the duplicate is stopped before its release is cleared");
    wait_node(&cluster, "n1", "True");
    assert_eq!(uids(&exactly(&cluster, 3, "v2")), uids(&meanwhile), "its return costs nobody else anything");

    // It's a node like the others again.
    cluster.run(&["scale", "service", "web", "--replicas", "6"]).ok();
    watched.until("it takes part", |r| r.on("n1") > 0 && r.ready() == 6);
    exactly(&cluster, 6, "v2");
    assert_eq!(watched.fewest_ready, 3);
}

fn uids(instances: &[Instance]) -> BTreeSet<&str> {
    instances.iter().map(|i| i.uid.as_str()).collect()
}

#[test]
fn an_old_instance_on_a_node_that_is_not_lost_yet_goes_as_soon_as_the_node_hears_of_it() {
    let Some(mut hub) = Hub::enter() else { return };
    let (cluster, far) = Cluster::of_nodes_and_far(&["n2", "n3"], "n1", &mut hub);
    let manifest = sleeper("web", 3, 2).replace("lost_after: 3s", "lost_after: 3600s");
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    far.cut();
    wait_node(&cluster, "n1", "Unknown");
    cluster.apply_with(changed(&manifest).as_bytes(), &["--wait"]).ok();
    let meanwhile = cluster.instances("web");
    let on_far: Vec<&Instance> = meanwhile.iter().filter(|i| i.node == "n1").collect();
    assert!(on_far.len() == 1 && on_far[0].deleting, "asked to go, and kept until it says so: {meanwhile:?}");
    let old = cluster.process_of(on_far[0]);
    assert!(old.is_alive());
    far.heal();
    let after = exactly(&cluster, 3, "v2");
    assert!(!old.is_alive() && after.iter().all(|i| i.node != "n1"));
}

/// Waits until one that was cut off runs again, and says that it was.
#[track_caller]
fn back_after_a_cut(cluster: &Cluster) {
    let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    let exit = |status: &Value| status["lastExit"]["reason"].as_str().map(str::to_owned);
    let reason = instances.until_json("it runs again", LONG, |e| {
        let status = &e["resource"]["status"];
        (status["ready"] == true && status["restarts"] == 1).then(|| exit(status)).flatten()
    });
    assert_eq!(reason, "CutOff");
}

#[test]
fn what_must_run_at_most_once_ends_on_a_node_that_is_cut_off() {
    let Some(mut hub) = Hub::enter() else { return };
    let (cluster, far) = Cluster::of_nodes_and_far(&[], "n1", &mut hub);
    cluster.apply_with(at_most_once().as_bytes(), &["--wait"]).ok();
    let first = cluster.process_of(&cluster.instances("once")[0]);
    let before = Instant::now();
    far.cut();
    let after = Instant::now();
    first.wait_gone(LONG);
    // Counted from the last renewal of the node's session, and there was one within its TTL of 5 s. Before it could be
    // replaced: after stop_after, the grace, and 5 s.
    let (most, least) = (before.elapsed().as_secs_f64(), after.elapsed().as_secs_f64());
    assert!(most > 5.0 && least < 16.0, "it ended {least} s after the cut");
    // The agent is there, and knows better than to start it again.
    wait_node(&cluster, "n1", "Unknown");
    assert!(sleeps(&cluster).is_empty());
    far.heal();
    back_after_a_cut(&cluster);
    assert_eq!(sleeps(&cluster).len(), 1);
}

#[test]
fn what_must_run_at_most_once_ends_though_its_agent_is_gone() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.apply_with(at_most_once().as_bytes(), &["--wait"]).ok();
    cluster.apply_with(sleeper("web", 1, 0).as_bytes(), &["--wait"]).ok();
    let first = cluster.process_of(&cluster.instances("once")[0]);
    let other = cluster.process_of(&cluster.instances("web")[0]);
    cluster.kill_part("n1");
    first.wait_gone(LONG);
    assert!(other.is_alive(), "only what asked for it is stopped");
    cluster.start_agent("n1");
    back_after_a_cut(&cluster);
    assert!(other.is_alive());
}

/// Its loss is declared to be sooner than its end; and it ends only when it's killed.
#[test]
fn what_must_run_at_most_once_is_replaced_only_once_it_has_ended() {
    let Some(mut hub) = Hub::enter() else { return };
    let (cluster, far) = Cluster::of_nodes_and_far(&["n2", "n3"], "n1", &mut hub);
    let stubborn = "[sh, -c, 'trap \"\" TERM; exec sleep 86400']";
    let bound = "on_disconnect: { stop_after: 10s }, stop_grace: 4s";
    let manifest = sleeper("web", 3, 2).replace("[sleep, '86400']", stubborn).replace("stop_grace: 1s", bound)
        + "  rollout: { max_surge: 0, max_unavailable: 1 }\n";
    let applied = cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let warned = "spec.lost_after 3s is too short: what a node ran is replaced after 19s of silence";
    assert!(applied.stderr.contains(warned), "{}", applied.stderr);
    let before = cluster.instances("web");
    let old = before.iter().find(|i| i.node == "n1").expect("they are spread over all nodes");
    let old = cluster.process_of(old);
    let mut watched = Watched::start(&cluster, 3);
    far.cut();
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    let said = services.until_json("the service isn't called ready", LONG, |e| {
        let ready = condition(&e["resource"], "Ready").filter(|c| c["reason"] == "NodesSilent")?;
        Some((ready.clone(), e["resource"]["status"]["readyReplicas"].clone()))
    });
    assert_eq!((&said.0["status"], &said.1), (&"Unknown".into(), &2.into()), "{said:?}");
    let message = said.0["message"].as_str().unwrap_or_default();
    assert!(message.contains("1 on n1, which is not heard, replaced after 19s of silence"), "{message}");
    watched.until("it is replaced elsewhere", |r| r.on("n1") == 0 && r.ready() == 3);
    assert!(!old.is_alive(), "two of them ran at once");
    far.heal();
    wait_node(&cluster, "n1", "True");
    cluster.wait_ready("web", "60s");
}

#[test]
fn what_could_not_be_kept_is_refused() {
    let cluster = Cluster::of_nodes(&[]);
    let short = at_most_once().replace("stop_after: 10s", "stop_after: 9s");
    let refused = cluster.apply(&short);
    let words = "spec.template.on_disconnect.stop_after: must be at least 10s";
    assert!(refused.code != 0 && refused.stderr.contains(words), "{refused:?}");
}
