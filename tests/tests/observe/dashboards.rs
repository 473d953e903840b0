//! Every panel's query brings data, asked of a real Prometheus that scrapes a real cluster: no Grafana is needed to find a
//! name that doesn't exist.

use std::{fs, time::Duration};

use driftless_tests::{Cluster, command::repository, processes::look_until};
use serde_json::Value;
use store_etcd::testing::Etcd;

use crate::{pages::SLEEPERS, prometheus::Prometheus};

const LONG: Duration = Duration::from_secs(60);
/// Longer than the test takes: rates see everything that it did.
const WINDOW: &str = "10m";

/// One query of a panel.
#[derive(Debug)]
struct Query {
    place: String,
    expr: String,
}

fn queries() -> Vec<Query> {
    let dir = repository("deploy/observability/grafana/dashboards");
    let files = fs::read_dir(&dir).expect("it is there").map(|entry| entry.expect("it can be read").path());
    let of = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).expect("it can be read");
        let dashboard: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let panels = dashboard["panels"].as_array().cloned().unwrap_or_default();
        assert!(panels.len() >= 8, "{} has few panels", path.display());
        panels.into_iter().flat_map(|panel| of_panel(&dashboard["title"], &panel)).collect::<Vec<Query>>()
    };
    files.flat_map(of).collect()
}

fn of_panel(dashboard: &Value, panel: &Value) -> Vec<Query> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    assert_eq!(panel["datasource"]["uid"], "prometheus", "as it is provisioned");
    let targets = panel["targets"].as_array().cloned().unwrap_or_default();
    assert!(!targets.is_empty(), "{panel}");
    let place = format!("{}, {}", text(dashboard), text(&panel["title"]));
    let of = |target: &Value| Query {
        place: place.clone(),
        expr: text(&target["expr"]).replace("$__rate_interval", WINDOW),
    };
    targets.iter().map(of).collect()
}

/// A number: a quantile of nothing is none.
fn has_data(result: &[Value]) -> bool {
    result.iter().any(|series| series["value"][1].as_str().is_some_and(|value| value != "NaN"))
}

fn every_panel_has_data(store: &str) {
    let mut cluster = Cluster::of_parts(store);
    cluster.start_controller("c2");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let prometheus = Prometheus::start(dir.path(), &cluster.metrics());
    // Counters must be seen before they move.
    look_until("everybody was scraped twice", LONG, || {
        let up = prometheus.query("count(sum_over_time(up[10m]) > 1)");
        let ready = prometheus.query("sum(driftless_ready)");
        (up.first()?["value"][1] == "4" && ready.first()?["value"][1] == "4").then_some(())
    });
    cluster.apply_with(SLEEPERS.as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    cluster.kill_part("c2");
    cluster.run(&["scale", "service", "web", "--replicas", "3"]).ok();
    cluster.wait_ready("web", "60s");

    let all = queries();
    assert!(all.len() >= 40, "{} queries", all.len());
    let mut empty: Vec<&Query> = all.iter().collect();
    look_until("every panel has data", LONG, || {
        empty.retain(|query| !has_data(&prometheus.query(&query.expr)));
        let few: Vec<&str> = empty.iter().map(|query| query.place.as_str()).collect();
        println!("without data: {few:?}");
        empty.is_empty().then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_panel_of_every_dashboard_has_data() {
    let etcd = Etcd::start().await;
    let store = format!("{}/dashboards", etcd.url());
    tokio::task::spawn_blocking(move || every_panel_has_data(&store)).await.expect("every panel has data");
}
