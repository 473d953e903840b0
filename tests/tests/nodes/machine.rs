//! A machine that restarts below its instances: what was finished stays so, what should run is started again.

use std::{
    fs,
    path::{Path, PathBuf},
};

use driftless_tests::{
    Cluster,
    cluster::Instance,
    processes::{self, look_until},
    root,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::watched::{LONG, sleeper, status};

/// Notes each start in a file, then does what `then` says.
fn noting(name: &str, restart: &str, note: &Path, then: &str) -> String {
    let script = format!("[sh, -c, 'echo ran >> {}; {then}']", note.display());
    sleeper(name, 1, 0)
        .replace("[sleep, '86400']", &script)
        .replace("stop_grace", &format!("restart: {restart}, stop_grace"))
}

fn starts(note: &Path) -> usize {
    fs::read_to_string(note).unwrap_or_default().lines().count()
}

/// What runs notes that a moment after its start is told. Exactly so many, though.
#[track_caller]
fn until_noted(notes: &[PathBuf; 6], expected: [usize; 6]) {
    let now = || notes.each_ref().map(|note| starts(note));
    look_until("each has noted its starts", LONG, || {
        now().iter().zip(expected).all(|(noted, expected)| *noted >= expected).then_some(())
    });
    assert_eq!(now(), expected);
}

#[track_caller]
fn phase(cluster: &Cluster, service: &str, phase: &str, restarts: i64) -> Value {
    let restarted = |s: &Value| s["restarts"].as_i64().unwrap_or(0) == restarts;
    status(cluster, &format!("{service} is {phase}"), service, |s| s["phase"] == phase && restarted(s))
}

fn ids(instances: &[Instance]) -> Vec<(String, String)> {
    instances.iter().map(|i| (i.name.clone(), i.uid.clone())).collect()
}

#[test]
fn what_is_finished_is_not_run_again_and_what_ran_is_after_a_restart_of_the_machine() {
    if !root::may("show a process another boot id") {
        return;
    }
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let services = [
        ("finished", "Never", "exit 0"),
        ("succeeded", "OnFailure", "exit 0"),
        ("failed", "Never", "exit 3"),
        ("at-most-once", "Never", "exec sleep 86400"),
        ("till-it-succeeds", "OnFailure", "exec sleep 86400"),
        ("service", "Always", "exec sleep 86400"),
    ];
    let note = |name: &str| cluster.dir().join(format!("{name}.ran"));
    let manifests: Vec<String> =
        services.map(|(name, restart, then)| noting(name, restart, &note(name), then)).into_iter().collect();
    cluster.apply(&manifests.join("---\n")).ok();
    for (name, .., then) in services {
        let expected = match then {
            "exit 0" => "Finished",
            "exit 3" => "Failed",
            _ => "Running",
        };
        phase(&cluster, name, expected, 0);
    }
    let notes = services.map(|(name, ..)| note(name));
    until_noted(&notes, [1; 6]);
    let before = services.map(|(name, ..)| ids(&cluster.instances(name)));

    // As the machine goes down: the agent and all that runs end at once, and nobody writes a word.
    cluster.kill_part("n1");
    for process in processes::below(&cluster.node_dir("n1")) {
        let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
        if name.starts_with("driftless-super") {
            process.signal(Signal::KILL);
            process.wait_gone(LONG);
        }
    }
    processes::kill_below(&cluster.node_dir("n1"));
    let boot_id = cluster.dir().join("boot_id");
    fs::write(&boot_id, "5c1fd7a6-0000-4000-8000-0123456789ab\n").expect("the directory can be written");
    cluster.start_agent_of_boot("n1", &boot_id);

    let service = phase(&cluster, "service", "Running", 1);
    assert_eq!(service["lastExit"]["reason"], "MachineRestarted", "{service}");
    phase(&cluster, "till-it-succeeds", "Running", 1);
    let lost = phase(&cluster, "at-most-once", "Failed", 0);
    assert_eq!(lost["lastExit"]["reason"], "MachineRestarted", "{lost}");
    phase(&cluster, "finished", "Finished", 0);
    phase(&cluster, "succeeded", "Finished", 0);
    let failed = phase(&cluster, "failed", "Failed", 0);
    assert_eq!(failed["lastExit"]["code"], 3, "the exit of before is what is known of it: {failed}");
    // What is started after all that proves that the new agent has acted on everything it found.
    cluster.apply_with(sleeper("other", 1, 0).as_bytes(), &["--wait"]).ok();
    until_noted(&notes, [1, 1, 1, 1, 2, 2]);
    assert_eq!(services.map(|(name, ..)| ids(&cluster.instances(name))), before);

    // The same boot, another agent: everything is as it was.
    let before = services.map(|(name, ..)| cluster.instances(name));
    cluster.kill_part("n1");
    cluster.start_agent_of_boot("n1", &boot_id);
    cluster.apply_with(sleeper("another", 1, 0).as_bytes(), &["--wait"]).ok();
    assert_eq!(services.map(|(name, ..)| cluster.instances(name)), before);
    until_noted(&notes, [1, 1, 1, 1, 2, 2]);
}
