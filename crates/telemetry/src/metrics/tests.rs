//! The page, against what Prometheus' formats ask for.

use std::{sync::Arc, time::Duration};

use super::{Counter, Exemplars, Exporter, Family, Histogram, Page, Source};

const DONE: Family = Family::counter("test_done_total", &["outcome"], "What was done");
const WAITS: Family = Family::histogram("test_wait_seconds", &["lane"], "How long it waited");
const TRUE: Family = Family::histogram("test_true_seconds", &["kind"], "Until it was true");

#[derive(Default)]
struct Values {
    done: Counter,
    waits: Histogram,
    exemplars: Exemplars,
}

impl Source for Values {
    fn families(&self) -> &'static [Family] {
        &[DONE, WAITS, TRUE]
    }

    fn collect(&self, page: &mut Page<'_>) {
        page.values(&DONE, [(["well"], self.done.get() as f64)]);
        page.histograms(&WAITS, [(["change"], &self.waits)]);
        page.exemplars(&TRUE, &self.exemplars);
    }
}

fn exporter() -> Exporter {
    let values = Values::default();
    values.done.add(3);
    values.waits.observe(Duration::from_millis(1));
    values.waits.observe(Duration::from_millis(20));
    values.waits.observe(Duration::from_secs(1_000));
    values.exemplars.observe("Service", Duration::from_millis(30), Some("0af7651916cd43dd8448eb211c80319c".into()));
    values.exemplars.observe("Instance", Duration::from_millis(30), None);
    let exporter = Exporter::new("test", "1.2.3", &[]);
    exporter.add(Arc::new(values));
    exporter
}

#[track_caller]
fn has_lines(page: &str, lines: &[&str]) {
    for line in lines {
        assert!(page.lines().any(|l| l == *line), "no {line:?} in:\n{page}");
    }
}

#[test]
fn the_text_is_cumulative_and_ends_with_infinity() {
    let page = exporter().page(false).expect("it can be written");
    has_lines(
        &page,
        &[
            "# TYPE test_done_total counter",
            "test_done_total{outcome=\"well\"} 3.0",
            "# TYPE test_wait_seconds histogram",
            "test_wait_seconds_bucket{lane=\"change\",le=\"0.0005\"} 0",
            "test_wait_seconds_bucket{lane=\"change\",le=\"0.001\"} 1",
            "test_wait_seconds_bucket{lane=\"change\",le=\"0.025\"} 2",
            "test_wait_seconds_bucket{lane=\"change\",le=\"120\"} 2",
            "test_wait_seconds_bucket{lane=\"change\",le=\"+Inf\"} 3",
            "test_wait_seconds_count{lane=\"change\"} 3",
            "test_wait_seconds_sum{lane=\"change\"} 1000.021",
            "driftless_build_info{role=\"test\",version=\"1.2.3\"} 1.0",
        ],
    );
    assert!(!page.contains("trace_id"), "the older text has no exemplars");
}

#[test]
fn openmetrics_carries_the_trace_of_a_bucket() {
    let page = exporter().page(true).expect("it can be written");
    assert!(page.ends_with("# EOF\n"));
    has_lines(&page, &["# TYPE test_done counter", "test_done_total{outcome=\"well\"} 3.0"]);
    let bucket = |kind: &str| {
        let start = format!("test_true_seconds_bucket{{le=\"0.05\",kind=\"{kind}\"}} 1");
        page.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no bucket of {kind} in:\n{page}"))
    };
    assert!(bucket("Service").contains(" # {trace_id=\"0af7651916cd43dd8448eb211c80319c\"} 0.03 "));
    assert!(!bucket("Instance").contains('#'));
}

#[test]
fn what_the_kernel_says_is_plausible() {
    let page = exporter().page(false).expect("it can be written");
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ').next().expect("a value").parse().expect("a number")
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs_f64();
    assert!((now - 3_600.0..now + 2.0).contains(&value("process_start_time_seconds")));
    assert!(value("process_resident_memory_bytes") > 1e5);
    assert!(value("process_open_fds") >= 3.0);
    assert!(value("process_cpu_seconds_total") < 3_600.0);
}

#[test]
fn a_process_is_ready_when_all_of_its_roles_are() {
    let exporter = Exporter::new("dev", "1", &["server", "agent"]);
    exporter.check("server", || Ok(()));
    assert_eq!(exporter.not_ready(), ["agent: it is starting"]);
    exporter.check("agent", || Err("it has no session".into()));
    assert_eq!(exporter.not_ready(), ["agent: it has no session"]);
    let page = exporter.page(false).expect("it can be written");
    has_lines(&page, &["driftless_ready{role=\"agent\"} 0.0", "driftless_ready{role=\"server\"} 1.0"]);
    exporter.check("agent", || Ok(()));
    assert!(exporter.not_ready().is_empty());
}
