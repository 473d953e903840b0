//! Metrics: what is counted and measured, and the page that shows it to Prometheus.
//!
//! ```text
//! a component's struct of values (atomics) <- the work
//!        ^
//!      Source::collect <- Exporter (one a process) <- GET /metrics
//! ```
//!
//! Recording is a few atomic additions: it never locks, allocates, waits or fails. Reading happens when somebody asks,
//! and what is a state rather than an event (depths, ages, owners) is looked at only then. Each family is declared once,
//! as a `Family`, whose labels have a bounded number of values: kinds and outcomes are labels, names never are.

mod endpoint;
mod exporter;
mod family;
mod process;
mod values;

pub use endpoint::serve;
pub use exporter::{Exporter, Page, Source};
pub use family::{Family, Type};
pub use process::FAMILIES as PROCESS_FAMILIES;
pub use values::{Counter, Exemplars, Gauge, Histogram, SECONDS, Timer};

#[cfg(test)]
mod tests;
