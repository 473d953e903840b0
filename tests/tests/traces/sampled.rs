//! Head sampling: whoever begins a trace decides once for all that it leads to.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
};

use driftless_tests::{Cluster, Done, command, processes::look_until};
use serde_json::Value;
use telemetry::{
    testing::{Receiver, Span},
    trace::Context,
};

use crate::spans::{EXPORTED_MAX, Marks, Trace, traced};

/// A caller's trace that isn't sampled.
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// `driftless` under that trace, to its end.
fn unsampled(cluster: &Cluster, arguments: &[&str], input: &str) -> Done {
    let mut command = cluster.command(arguments);
    command.env("TRACEPARENT", UNSAMPLED);
    command::run(command, input.as_bytes()).ok()
}

fn config(color: &str) -> String {
    format!("kind: Config\nmetadata: {{ name: paint }}\nspec: {{ data: {{ COLOR: {color} }} }}\n---\n")
}

fn service(version: &str, replicas: u32) -> String {
    format!(
        "kind: Service
metadata: {{ name: quiet }}
spec:
  replicas: {replicas}
  version: {version}
  template: {{ command: [sleep, '86400'], env_from: [{{ config: paint }}] }}
"
    )
}

const APPLY: [&str; 6] = ["apply", "-f", "-", "--wait", "--hold", "0s"];

fn gone_but(cluster: &Cluster, count: usize) {
    look_until("what is too many is gone", EXPORTED_MAX, || (cluster.instances("quiet").len() == count).then_some(()));
}

#[test]
fn what_is_not_sampled_leaves_no_span_whatever_it_leads_to() {
    let receiver = Receiver::start();
    // Whoever drew anew would be seen at once.
    let cluster = traced(&receiver, "1", &["n1", "n2"]);
    let mut marks = Marks::default();
    marks.all_up_to_now(&receiver, &cluster, "before");

    unsampled(&cluster, &APPLY, &(config("red") + &service("v1", 2)));
    unsampled(&cluster, &["scale", "service", "quiet", "--replicas", "4"], "");
    cluster.wait_ready("quiet", "60s");
    unsampled(&cluster, &["scale", "service", "quiet", "--replicas", "1"], "");
    gone_but(&cluster, 1);
    unsampled(&cluster, &APPLY, &config("green"));
    cluster.wait_ready("quiet", "60s");
    unsampled(&cluster, &APPLY, &service("v2", 2));
    gone_but(&cluster, 2);
    for node in ["n1", "n2"] {
        unsampled(&cluster, &["drain", node, "--timeout", "60s"], "");
        unsampled(&cluster, &["uncordon", node], "");
    }
    unsampled(&cluster, &["delete", "service", "quiet"], "");
    gone_but(&cluster, 0);

    let came = marks.all_up_to_now(&receiver, &cluster, "after");
    assert!(came.is_empty(), "{:#?}", Trace { spans: came }.told());
}

#[test]
fn what_is_not_sampled_leaves_no_span_though_everybody_restarts_in_between() {
    let receiver = Receiver::start();
    let mut cluster = traced(&receiver, "1", &["n1", "n2"]);
    let mut marks = Marks::default();
    marks.all_up_to_now(&receiver, &cluster, "before");
    let proved = service("v1", 1).replace("  version", "  rollout: { min_ready: 4s }\n  version");
    unsampled(&cluster, &APPLY, &(config("red") + &proved));
    // Its replacement takes its time to prove itself. Who made it, and who started it, is not there any more then.
    let left = cluster.instances("quiet").remove(0).node;
    let mut drain = cluster.command(&["drain", &left, "--timeout", "90s"]);
    let drain = drain.env("TRACEPARENT", UNSAMPLED).stdout(Stdio::null()).spawn().expect("the binary can be started");
    let replacement = look_until("there is a replacement", EXPORTED_MAX, || {
        cluster.instances("quiet").into_iter().find(|instance| instance.node != left && instance.ready)
    });
    cluster.kill_part("c1");
    cluster.kill_part(&replacement.node);
    cluster.start_agent(&replacement.node);
    cluster.start_controller("c2");
    assert!(drain.wait_with_output().expect("it ends").status.success(), "it's drained");
    gone_but(&cluster, 1);

    let came = marks.all_up_to_now(&receiver, &cluster, "after");
    let ours: Vec<Span> = came.into_iter().filter(|span| span.attribute("driftless.key").contains("quiet")).collect();
    assert!(ours.is_empty(), "{:#?}", Trace { spans: ours }.told());
}

const RATIO: &str = "0.1";
const SERVICES: usize = 40;

/// Of every trace that a user began: whether it's sampled.
fn declared(cluster: &Cluster) -> BTreeMap<String, bool> {
    let entries = cluster.run(&["history", "--limit", "10000", "-o", "json"]).ok().json();
    let entries = entries["entries"].as_array().expect("a list").clone();
    let users = entries.iter().filter(|entry| entry["actor"].as_str().is_some_and(|actor| actor.starts_with("user/")));
    let context = |entry: &Value| Context::parse(entry["traceparent"].as_str().unwrap_or_default());
    users.filter_map(context).map(|context| (context.trace_id(), context.sampled)).collect()
}

#[test]
fn of_many_declarations_the_sampled_ones_arrive_whole_and_no_others() {
    let receiver = Receiver::start();
    let cluster = traced(&receiver, RATIO, &["n1"]);
    let mut marks = Marks::default();
    marks.all_up_to_now(&receiver, &cluster, "before");
    let before = declared(&cluster);
    for n in 0..SERVICES {
        let name = format!("quiet-{n}");
        let manifest = service("v1", 1)
            .replace("name: quiet", &format!("name: {name}"))
            .replace(", env_from: [{ config: paint }]", "");
        cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
        cluster.run(&["scale", "service", &name, "--replicas", "2"]).ok();
        cluster.wait_ready(&name, "60s");
        cluster.run(&["scale", "service", &name, "--replicas", "1"]).ok();
        cluster.run(&["delete", "service", &name]).ok();
    }
    let declared = declared(&cluster);
    let drawn: BTreeMap<_, _> = declared.iter().filter(|(id, _)| !before.contains_key(*id)).collect();
    assert_eq!(drawn.len(), 4 * SERVICES, "each call began a trace");
    // The id decides: nobody's luck is in what follows.
    for (id, sampled) in &drawn {
        let low = u64::from_str_radix(&id[16..], 16).expect("hex") & (u64::MAX >> 1);
        assert_eq!((low as f64) < 0.1 * (1_u64 << 63) as f64, **sampled, "{id}");
    }
    let expected: BTreeSet<String> =
        drawn.iter().filter(|(_, sampled)| ***sampled).map(|(id, _)| (*id).clone()).collect();

    let came = marks.all_up_to_now(&receiver, &cluster, "after");
    let arrived: BTreeSet<String> = came.iter().map(|span| span.trace.clone()).collect();
    let others: Vec<Span> = came.iter().filter(|span| !expected.contains(&span.trace)).cloned().collect();
    assert_eq!(arrived, expected, "beside them: {:#?}", Trace { spans: others }.told());
    for id in &expected {
        let trace = Trace { spans: came.iter().filter(|span| span.trace == *id).cloned().collect() };
        assert!(trace.orphans().is_empty(), "{:#?}", trace.told());
        let heads: Vec<&str> =
            trace.spans.iter().filter(|span| span.parent.is_empty()).map(|span| span.service.as_str()).collect();
        assert_eq!(heads, ["driftless-cli"], "{:#?}", trace.told());
    }
}
