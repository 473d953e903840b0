//! A sweep that changes nothing makes no spans.

use std::fs;

use driftless_tests::{http, processes::look_until};
use telemetry::testing::Receiver;

use crate::spans::{EXPORTED_MAX, MANIFEST, Marks, Trace, traced};

/// Whole sweeps that must have gone by.
const SWEEPS: f64 = 3.0;

/// What its sweeps looked at so far.
fn swept(address: &str) -> f64 {
    let page = http::fetch(address, "/metrics", "*/*").expect("the page is served").body;
    let row = page.lines().find_map(|line| line.strip_prefix("driftless_queue_wait_seconds_count{lane=\"sweep\"} "));
    row.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no such row:\n{page}"))
}

#[test]
fn quiet_sweeps_leave_no_span() {
    let receiver = Receiver::start();
    let mut cluster = traced(&receiver, "1", &["n1"]);
    cluster.kill_part("c1");
    cluster.start_controller_with("c2", &["--sweep", "1s"]);
    let ready = cluster.dir().join("ready");
    fs::write(&ready, "").expect("the directory can be written");
    let manifest = MANIFEST.replace("READY", ready.to_str().expect("text"));
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let mut marks = Marks::default();
    marks.all_up_to_now(&receiver, &cluster, "before");

    let pages = cluster.metrics();
    let (_, address) = pages.iter().find(|(name, _)| name == "c2").expect("it runs");
    // Two services, a node and the placement are each looked at once in a sweep.
    let (began, keys) = (swept(address), 4.0);
    look_until("some sweeps", EXPORTED_MAX, || (swept(address) >= began + SWEEPS * keys).then_some(()));
    let came = marks.all_up_to_now(&receiver, &cluster, "after");
    assert!(came.is_empty(), "{:#?}", Trace { spans: came }.told());
}
