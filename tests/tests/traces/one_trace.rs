//! From the call to the healthy process, also where the controller is killed in between.

use std::fs;

use driftless_tests::processes::look_until;
use serde_json::Value;
use telemetry::testing::{Receiver, Span};

use crate::spans::{EXPORTED_MAX, MANIFEST, Marks, Trace, is_the_end, trace_id, trace_with, traced};

const CALL: &str = "driftless.v1.ResourceService/";

#[test]
fn one_trace_shows_all_from_the_call_to_the_healthy_process() {
    let receiver = Receiver::start();
    // Only what asks for it is sampled.
    let cluster = traced(&receiver, "0", &["n1"]);
    let ready = cluster.dir().join("ready");
    fs::write(&ready, "").expect("the directory can be written");
    let manifest = MANIFEST.replace("READY", ready.to_str().expect("text"));
    let applied = cluster.apply_with(manifest.as_bytes(), &["--trace", "--wait"]).ok();
    let id = trace_id(&applied.stderr);
    let trace = trace_with(&receiver, &id, "the whole trace", is_the_end);

    let roots: Vec<&Span> = trace.spans.iter().filter(|span| span.parent.is_empty()).collect();
    let [root] = roots.as_slice() else { panic!("{roots:#?}") };
    assert_eq!((root.service.as_str(), root.name.as_str()), ("driftless-cli", "driftless apply"));
    let apply = format!("{CALL}Apply");
    let kinds: Vec<(&str, &str)> =
        trace.named(&apply).iter().map(|span| (span.service.as_str(), span.kind.as_str())).collect();
    assert_eq!(kinds.len(), 2);
    assert!(
        kinds.contains(&("driftless-cli", "client")) && kinds.contains(&("driftless-server", "server")),
        "{kinds:?}"
    );

    let served = format!("server {apply} < cli {apply} < cli driftless apply");
    let stepped = format!("server {CALL}Commit < controller {CALL}Commit < controller reconcile < server store.commit");
    let placed = "controller placement < controller reconcile < server store.commit";
    let reported = "agent status.report < agent ";
    // On a busy machine a start takes so long that it's told of before it's done.
    let starting = "server store.commit < controller placement < controller reconcile";
    let told_early = format!("agent status.report < {starting}");
    trace.is_under("admission", &[&served, &stepped, placed, reported, &told_early]);
    trace.is_under("store.commit", &[&served, &stepped, placed, reported, &told_early]);
    trace.is_under("watch.deliver", &["server store.commit"]);
    trace.is_under("queue.wait", &["server store.commit"]);
    trace.is_under("reconcile", &["server store.commit"]);
    trace.is_under("placement", &["controller reconcile"]);
    trace.is_under("process.start", &[starting]);
    trace.is_under("health.first", &["agent process.start < server store.commit"]);
    trace.is_under("status.report", &["agent health.first", "agent process.start", starting]);
    for name in ["process.start", "health.first"] {
        assert_eq!(trace.named(name).len(), 2, "one of each instance: {:#?}", trace.outline());
    }
    let delivered: Vec<&str> = trace.named("watch.deliver").iter().map(|span| span.service.as_str()).collect();
    assert!(delivered.contains(&"driftless-controller") && delivered.contains(&"driftless-agent"), "{delivered:?}");

    for reconcile in trace.named("reconcile") {
        assert!(reconcile.links.contains(&reconcile.parent), "it links to what it's under too: {reconcile:#?}");
        let said = ["kind", "key", "shard", "claim", "epoch", "why", "outcome", "verb", "revision"];
        let missing: Vec<_> =
            said.iter().filter(|a| reconcile.attribute(&format!("driftless.{a}")).is_empty()).collect();
        assert!(missing.is_empty(), "{missing:?} of {reconcile:#?}");
    }
    for span in &trace.spans {
        assert!(!span.failed || span.attribute("driftless.outcome") == "conflict", "{span:#?}");
    }
    // Nothing else is sampled.
    let others: Vec<Span> = receiver.spans().into_iter().filter(|span| span.trace != id).collect();
    assert!(others.is_empty(), "{others:#?}");

    let told = cluster.run(&["trace", "service", "web", "--trace-ui", "http://ui/{trace}"]).ok().stdout;
    for part in [format!("trace {id} (sampled)"), format!("http://ui/{id}"), "apply".into(), "report".into()] {
        assert!(told.contains(&part), "{part} in:\n{told}");
    }
}

#[test]
fn a_trace_goes_on_where_a_killed_controller_left_off() {
    let receiver = Receiver::start();
    let mut cluster = traced(&receiver, "0", &["n1"]);
    let ready = cluster.dir().join("ready");
    let manifest = MANIFEST.replace("READY", ready.to_str().expect("text"));
    let applied = cluster.apply_with(manifest.as_bytes(), &["--trace"]).ok();
    let id = trace_id(&applied.stderr);
    // Both run, neither is ready, and that was told of: nothing more happens.
    look_until("the service is said to wait for both", EXPORTED_MAX, || {
        let unwell = |instance: &Value| instance["status"]["conditions"].to_string().contains("CheckFailing");
        let instances = cluster.run(&["get", "instances", "-o", "json"]).ok().json();
        let both = instances["items"].as_array().is_some_and(|all| all.len() == 2 && all.iter().all(unwell));
        (both && cluster.service("web")["status"]["conditions"].to_string().contains("ChecksFailing")).then_some(())
    });
    // Whoever is killed has exported all of it, or what it led to would miss its parent for ever.
    Marks::default().set(&receiver, &cluster, "before");
    let started = receiver.trace(&id).iter().filter(|span| span.name == "process.start").count();
    assert_eq!(started, 2);
    cluster.kill_part("c1");
    fs::write(&ready, "").expect("the directory can be written");
    cluster.start_controller("c2");
    cluster.wait_ready("web", "60s").ok();

    let trace = trace_with(&receiver, &id, "the trace to its end", is_the_end);
    let reconciles = trace.named("reconcile");
    let by = |name: &str| reconciles.iter().filter(|span| span.instance == name).count();
    assert!(by("c1") > 0 && by("c2") > 0, "both had their part: {:#?}", trace.outline());
    let end = reconciles.iter().find(|span| is_the_end(span)).expect("waited for");
    assert_eq!(end.instance, "c2");
    let lineage = trace.lineage(end);
    assert_eq!(lineage.last().map(String::as_str), Some("cli driftless apply"), "{lineage:?}");
    assert!(trace.orphans().is_empty());
}

#[test]
fn what_a_sweep_repairs_is_a_trace_of_its_own_and_what_it_leaves_is_none() {
    let receiver = Receiver::start();
    let cluster = traced(&receiver, "1", &["n1"]);
    let ready = cluster.dir().join("ready");
    fs::write(&ready, "").expect("the directory can be written");
    let manifest = MANIFEST.replace("READY", ready.to_str().expect("text"));
    let applied = cluster.apply_with(manifest.as_bytes(), &["--trace", "--wait"]).ok();
    let id = trace_id(&applied.stderr);
    trace_with(&receiver, &id, "the whole trace", is_the_end);
    let mut marks = Marks::default();
    marks.all_up_to_now(&receiver, &cluster, "before");

    // A process dies by itself: nobody declared that.
    let instance = cluster.instances("web").remove(0);
    cluster.process_of(&instance).signal(rustix::process::Signal::KILL);
    let repaired = look_until("a trace of the repair", EXPORTED_MAX, || {
        let of_web = |span: &Span| span.attribute("driftless.key").ends_with("/web");
        receiver.spans().into_iter().find(|span| span.name == "reconcile" && of_web(span) && span.trace != id)
    });
    assert!(repaired.parent.is_empty(), "it's the first of its trace: {repaired:#?}");
    assert_eq!(repaired.links.len(), 1, "with a link to what was declared: {repaired:#?}");
    let came = marks.all_up_to_now(&receiver, &cluster, "after");
    let late: Vec<Span> = came.into_iter().filter(|span| span.trace == id).collect();
    assert!(late.is_empty(), "the declaration's trace was over: {:#?}", Trace { spans: late }.told());
}
