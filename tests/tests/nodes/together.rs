//! The server and controllers die at the same moment, on a store whose sessions end with its process.

use std::collections::BTreeSet;

use driftless_tests::{Cluster, processes::look_until};

use crate::watched::{LONG, sleeper};

/// Its sweeps come so rarely that what waits for one waits for ever.
fn start_controller(cluster: &mut Cluster, name: &str) {
    cluster.start_controller_with(name, &["--sweep", "1h"]);
}

/// Every shard is somebody's, and each of these has some.
fn wait_until_shared(cluster: &Cluster, names: &[&str]) {
    look_until("the shards are shared", LONG, || {
        let shards = cluster.run(&["get", "shards", "-o", "json"]).ok().json();
        let items = shards["items"].as_array().cloned().unwrap_or_default();
        let owners: BTreeSet<&str> = items.iter().map(|shard| shard["owner"].as_str().unwrap_or_default()).collect();
        (owners == names.iter().copied().collect()).then_some(())
    });
}

/// Whoever is left had said that it's ready to the server before, and must say so to the next one, which knows nothing of
/// it, or what the dead one owned stays nobody's until the next sweep gives it something new to say.
#[test]
fn what_a_controller_owned_that_died_with_its_server_is_taken_over() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.kill_part("c1");
    let names = ["a", "b"];
    names.iter().for_each(|name| start_controller(&mut cluster, name));
    // Several, so that each of the two owns some.
    let services: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
    for service in &services {
        cluster.apply_with(sleeper(service, 1, 0).as_bytes(), &["--wait"]).ok();
    }
    // One of the two is the leader, without whom nothing is placed.
    for (round, victims) in [&["a"][..], &["b"], &["a", "b"]].into_iter().enumerate() {
        wait_until_shared(&cluster, &names);
        cluster.kill_part("server");
        victims.iter().for_each(|name| cluster.kill_part(name));
        cluster.start_server();
        if victims.len() == names.len() {
            start_controller(&mut cluster, "a");
        }
        let replicas = (2 + round).to_string();
        for service in &services {
            cluster.run(&["scale", "service", service, "--replicas", &replicas]).ok();
        }
        services.iter().for_each(|service| drop(cluster.wait_ready(service, "60s")));
        victims.iter().filter(|_| victims.len() < names.len()).for_each(|name| start_controller(&mut cluster, name));
    }
}
