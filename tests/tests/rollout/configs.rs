//! A change of what a service takes its environment from is a rollout like any other.

use driftless_tests::{Cluster, watched::Watched};

use crate::manifests::SOON;

fn config(color: &str) -> String {
    format!("kind: Config\nmetadata: {{ name: paint }}\nspec: {{ data: {{ COLOR: {color} }} }}\n")
}

const SERVICE: &str = "kind: Service
metadata: { name: web }
spec:
  replicas: 3
  version: v1
  template: { command: [sh, -c, 'echo painted $COLOR; exec sleep 86400'], env_from: [{ config: paint }] }
";

#[test]
fn a_changed_config_is_planned_and_rolled_out() {
    let cluster = Cluster::start();
    let both = format!("{}---\n{SERVICE}", config("red"));
    cluster.apply_with(both.as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let old = cluster.instances("web");
    let plan = cluster.plan(&config("blue"), &["-o", "json"]).exits(10).json();
    let planned = &plan["services"][0];
    assert_eq!((&planned["created"], &planned["stopped"]), (&3.into(), &3.into()), "{planned}");

    let mut watched = Watched::start(&cluster, 3, SOON);
    cluster.apply(&config("blue")).ok();
    watched.until("all are new", |records| {
        records.instances.len() == 3
            && records.count(|i| i.ready && !i.deleting && old.iter().all(|o| o.uid != i.uid)) == 3
    });
    assert!(watched.fewest_ready >= 3 && watched.most_live <= 4);
    let logs = cluster.run(&["logs", &cluster.instances("web")[0].name]).ok().stdout;
    assert!(logs.contains("painted blue"), "{logs}");
}
