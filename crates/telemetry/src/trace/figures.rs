//! What became of the spans, for `/metrics`.

use super::Tracer;
use crate::metrics::{Family, Page, Source};

const SPANS: Family = Family::counter(
    "driftless_trace_spans_total",
    &["outcome"],
    "Spans that the receiver took (exported) or didn't take (failed), or that there was no room for (dropped)",
);

pub const FAMILIES: &[Family] = &[SPANS];

/// For one part of a process: the counts are of all parts together.
impl Source for Tracer {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&self, page: &mut Page<'_>) {
        let counts = self.counts();
        let rows = [("exported", counts.exported), ("dropped", counts.dropped), ("failed", counts.failed)];
        page.values(&SPANS, rows.map(|(outcome, count)| ([outcome], count as f64)));
    }
}
