//! Many hollow nodes in one process: each is a node like any other.

use std::collections::BTreeSet;

use driftless_tests::{Cluster, cluster::condition};

use crate::watched::LONG;

/// Enough that they don't fit on one connection.
const NODES: usize = 300;

#[test]
fn hundreds_of_hollow_nodes_in_one_process_take_what_is_placed_on_them_and_vanish_with_it() {
    let mut cluster = Cluster::of_nodes(&[]);
    let count = NODES.to_string();
    cluster.start_part("hollow", &["agent", "--node", "hollow", "--driver", "sim", "--count", &count]);
    let mut ready = BTreeSet::new();
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("all are ready", LONG, |e| {
        if condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == "True") {
            ready.insert(e["resource"]["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        }
        (ready.len() == NODES).then_some(())
    });
    let named: BTreeSet<String> = (0..NODES).map(|n| format!("hollow-{n}")).collect();
    assert_eq!(ready, named);

    let manifest = format!(
        "kind: Service\nmetadata: {{ name: web }}\nspec: {{ replicas: {NODES}, template: {{ command: [anything] }} }}\n"
    );
    cluster.apply(&manifest).ok();
    cluster.wait_ready("web", "60s");
    let used: BTreeSet<String> = cluster.instances("web").into_iter().map(|i| i.node).collect();
    assert_eq!(used, named, "one each");
    let last = cluster.instances("web").pop().expect("there are some").name;
    cluster.run(&["logs", &last]).ok();

    // All of them at once: that is what the brake is for.
    cluster.kill_part("hollow");
    let placements = cluster.stream(&["get", "placements", "-w", "-o", "json"]);
    placements.until_json("the brake holds", LONG, |e| {
        condition(&e["resource"], "NodesReachable").is_some_and(|c| c["reason"] == "Brake").then_some(())
    });
    assert_eq!(cluster.instances("web").len(), NODES);
}

#[test]
fn only_hollow_nodes_can_be_many_in_one_process() {
    let cluster = Cluster::of_nodes(&[]);
    cluster.run(&["agent", "--node", "n", "--count", "2"]).exits(2).says("--driver sim");
}
