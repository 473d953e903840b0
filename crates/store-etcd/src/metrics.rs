//! What the store on etcd shows, beside how long its operations take, which the server measures.

use std::sync::Arc;

use telemetry::metrics::{Family, Page, Source};

use crate::{backend::Inner, counters::Counts};

const RELISTS: Family = Family::counter(
    "driftless_etcd_relists_total",
    &["cause"],
    "Snapshots taken anew since etcd's watch skipped something (gap, missing), stood still (lag) or can't go on (compacted)",
);
const REPEATED: Family =
    Family::counter("driftless_etcd_repeated_events_total", &[], "Events that etcd sent twice or late; ignored");
const REOPENED: Family = Family::counter("driftless_etcd_watches_reopened_total", &[], "Watches of etcd opened anew");
const FAILOVERS: Family =
    Family::counter("driftless_etcd_failovers_total", &[], "Moves to another endpoint, since one didn't answer");
const SPACE: Family = Family::gauge(
    "driftless_etcd_space_used_ratio",
    &[],
    "Used part of etcd's quota, of the member that has least left; from 0.9 on nothing new is created",
);

/// Everything that the store on etcd shows.
pub const FAMILIES: &[Family] = &[RELISTS, REPEATED, REOPENED, FAILOVERS, SPACE];

pub struct Metrics(pub Arc<Inner>);

impl Source for Metrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&self, page: &mut Page<'_>) {
        let counts: Counts = self.0.counters.read(self.0.pool.failovers());
        let causes = [
            ("gap", counts.relists_gap),
            ("missing", counts.relists_missing),
            ("lag", counts.relists_lag),
            ("compacted", counts.relists_compacted),
        ];
        page.values(&RELISTS, causes.map(|(cause, count)| ([cause], count as f64)));
        page.value(&REPEATED, counts.repeated_events as f64);
        page.value(&REOPENED, counts.watches_reopened as f64);
        page.value(&FAILOVERS, counts.failovers as f64);
        page.value(&SPACE, self.0.space.percent() as f64 / 100.0);
    }
}
