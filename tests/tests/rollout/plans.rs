//! A plan says what will happen, writes nothing, and is applied only where nothing moved.

use driftless_tests::{Cluster, watched::Watched};
use serde_json::Value;

use crate::manifests::{SLEEPS, SOON, web};

fn names(plan: &Value, action: &str) -> Vec<String> {
    let steps = plan["steps"].as_array().cloned().unwrap_or_default();
    let moves = steps.iter().flat_map(|step| step["moves"].as_array().cloned().unwrap_or_default());
    let mut names: Vec<String> = moves
        .filter(|m| m["action"] == action)
        .map(|m| m["key"]["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn what_a_plan_shows_is_what_real_processes_do() {
    let cluster = Cluster::start();
    cluster.apply_with(web(4, "v1", SLEEPS, "max_surge: 2").as_bytes(), &["--wait"]).ok();
    let next = web(4, "v2", SLEEPS, "max_surge: 2");
    let revision = cluster.revision("web");
    cluster.plan(&web(4, "v1", SLEEPS, "max_surge: 2"), &[]).exits(0);
    let plan = cluster.plan(&next, &["-o", "json"]).exits(10).json();
    assert_eq!(cluster.revision("web"), revision, "a plan writes nothing");
    let planned = &plan["services"][0];
    assert_eq!((&planned["livePeak"], &planned["readyLeast"]), (&6.into(), &4.into()), "{planned}");

    let old: Vec<String> = cluster.instances("web").into_iter().map(|i| i.name).collect();
    let mut watched = Watched::start(&cluster, 4, SOON);
    cluster.apply(&next).ok();
    watched.until("it is done", |records| records.are_all(4, "v2"));
    let made: Vec<String> = watched.made.keys().cloned().collect();
    assert_eq!(made, names(&plan, "create"));
    assert_eq!(old, names(&plan, "stop"));
    assert!(watched.made.values().all(|times| *times == 1));
    assert!(watched.most_live <= 6 && watched.fewest_ready >= 4);
}

#[test]
fn a_kept_plan_is_refused_once_something_it_was_made_on_has_moved() {
    let cluster = Cluster::start();
    cluster.apply_with(web(2, "v1", SLEEPS, "").as_bytes(), &["--wait"]).ok();
    let file = cluster.data_dir().with_file_name("web.plan");
    let file = file.to_str().expect("a temporary path is text");
    let next = web(2, "v2", SLEEPS, "");
    cluster.plan(&next, &["--out", file]).exits(10);
    cluster.run(&["scale", "service", "web", "--replicas", "3"]).ok();
    cluster.run(&["apply", file]).exits(4).says("Service/default/web").says("plan again");
    assert_eq!(cluster.service("web")["spec"]["version"], "v1");

    cluster.wait_ready("web", "60s");
    cluster.plan(&next, &["--out", file]).exits(10);
    cluster.run(&["apply", file]).ok();
    cluster.wait_ready("web", "60s");
    assert_eq!(cluster.service("web")["spec"]["version"], "v2");
}
