//! What an agent shows of itself and its node.

use std::time::Duration;

use telemetry::metrics::{Counter, Family, Gauge, Histogram, Page, Source};

const INSTANCES: Family =
    Family::gauge("driftless_agent_instances", &[], "Instances that this agent looks after, whether or not they run");
const STARTS: Family = Family::counter("driftless_agent_starts_total", &["outcome"], "Starts of instances by outcome");
const START_DURATION: Family = Family::histogram(
    "driftless_agent_start_duration_seconds",
    &[],
    "From the decision to start an instance until its process runs",
);
const RESTARTS: Family =
    Family::counter("driftless_agent_restarts_total", &[], "Starts of instances that had run before on this node");
const REPORTS: Family =
    Family::counter("driftless_agent_reports_total", &["outcome"], "Batches of what was seen, told to a server");
const TROUBLE: Family = Family::gauge(
    "driftless_agent_trouble",
    &[],
    "1 while the node can't do what it should, such as writing to its disk",
);

/// Everything that an agent shows.
pub const FAMILIES: &[Family] = &[INSTANCES, STARTS, START_DURATION, RESTARTS, REPORTS, TROUBLE];

#[derive(Debug, Default)]
pub struct Metrics {
    pub(crate) instances: Gauge,
    pub(crate) started: Counter,
    pub(crate) cannot_start: Counter,
    pub(crate) start_trouble: Counter,
    pub(crate) start_duration: Histogram,
    pub(crate) restarts: Counter,
    pub(crate) reported: Counter,
    pub(crate) report_failed: Counter,
    pub(crate) trouble: Gauge,
    /// 1 while it has a session under which it may report.
    pub(crate) linked: Gauge,
    /// 1 once it was told everything that is assigned to its node.
    pub(crate) told: Gauge,
    /// 1 while a watch tells it what changes.
    pub(crate) hears: Gauge,
}

impl Metrics {
    pub(crate) fn has_started(&self, again: bool, took: Duration) {
        self.started.add(1);
        self.restarts.add(usize::from(again));
        self.start_duration.observe(took);
    }

    /// Whether it does what is declared for its node: it's granted a session, knows what is assigned, and can work.
    pub fn ready(&self) -> Result<(), String> {
        match (self.linked.get(), self.told.get(), self.hears.get(), self.trouble.get()) {
            (0, ..) => Err("no server granted it a session".into()),
            (_, 0, ..) => Err("it wasn't told yet what is assigned to its node".into()),
            (_, _, 0, _) => Err("no server tells it at present what changes; it asks again".into()),
            (.., 1) => Err("the node can't do its work; see the Node's conditions".into()),
            _ => Ok(()),
        }
    }
}

impl Source for Metrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&self, page: &mut Page<'_>) {
        page.value(&INSTANCES, self.instances.get() as f64);
        let starts =
            [("started", &self.started), ("cannot_start", &self.cannot_start), ("trouble", &self.start_trouble)];
        page.values(&STARTS, starts.map(|(outcome, counter)| ([outcome], counter.get() as f64)));
        page.histograms(&START_DURATION, [([], &self.start_duration)]);
        page.value(&RESTARTS, self.restarts.get() as f64);
        let reports = [("committed", &self.reported), ("failed", &self.report_failed)];
        page.values(&REPORTS, reports.map(|(outcome, counter)| ([outcome], counter.get() as f64)));
        page.value(&TROUBLE, self.trouble.get() as f64);
    }
}
