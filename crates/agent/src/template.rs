//! What one instance runs, read from its spec once, with every documented default filled in. Nothing else in this crate
//! knows a default of the template.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use api::v1;
use kinds::instance::{self, STOP_GRACE};
pub use kinds::instance::{expand, port_variable};

#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub ports: Vec<Port>,
    pub startup: Option<Check>,
    pub readiness: Option<Check>,
    pub liveness: Option<Check>,
    pub stop_grace: Duration,
    pub restart: Restart,
    pub working_dir: Option<PathBuf>,
    /// What the node enforces where its kernel allows.
    pub limits: Limits,
    /// It's stopped so long after the node was last heard by a server.
    pub stop_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u64>,
}

impl Limits {
    /// One of each, to ask what can be enforced at all.
    pub const EVERY: Self = Self { cpu_millis: Some(1_000), memory_bytes: Some(1 << 20), pids: Some(1) };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    /// None: any free one.
    pub fixed: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    #[default]
    Always,
    OnFailure,
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub probe: Probe,
    pub interval: Duration,
    pub timeout: Duration,
    /// In a row, until healthy.
    pub successes: u32,
    /// In a row, until unhealthy.
    pub failures: u32,
}

/// A port is named; the first one where the name is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    Http { path: String, port: String },
    Tcp { port: String },
    Exec { command: Vec<String> },
    Grpc { port: String, service: String },
}

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const LIVENESS_INTERVAL: Duration = Duration::from_secs(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
const FAILURES: u32 = 3;
const STARTUP_FAILURES: u32 = 60;

impl From<&v1::InstanceTemplate> for Template {
    fn from(template: &v1::InstanceTemplate) -> Self {
        let health = template.health.clone().unwrap_or_default();
        let check =
            |check: Option<v1::Check>, interval, failures| check.and_then(|c| read_check(c, interval, failures));
        Self {
            command: template.command.clone(),
            env: template.env.clone(),
            ports: template.ports.iter().map(read_port).collect(),
            startup: check(health.startup, CHECK_INTERVAL, STARTUP_FAILURES),
            readiness: check(health.readiness, CHECK_INTERVAL, FAILURES),
            liveness: check(health.liveness, LIVENESS_INTERVAL, FAILURES),
            stop_grace: duration(template.stop_grace.as_ref(), STOP_GRACE),
            restart: match template.restart.as_str() {
                "OnFailure" => Restart::OnFailure,
                "Never" => Restart::Never,
                _ => Restart::Always,
            },
            limits: read_limits(template.resources.as_ref().and_then(|r| r.limits.as_ref())),
            stop_after: instance::stop_after(template),
            working_dir: (!template.working_dir.is_empty()).then(|| template.working_dir.clone().into()),
        }
    }
}

impl Template {
    /// The port that a check means.
    pub fn port<'a>(&self, name: &str, ports: &'a BTreeMap<String, u16>) -> Option<&'a u16> {
        match name {
            "" => ports.get(&self.ports.first()?.name),
            name => ports.get(name),
        }
    }
}

fn read_limits(amounts: Option<&v1::Amounts>) -> Limits {
    let amounts = amounts.cloned().unwrap_or_default();
    Limits {
        cpu_millis: kinds::cpu_millis(&amounts.cpu).filter(|n| *n > 0),
        memory_bytes: kinds::memory_bytes(&amounts.memory).filter(|n| *n > 0),
        pids: u64::try_from(amounts.pids).ok().filter(|n| *n > 0),
    }
}

fn read_port(port: &v1::Port) -> Port {
    Port { name: port.name.clone(), fixed: u16::try_from(port.port).ok().filter(|p| *p != 0) }
}

fn read_check(check: v1::Check, interval: Duration, failures: u32) -> Option<Check> {
    let probe = match check {
        v1::Check { http: Some(http), .. } => Probe::Http { path: http.path, port: http.port },
        v1::Check { tcp: Some(tcp), .. } => Probe::Tcp { port: tcp.port },
        v1::Check { exec: Some(exec), .. } => Probe::Exec { command: exec.command },
        v1::Check { grpc: Some(grpc), .. } => Probe::Grpc { port: grpc.port, service: grpc.service },
        _ => return None,
    };
    let count = |n: i32, default: u32| u32::try_from(n).ok().filter(|n| *n > 0).unwrap_or(default);
    Some(Check {
        probe,
        interval: duration(check.interval.as_ref(), interval),
        timeout: duration(check.timeout.as_ref(), CHECK_TIMEOUT),
        successes: count(check.success_threshold, 1),
        failures: count(check.failure_threshold, failures),
    })
}

fn duration(duration: Option<&prost_types::Duration>, default: Duration) -> Duration {
    let read = duration.map(|d| Duration::try_from(*d).unwrap_or_default());
    read.filter(|d| !d.is_zero()).unwrap_or(default)
}
