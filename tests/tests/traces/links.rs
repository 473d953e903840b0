//! Where several causes meet in one reconcile, it links to all of them.

use std::collections::BTreeSet;

use driftless_tests::processes::look_until;
use telemetry::testing::{Receiver, Span};

use crate::spans::{EXPORTED_MAX, trace_id, traced};

fn service(version: &str) -> String {
    format!(
        "kind: Service
metadata: {{ name: web }}
spec:
  replicas: 1
  version: {version}
  rollout: {{ max_surge: 1, max_unavailable: 0, min_ready: 15s, progress_deadline: 120s }}
  template: {{ command: [sleep, '86400'] }}
"
    )
}

#[test]
fn a_step_that_two_declarations_led_to_links_to_both() {
    let receiver = Receiver::start();
    // Only what asks for it is sampled.
    let cluster = traced(&receiver, "0", &["n1"]);
    cluster.apply_with(service("v1").as_bytes(), &["--wait"]).ok();
    cluster.apply_with(service("v2").as_bytes(), &[]).ok();
    look_until("the new one has to prove itself", EXPORTED_MAX, || {
        cluster.instances("web").iter().any(|instance| instance.version == "v2" && instance.ready).then_some(())
    });
    // Both have the service looked at while it can do nothing but wait.
    let ids = ["cordon", "uncordon"].map(|verb| trace_id(&cluster.run(&[verb, "n1", "--trace"]).ok().stderr));
    let stop = look_until("the old one is stopped", EXPORTED_MAX, || {
        let is_stop = |span: &Span| span.name == "reconcile" && span.attribute("driftless.verb") == "stop";
        receiver.spans().into_iter().find(is_stop)
    });
    assert_eq!(stop.trace, ids[1], "it's in the trace of the newest");
    let linked = look_until("what it links to is here", EXPORTED_MAX, || {
        let spans = receiver.spans();
        let of = |link: &String| spans.iter().find(|span| span.id == *link).map(|span| span.trace.clone());
        stop.links.iter().map(of).collect::<Option<BTreeSet<String>>>()
    });
    assert_eq!(linked, ids.into_iter().collect::<BTreeSet<String>>());
    assert!(stop.links.contains(&stop.parent), "also to what it's under: {stop:#?}");
}
