//! A declaration's context is kept to by every role, whichever of them have a receiver.

use std::collections::BTreeSet;

use driftless_tests::{Cluster, command, processes::look_until};
use serde_json::Value;
use telemetry::{testing::Receiver, trace::Context};

use crate::spans::{EXPORTED_MAX, Trace};

const ROLES: [&str; 3] = ["driftless-server", "driftless-controller", "driftless-agent"];

/// Callers' traces, by the name of what they declare.
const DECLARED: [(&str, &str); 3] = [
    ("before", "00-11111111111111111111111111111111-b7ad6b7169203331-01"),
    ("quiet", "00-22222222222222222222222222222222-b7ad6b7169203331-00"),
    ("after", "00-33333333333333333333333333333333-b7ad6b7169203331-01"),
];

/// Declares it under that context, and waits until it's true.
fn declare(cluster: &Cluster, name: &str, traceparent: &str) {
    let manifest = format!(
        "kind: Service
metadata: {{ name: {name} }}
spec: {{ replicas: 2, template: {{ command: [sleep, '86400'] }} }}
"
    );
    let mut command = cluster.command(&["apply", "-f", "-", "--wait", "--hold", "0s"]);
    command.env("TRACEPARENT", traceparent);
    command::run(command, manifest.as_bytes()).ok();
}

/// What is stored of it: of each step, of the service, and of each instance as it was last written.
fn stored(cluster: &Cluster, name: &str) -> Vec<(String, Context)> {
    let steps = cluster.run(&["history", "service", name, "-o", "json"]).ok().json();
    let steps = steps["entries"].as_array().cloned().unwrap_or_default();
    let service = cluster.service(name);
    let instances = cluster.run(&["get", "instances", "-o", "json"]).ok().json();
    let instances = instances["items"].as_array().cloned().unwrap_or_default();
    let ours = instances.into_iter().filter(|instance| instance["metadata"]["owner"]["name"] == name);
    let written = |resource: &Value| resource["metadata"]["lastWriter"]["traceparent"].clone();
    let mut said: Vec<(String, Value)> = vec![
        ("the service's declaration".into(), service["metadata"]["traceparent"].clone()),
        ("the service's last write".into(), written(&service)),
    ];
    said.extend(ours.map(|instance| (format!("{}'s last write", instance["metadata"]["name"]), written(&instance))));
    said.extend(
        steps.iter().map(|step| (format!("{} by {}", step["verb"], step["actor"]), step["traceparent"].clone())),
    );
    assert!(said.len() >= 2 + 2 + 4, "two instances, four steps at least: {said:?}");
    let parse = |text: &Value| Context::parse(text.as_str().unwrap_or_default());
    said.into_iter().map(|(of, text)| (of.clone(), parse(&text).unwrap_or_else(|| panic!("{of}: {text}")))).collect()
}

/// Each of the roles has a receiver or has none.
fn check(on: [bool; 3]) {
    let receiver = Receiver::start();
    // Whoever drew anew would be seen at once.
    let environment = |on: bool| match on {
        true => vec![("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint()), ("DRIFTLESS_TRACE_RATIO", "1".to_owned())],
        false => Vec::new(),
    };
    let cluster = Cluster::of_different(on.map(environment));
    let expected: BTreeSet<&str> = ROLES.into_iter().zip(on).filter(|(_, on)| *on).map(|(role, _)| role).collect();
    for (name, traceparent) in DECLARED {
        declare(&cluster, name, traceparent);
        let declared = Context::parse(traceparent).expect("it's one");
        for (of, context) in stored(&cluster, name) {
            let same = (context.trace, context.sampled) == (declared.trace, declared.sampled);
            assert!(same, "{name} with {expected:?}: {of} is under {context}");
        }
        if declared.sampled {
            whole(&receiver, declared, &expected);
        }
    }
    // By the last of them every role has exported what it had to tell of those before.
    let sampled = DECLARED.map(|(_, text)| Context::parse(text).expect("it's one")).into_iter().filter(|c| c.sampled);
    let sampled: Vec<String> = sampled.map(|context| context.trace_id()).collect();
    let others: Vec<_> = receiver.take().into_iter().filter(|span| !sampled.contains(&span.trace)).collect();
    assert!(others.is_empty(), "with {expected:?}: {:#?}", Trace { spans: others }.told());
}

/// All whose spans are to come have told of it, and the only parent that nobody knows is the caller's.
fn whole(receiver: &Receiver, declared: Context, expected: &BTreeSet<&str>) {
    let caller = format!("{:016x}", declared.span);
    look_until(&format!("a whole trace of {expected:?}"), EXPORTED_MAX, || {
        let trace = Trace { spans: receiver.trace(&declared.trace_id()) };
        let came: BTreeSet<&str> = trace.spans.iter().map(|span| span.service.as_str()).collect();
        (came == *expected && trace.orphans().iter().all(|span| span.parent == caller)).then_some(())
    });
}

#[test]
fn a_declaration_is_followed_or_not_whoever_has_a_receiver() {
    for number in 0..8 {
        check([0, 1, 2].map(|role| number >> role & 1 == 1));
    }
}
