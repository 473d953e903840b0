//! How the work is seen from outside: spans in [`trace`], figures in [`metrics`], and what the log is
//! spared of failures that repeat in [`spell`].
//!
//! Everything here watches and nothing here decides: no outcome, order or time of the work may depend on it. A collector
//! that is down, slow or failing costs a counter and a bounded amount of memory, never a wait.
//!
//! The names of spans and metrics are an interface: docs/TELEMETRY.md lists them, and a test compares.

pub mod metrics;
pub mod spell;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;
