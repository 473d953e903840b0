//! A receiver that is gone, hangs or fails: everything works as without one.

use driftless_tests::{Cluster, http, port::Port, processes::look_until};
use telemetry::testing::{Mood, Receiver};

use crate::spans::EXPORTED_MAX;

fn services_become_ready(endpoint: String) {
    let environment = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), ("DRIFTLESS_TRACE_RATIO", "1".to_owned())];
    let mut cluster = Cluster::of_nodes_with(&["n1"], environment);
    for n in 0..5 {
        let manifest = format!(
            "kind: Service
metadata: {{ name: s{n} }}
spec: {{ replicas: 2, template: {{ command: [sleep, '86400'] }} }}
"
        );
        cluster.apply_with(manifest.as_bytes(), &["--trace", "--wait"]).ok();
    }
    for n in 0..5 {
        cluster.run(&["delete", "service", &format!("s{n}")]).ok();
    }
    assert_eq!(cluster.stop(), [0, 0, 0], "all end in time");
}

#[test]
fn one_that_is_gone_does_no_harm() {
    // Where nobody else gets to listen.
    let nobody = Port::reserve();
    services_become_ready(format!("http://{}", nobody.address()));
}

#[test]
fn one_that_hangs_does_no_harm() {
    let receiver = Receiver::start();
    receiver.set(Mood::Hangs);
    services_become_ready(receiver.endpoint());
    assert!(receiver.spans().is_empty());
}

#[test]
fn one_that_fails_does_no_harm() {
    let receiver = Receiver::start();
    receiver.set(Mood::Fails);
    services_become_ready(receiver.endpoint());
    assert!(receiver.spans().is_empty());
}

/// Spans that a process dropped, by its own word.
fn dropped(address: &str) -> u64 {
    let page = http::fetch(address, "/metrics", "*/*").expect("the page is served").body;
    let value = page.lines().find_map(|line| line.strip_prefix("driftless_trace_spans_total{outcome=\"dropped\"} "));
    value.and_then(|value| value.trim_end_matches(".0").parse().ok()).unwrap_or_else(|| panic!("no such row:\n{page}"))
}

#[test]
fn where_one_hangs_every_role_counts_what_it_drops_and_works_on() {
    let receiver = Receiver::start();
    receiver.set(Mood::Hangs);
    let environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint()),
        ("OTEL_TRACES_SAMPLER", "always_on".to_owned()),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8".to_owned()),
    ];
    let cluster = Cluster::of_nodes_with(&["n1"], environment);
    let manifest = "kind: Service\nmetadata: { name: web }
spec: { replicas: 1, template: { command: [sleep, '86400'], stop_grace: 1s } }\n";
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let pages = cluster.metrics();
    assert_eq!(pages.len(), 3);
    let mut replicas = 1;
    look_until("all of them dropped some", EXPORTED_MAX, || {
        // A few more spans of each.
        replicas = 13 - replicas;
        cluster.run(&["scale", "service", "web", "--replicas", &replicas.to_string()]).ok();
        cluster.wait_ready("web", "60s");
        pages.iter().all(|(_, address)| dropped(address) > 0).then_some(())
    });
    receiver.set(Mood::Takes);
}
