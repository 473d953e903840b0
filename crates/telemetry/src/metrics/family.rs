//! What a metric is called and means: declared once, shown on the page and in the documentation's table.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Counter,
    Gauge,
    Histogram,
}

impl Type {
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Samples of one name, which differ in their labels.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// In base units, which it ends with; counters end with `_total`.
    pub name: &'static str,
    pub metric_type: Type,
    pub labels: &'static [&'static str],
    /// A sentence without its full stop.
    pub help: &'static str,
}

impl Family {
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, metric_type: Type::Counter, labels, help }
    }

    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, metric_type: Type::Gauge, labels, help }
    }

    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, metric_type: Type::Histogram, labels, help }
    }
}
