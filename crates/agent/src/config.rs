//! Everything that can be set, with its default.

use std::{collections::BTreeMap, time::Duration};

use telemetry::trace::Tracer;

use crate::plan::Backoff;

#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name, and the agent's.
    pub node: String,
    pub labels: BTreeMap<String, String>,
    /// How long the store takes the node to be alive without hearing from it.
    pub session_ttl: Duration,
    pub backoff: Backoff,
    /// Between two complete lists of what is assigned here, in the mean; half of it more or less by chance.
    pub sweep: Duration,
    /// The longest pause before a call is tried again: well under the session's TTL.
    pub redial_max: Duration,
    /// After which a call counts as lost.
    pub call_timeout: Duration,
    /// Instances that are started at the same time.
    pub starts_max: usize,
    pub tracer: Tracer,
}

impl Config {
    pub fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            labels: BTreeMap::new(),
            session_ttl: Duration::from_secs(5),
            backoff: Backoff::default(),
            sweep: Duration::from_secs(30),
            redial_max: Duration::from_secs(1),
            call_timeout: Duration::from_secs(5),
            starts_max: 8,
            tracer: Tracer::off(),
        }
    }
}
