//! Settings of a controller, with their defaults.

use std::time::Duration;

use telemetry::trace::Tracer;

/// Every bound of the runtime.
#[derive(Clone, Debug)]
pub struct Config {
    /// What people see in `get shards` and in histories.
    pub name: String,
    /// The session's TTL, judged by the store's clock.
    pub ttl: Duration,
    /// Every resource is looked at again about this often (each time between half and one and a half of it).
    pub sweep: Duration,
    /// Keys in work at the same time.
    pub workers: usize,
    /// Pause after a key's first failure; doubles with each, with full jitter.
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    /// Longest pause between two tries to reach a server: well under the TTL.
    pub redial_max: Duration,
    /// A claim without an owner for so long is taken by anyone who sees it, whoever should.
    pub orphan_guard: Duration,
    /// One commit's deadline; after it the outcome is unknown.
    pub commit_timeout: Duration,
    /// Claim changes under way at the same time.
    pub claims_in_flight: usize,
    /// Longest wait for others to take the claims over when shutting down.
    pub leave_timeout: Duration,
    pub tracer: Tracer,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "controller".into(),
            ttl: Duration::from_secs(5),
            sweep: Duration::from_secs(30),
            workers: 16,
            backoff_min: Duration::from_millis(5),
            backoff_max: Duration::from_secs(30),
            redial_max: Duration::from_secs(1),
            orphan_guard: Duration::from_secs(2),
            commit_timeout: Duration::from_secs(5),
            claims_in_flight: 32,
            leave_timeout: Duration::from_secs(4),
            tracer: Tracer::off(),
        }
    }
}
