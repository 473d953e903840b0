//! The roles as processes of their own do what `dev` does, on every store.

use std::time::Duration;

use driftless_tests::{Cluster, http};
use rustix::process::Signal;
use store_etcd::testing::Etcd;

use crate::manifests;

/// Declare, serve, break, see it come back, scale, delete; then every role ends politely.
fn main_job(mut cluster: Cluster) {
    cluster.apply_with(manifests::web("web", 3).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let before = cluster.instances("web");
    assert_eq!(before.len(), 3);
    assert!(before.iter().all(|i| http::get(i.port).is_ok_and(|code| code == 200)));

    let events = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    cluster.process_of(&before[0]).signal(Signal::KILL);
    events.until_json("it is started again", Duration::from_secs(60), |e| {
        let restarted = e["resource"]["status"]["restarts"] == 1;
        (restarted && e["resource"]["status"]["ready"] == true).then_some(())
    });
    cluster.wait_ready("web", "60s");
    cluster.run(&["scale", "service", "web", "--replicas", "5"]).ok();
    cluster.wait_ready("web", "60s");
    let logs = cluster.run(&["logs", &before[1].name]).ok().stdout;
    assert!(logs.contains("GET / HTTP"), "{logs}");
    cluster.run(&["delete", "service", "web", "--timeout", "60s"]).ok();
    let named = cluster.run(&["history", "service", "web"]).ok().stdout;
    assert!(named.contains("create") && named.contains("bind"), "the history outlives what it tells of:\n{named}");
    assert!(cluster.processes().iter().all(|p| p.is_alive()), "{}", cluster.log());
    assert_eq!(cluster.stop(), [0, 0, 0]);
}

#[test]
fn the_main_job_on_the_embedded_store() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    main_job(Cluster::of_parts(&format!("embedded:{}", dir.path().display())));
}

#[test]
fn the_main_job_in_memory() {
    main_job(Cluster::of_parts("memory"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_main_job_on_etcd() {
    let etcd = Etcd::start().await;
    let store = format!("{}/black-box", etcd.url());
    tokio::task::spawn_blocking(move || main_job(Cluster::of_parts(&store))).await.expect("the job doesn't panic");
}
