//! A change of what a service takes its environment from is a rollout like any other.

use driftless_tests::{Cluster, watched::Watched};

use crate::manifests::{SOON, condition};

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

/// Its status said ready all the time, of the Config from before.
#[test]
fn whoever_waits_for_a_config_waits_for_those_that_use_it() {
    let cluster = Cluster::start();
    let both = |color: &str| format!("{}---\n{SERVICE}", config(color));
    cluster.apply_with(both("red").as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let logs = |cluster: &Cluster, color: &str| {
        let instances: Vec<_> = cluster.instances("web").into_iter().filter(|i| !i.deleting).collect();
        assert_eq!(instances.len(), 3, "{instances:?}");
        for instance in &instances {
            let logs = cluster.run(&["logs", &instance.name]).ok().stdout;
            assert!(logs.contains(&format!("painted {color}")), "{}: {logs}", instance.name);
        }
    };
    for (color, manifest) in [("blue", config("blue")), ("green", both("green")), ("white", config("white"))] {
        let done = cluster.apply_with(manifest.as_bytes(), &["--wait", "--timeout", "60s"]).ok();
        assert!(done.stdout.ends_with("service/web ready\n"), "{}", done.stdout);
        logs(&cluster, color);
    }
}

#[test]
fn a_config_in_use_is_not_deleted_by_mistake() {
    let cluster = Cluster::start();
    cluster.apply(SERVICE).ok().says("spec.template.env_from names Config/default/paint, which doesn't exist");
    cluster.apply_with(config("red").as_bytes(), &[]).ok();
    cluster.wait_ready("web", "60s");
    let running = cluster.instances("web");
    cluster.run(&["delete", "config", "paint"]).exits(4).says("config/paint is used by service/web").says("--force");
    cluster.run(&["get", "config", "paint"]).ok();

    cluster.run(&["delete", "config", "paint", "--force"]).ok().says("warning: config/paint is used by service/web");
    let blocked = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    blocked.until_json("it says that it misses its Config", SOON, |event| {
        (condition(event, "Progressing")?.1 == "ConfigMissing").then_some(())
    });
    assert_eq!(cluster.instances("web"), running, "what runs keeps running");

    // Who deletes them together means it.
    cluster.apply(&config("red")).ok();
    cluster.wait_ready("web", "60s");
    cluster.run(&["delete", "config/paint", "service/web", "--timeout", "60s"]).ok();
}
