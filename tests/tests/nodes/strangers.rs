//! A number that was ours and is another's now: the other is left alone, and ours is told of truly.

use std::{fs, path::Path};

use driftless_tests::{
    Cluster,
    cluster::Instance,
    processes::{Process, look_until},
    root,
    stranger::{self, Stranger},
    tree,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::watched::{LONG, status};

/// Ends with code 7 once `go` is there, and leaves a process of another session behind until it's asked to end.
fn waiting(name: &str, restart: &str, go: &Path) -> String {
    let script = format!("setsid sleep 86400 & while [ ! -e {} ]; do sleep 0.01; done; exit 7", go.display());
    format!(
        "kind: Service
metadata: {{ name: {name} }}
spec:
  replicas: 1
  template: {{ command: [sh, -c, {script:?}], restart: {restart}, env: {{ TEST_TREE: {go:?} }}, stop_grace: 1s }}
"
    )
}

/// An instance that runs, its keeper, and its process.
#[track_caller]
fn running(cluster: &Cluster, service: &str) -> (Instance, Process, Process) {
    status(cluster, "it runs", service, |s| s["phase"] == "Running");
    let instance = cluster.instances(service).remove(0);
    let keeper = tree::supervisor(&cluster.node_dir("n1"), &instance, 1).expect("it has a supervisor");
    let process = cluster.process_of(&instance);
    (instance, keeper, process)
}

#[test]
fn a_stranger_with_the_number_of_what_ended_without_an_agent_lives_and_the_exit_is_the_real_one() {
    if !root::may("choose a process's number") {
        return;
    }
    stranger::adopt_orphans();
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let go = cluster.dir().join("go");
    cluster.apply(&(waiting("once", "Never", &go) + "---\n" + &waiting("ever", "Always", &go))).ok();
    let (_, once_keeper, once) = running(&cluster, "once");
    let (ever, ever_keeper, ever_process) = running(&cluster, "ever");

    cluster.kill_part("n1");
    fs::write(&go, "").expect("the directory can be written");
    let all = [once, once_keeper, ever_process, ever_keeper];
    all.iter().for_each(|process| process.wait_gone(LONG));
    fs::remove_file(&go).expect("it was just written");
    let strangers = all.map(|process| Stranger::take(process.pid));
    cluster.start_agent("n1");

    let ended = status(&cluster, "the end is told", "once", |s| s["phase"] == "Failed");
    assert_eq!((&ended["lastExit"]["code"], &ended["restarts"]), (&7.into(), &Value::Null), "{ended}");
    let again = status(&cluster, "the other runs again", "ever", |s| s["phase"] == "Running" && s["restarts"] == 1);
    assert_eq!(again["lastExit"]["code"], 7, "{again}");
    assert_eq!(cluster.instances("ever")[0].uid, ever.uid);
    assert!(strangers.iter().all(Stranger::is_alive));
    for service in ["once", "ever"] {
        cluster.run(&["delete", "service", service, "--timeout", "60s"]).ok();
    }
    assert!(strangers.iter().all(Stranger::is_alive));
}

#[test]
fn strangers_with_the_numbers_of_a_run_whose_keeper_was_killed_too_live_and_the_rest_of_its_tree_goes() {
    if !root::may("choose a process's number") {
        return;
    }
    stranger::adopt_orphans();
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let go = cluster.dir().join("go");
    cluster.apply(&waiting("ever", "Always", &go)).ok();
    let (instance, keeper, process) = running(&cluster, "ever");
    let variable = format!("TEST_TREE={}", go.display());
    let left = look_until("the one of another session runs", LONG, || {
        let all = tree::members(&variable);
        // The one that sleeps for long, not for the moment between two looks.
        all.into_iter().map(|m| m.process).find(|p| p.is_running(b"sleep\086400\0"))
    });

    cluster.kill_part("n1");
    keeper.signal(Signal::KILL);
    process.signal(Signal::KILL);
    let strangers = [process, keeper].map(|process| Stranger::take(process.pid));
    assert!(left.is_alive());
    cluster.start_agent("n1");

    let again = status(&cluster, "it runs again", "ever", |s| s["phase"] == "Running" && s["restarts"] == 1);
    assert_eq!(again["lastExit"]["reason"], "SupervisorLost", "{again}");
    assert!(strangers.iter().all(Stranger::is_alive));
    assert!(!left.is_alive(), "nothing of the first run is left when the second one runs");
    let runs = tree::members(&variable).into_iter().map(|m| m.run);
    assert!(runs.into_iter().all(|run| run == format!("{}.2", instance.uid)));
    cluster.run(&["delete", "service", "ever", "--timeout", "60s"]).ok();
    assert_eq!(tree::members(&variable).len(), 0);
    assert!(strangers.iter().all(Stranger::is_alive));
}
