//! SIGKILL at any moment: nothing is lost, doubled or left behind.

use std::{collections::BTreeSet, thread, time::Duration};

use driftless_tests::{
    Cluster,
    processes::{self, Process, look_until},
};

/// How long after the one before each kill comes: within every phase of a start or stop, by and by.
const PAUSES: [u64; 8] = [3, 8, 15, 25, 40, 60, 100, 5];

const WITHIN: Duration = Duration::from_secs(30);

/// Everything that runs for instances, without their supervisors: as `/proc` knows it, not as anybody reports it.
fn workers(cluster: &Cluster) -> BTreeSet<i32> {
    let below = processes::below(&cluster.data_dir().join("node/instances"));
    below.into_iter().map(|process| process.pid).filter(|pid| is_worker(*pid)).collect()
}

/// Not what has ended since it was found, either: it may have been a supervisor.
fn is_worker(pid: i32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| !name.starts_with("driftless-super"))
}

fn reported(cluster: &Cluster, service: &str) -> BTreeSet<i32> {
    cluster.instances(service).into_iter().filter(|i| i.ready).map(|i| i.pid).collect()
}

/// Kills and restarts the cluster again and again.
fn torture(cluster: &mut Cluster) {
    for pause in PAUSES {
        // Not a wait for something: the moment is the test.
        thread::sleep(Duration::from_millis(pause));
        cluster.kill();
        cluster.start_again();
    }
}

fn manifest(replicas: u32, script: &str, more: &str) -> String {
    format!(
        "kind: Service\nmetadata: {{ name: worker }}\nspec:\n  replicas: {replicas}\n  template:\n    \
         command: [sh, -c, {script:?}]\n    stop_grace: 0.3s\n{more}"
    )
}

#[test]
fn killed_while_it_starts_instances() {
    let mut cluster = Cluster::start();
    cluster.apply(&manifest(30, "exec sleep 600", "")).ok();
    torture(&mut cluster);
    cluster.wait_ready("worker", "60s");
    let pids = reported(&cluster, "worker");
    assert_eq!(pids.len(), 30);
    assert_eq!(workers(&cluster), pids, "what runs is what is reported, once each");
}

#[test]
fn killed_while_it_stops_instances() {
    let mut cluster = Cluster::start();
    cluster.apply(&manifest(12, "trap '' TERM; (setsid sleep 600 &); exec sleep 600", "")).ok();
    cluster.wait_ready("worker", "60s");
    look_until("both processes of each run", WITHIN, || (workers(&cluster).len() == 24).then_some(()));
    cluster.run(&["delete", "service", "worker", "--timeout", "0s"]);
    torture(&mut cluster);
    cluster.run(&["wait", "service", "worker", "--for", "deleted", "--timeout", "60s"]).ok();
    assert_eq!(workers(&cluster), BTreeSet::new());
    let folders = || std::fs::read_dir(cluster.data_dir().join("node/instances")).expect("it's there").count();
    look_until("every folder is removed", WITHIN, || (folders() == 0).then_some(()));
}

#[test]
fn killed_while_instances_write_and_are_checked() {
    let mut cluster = Cluster::start();
    // Half of the time one is under way, by no more processes than a busy machine can start.
    let check =
        "    health: { readiness: { exec: { command: [sh, -c, 'sleep 0.1'] }, interval: 0.1s, timeout: 5s } }\n";
    cluster.apply(&manifest(3, "while :; do head -c 1000000 /dev/zero; sleep 0.1; done", check)).ok();
    cluster.wait_ready("worker", "60s");
    let before: Vec<_> = cluster.instances("worker").into_iter().map(|i| (i.name, i.uid, i.pid)).collect();
    torture(&mut cluster);
    cluster.wait_ready("worker", "60s");
    let after: Vec<_> = cluster.instances("worker").into_iter().map(|i| (i.name, i.uid, i.pid)).collect();
    assert_eq!(before, after, "nothing was restarted");
    assert!(before.iter().all(|(_, _, pid)| Process::find(*pid).is_some()));
    // The three programs, and what they and their checks are running just now: nothing piles up.
    look_until("no check is left over", WITHIN, || (workers(&cluster).len() <= 3 * 6).then_some(()));
}
