//! A receiver that is gone, hangs or fails: everything works as without one.

use driftless_tests::Cluster;
use telemetry::testing::{Mood, Receiver};

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
    let receiver = Receiver::start();
    let endpoint = receiver.endpoint();
    drop(receiver);
    services_become_ready(endpoint);
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
