//! One page of everything that a process measures: who contributes, and how it's written.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    sync::{Arc, PoisonError, RwLock},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text, text},
    metrics::MetricType,
    registry::Registry,
};

use super::{
    Exemplars, Family, Histogram, Type,
    process::{Process, Ready},
};

/// A component that has something to show. Asked for each page, by whoever answers a scrape.
pub trait Source: Send + Sync {
    /// What it shows; no other source shows the same family.
    fn families(&self) -> &'static [Family];

    fn collect(&self, page: &mut Page<'_>);
}

/// Whether a role can do its work, and if not, why.
type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a process shows. Grows while its roles start.
#[derive(Default)]
pub struct Exporter {
    sources: RwLock<Vec<Arc<dyn Source>>>,
    checks: RwLock<BTreeMap<&'static str, Check>>,
}

impl Exporter {
    /// With what every process shows of itself. `roles` are not ready before they say so by `check`.
    pub fn new(name: &'static str, version: &'static str, roles: &[&'static str]) -> Self {
        let exporter = Self::default();
        exporter.add(Arc::new(Process { role: name, version }));
        roles.iter().for_each(|role| exporter.check(role, || Err("it is starting".into())));
        exporter
    }

    pub fn add(&self, source: Arc<dyn Source>) {
        self.sources.write().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// Replaces what was known of the role. The process is ready when all of its roles are.
    pub fn check(&self, role: &'static str, ready: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.checks.write().unwrap_or_else(PoisonError::into_inner).insert(role, Box::new(ready));
    }

    fn readiness(&self) -> Vec<(&'static str, Result<(), String>)> {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        checks.iter().map(|(role, check)| (*role, check())).collect()
    }

    /// Why it isn't ready, role by role; empty when it is.
    pub fn not_ready(&self) -> Vec<String> {
        let failed = |(role, ready): (&str, Result<(), String>)| ready.err().map(|why| format!("{role}: {why}"));
        self.readiness().into_iter().filter_map(failed).collect()
    }

    /// In OpenMetrics, with exemplars, or in the older text.
    pub fn page(&self, openmetrics: bool) -> Result<String, fmt::Error> {
        let ready = self.readiness().into_iter().map(|(role, ready)| (role, ready.is_ok())).collect();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Collected(Arc::new(Ready(ready)))));
        for source in self.sources.read().unwrap_or_else(PoisonError::into_inner).iter() {
            registry.register_collector(Box::new(Collected(source.clone())));
        }
        let mut page = String::new();
        match openmetrics {
            true => text::encode(&mut page, &registry)?,
            false => prometheus_text::encode(&mut page, &registry)?,
        }
        Ok(page)
    }
}

/// The page in writing.
pub struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
    /// The first failure; the rest is left out then.
    written: fmt::Result,
}

impl Page<'_> {
    /// A counter or gauge without labels.
    pub fn value(&mut self, family: &Family, value: f64) {
        self.values::<0>(family, [([], value)]);
    }

    /// Counters or gauges, by the values of the family's labels.
    pub fn values<'r, const N: usize>(&mut self, family: &Family, rows: impl IntoIterator<Item = ([&'r str; N], f64)>) {
        self.rows(family, rows, |mut encoder, value| match family.metric_type {
            Type::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(value, None),
            _ => encoder.encode_gauge(value),
        });
    }

    pub fn histograms<'h, const N: usize>(
        &mut self,
        family: &Family,
        rows: impl IntoIterator<Item = ([&'h str; N], &'h Histogram)>,
    ) {
        self.rows(family, rows, |mut encoder, histogram| {
            let (sum, buckets) = histogram.read();
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        });
    }

    pub fn exemplars(&mut self, family: &Family, exemplars: &Exemplars) {
        let all = exemplars.read();
        let rows = all.iter().map(|(label, histogram)| ([*label], histogram));
        self.rows(family, rows, |encoder, histogram| histogram.encode(encoder));
    }

    fn rows<'r, T, const N: usize>(
        &mut self,
        family: &Family,
        rows: impl IntoIterator<Item = ([&'r str; N], T)>,
        write: impl Fn(MetricEncoder<'_>, &T) -> fmt::Result,
    ) {
        debug_assert_eq!(family.labels.len(), N, "{} has other labels", family.name);
        if self.written.is_ok() {
            self.written = self.try_rows(family, rows, write);
        }
    }

    fn try_rows<'r, T, const N: usize>(
        &mut self,
        family: &Family,
        rows: impl IntoIterator<Item = ([&'r str; N], T)>,
        write: impl Fn(MetricEncoder<'_>, &T) -> fmt::Result,
    ) -> fmt::Result {
        let metric_type = match family.metric_type {
            Type::Counter => MetricType::Counter,
            Type::Gauge => MetricType::Gauge,
            Type::Histogram => MetricType::Histogram,
        };
        // The encoder adds what each of its formats wants.
        let name = family.name.strip_suffix("_total").unwrap_or(family.name);
        let help = format!("{}.", family.help);
        let mut encoder = self.encoder.encode_descriptor(name, &help, None, metric_type)?;
        for (labels, value) in rows {
            let labels: Vec<(&str, &str)> = family.labels.iter().copied().zip(labels).collect();
            write(encoder.encode_family(&labels)?, &value)?;
        }
        Ok(())
    }
}

struct Collected(Arc<dyn Source>);

impl Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Collected").field(&self.0.families().len()).finish()
    }
}

impl Collector for Collected {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page { encoder, written: Ok(()) };
        self.0.collect(&mut page);
        page.written
    }
}
