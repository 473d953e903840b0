//! What a node says of itself: what its machine has, or what its agent was told to offer.

use std::collections::BTreeSet;

use driftless_tests::Cluster;

use crate::watched::{LONG, sleeper};

#[test]
fn a_node_offers_what_its_machine_has_or_what_it_is_told_to() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let node = cluster.run(&["get", "node", "n1", "-o", "json"]).ok().json();
    let amount = |name: &str| node["status"]["capacity"][name].as_str().and_then(|n| n.parse::<i64>().ok());
    assert!(amount("cpuMillis").is_some_and(|n| n >= 1000), "{node}");
    assert!(amount("memoryBytes").is_some_and(|n| n > 64 << 20), "{node}");

    cluster.kill_part("n1");
    let offer = ["--label", "disk=ssd", "--label", "zone=b", "--cpu", "1500m", "--memory", "1Gi", "--instances", "2"];
    cluster.start_agent_with("n1", &offer);
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("it offers what it was told to", LONG, |e| {
        let (labels, capacity) = (&e["resource"]["metadata"]["labels"], &e["resource"]["status"]["capacity"]);
        let offered = capacity["cpuMillis"] == "1500" && capacity["memoryBytes"] == "1073741824";
        (offered && capacity["instances"] == 2 && labels["disk"] == "ssd" && labels["zone"] == "b").then_some(())
    });
    cluster.apply(&sleeper("web", 3, 0)).ok();
    let events = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    let (mut placed, mut refused) = (BTreeSet::new(), BTreeSet::new());
    events.until_json("two are placed, and one is told why it isn't", LONG, |e| {
        let instance = &e["resource"];
        let name = instance["metadata"]["name"].to_string();
        if instance["status"]["ready"] == true {
            // Where its agent wasn't seen to be back yet, that was told of it before.
            refused.remove(&name);
            placed.insert(name);
        } else if instance["status"]["conditions"].to_string().contains("Unplaceable") {
            refused.insert(name);
        }
        (placed.len() == 2 && refused.len() == 1).then_some(())
    });

    for bad in [["--cpu", "none"], ["--memory", "-1"], ["--label", "ssd"], ["--instances", "0"]] {
        cluster.run(&[&["agent", "--node", "n2"][..], &bad].concat()).exits(2);
    }
    cluster.run(&["agent", "--node", "n2", "--driver", "sim", "--cpu", "1"]).exits(2);
}
