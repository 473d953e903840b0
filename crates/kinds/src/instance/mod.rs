//! Instance: one process tree on one node. Made by a Service's plan, bound by placement, run and reported by an agent.

use std::{any::Any as StdAny, sync::Arc, time::Duration};

use api::v1;
use bytes::Bytes;
use model::{Conditions, Domain, Time, Violation, Why, fields::Fields};

use crate::{Column, Info, Kind, Rights, Template, registry::changed_condition, text, typed};

mod variables;

pub use variables::{expand, port_variable, unset};

pub const KIND: &str = "Instance";
pub const SPEC: &str = "driftless.v1.InstanceSpec";
pub const STATUS: &str = "driftless.v1.InstanceStatus";
/// Why it has no node; written by placement, absent where it never had to wait.
pub const PLACED: &str = "Placed";
/// False where its node can't enforce its limits, which keeps nothing from running.
const LIMITED: &str = "Limited";
/// Reason of an agent's condition of a process that runs, while a check of it fails.
const CHECK_FAILING: &str = "CheckFailing";
const CHECKS_FAILING: &str = "ChecksFailing";
/// False where it couldn't be.
const STARTED: &str = "Started";
/// True where it came up against its limits since it was started.
pub const LIMITS_REACHED: &str = "LimitsReached";
pub const READY: &str = "Ready";
/// It ended by itself, with code 0, where its restart policy takes that for the end.
pub const FINISHED: &str = "Finished";
/// The same after any other end.
pub const FAILED: &str = "Failed";
/// All that an agent says; "Pending" is also what nobody said anything of.
pub const PHASES: [&str; 7] = ["Pending", "Starting", "Running", "BackOff", "Stopping", FINISHED, FAILED];

/// A run of that length ends a crash loop: the next restart counts as the first again.
pub const STABLE: Duration = Duration::from_secs(10);
/// Restarts in a row, none after a stable run, that make a crash loop. The first is done at once and may be an accident.
const LOOP: u32 = 2;
/// How long what has no readiness check must have run until that is taken for an answer. What can't work mostly ends
/// within a second.
pub const UNCHECKED_PROOF: Duration = Duration::from_secs(2);

/// Between SIGTERM and SIGKILL where nothing else is declared.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// The shortest `on_disconnect.stop_after`. Servers say something at least every 5 s, and a node's session ends after 5 s
/// without its word: twice that, so that a server may go away without anything being stopped.
pub const STOP_AFTER_MIN: Duration = Duration::from_secs(10);
/// What is added to `stop_after` and the grace until the tree has surely gone: 2 s that two servers' clocks may differ, 2 s
/// for a killed tree to end, 1 s for words on their way.
pub const GONE_MARGIN: Duration = Duration::from_secs(5);

/// `evict`, which users and the leader write.
const EVICT: u32 = 10;

/// What keeps an instance from being ready, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeps {
    /// It ended, or couldn't be started.
    Failing,
    /// It fits on no node.
    Unplaceable,
    /// It runs, and a check of it doesn't pass: for want of time, mostly.
    ChecksFailing,
}

impl Keeps {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Failing => "Failing",
            Self::Unplaceable => "Unplaceable",
            Self::ChecksFailing => CHECKS_FAILING,
        }
    }
}

/// An instance as decisions see it.
#[derive(Clone, Debug)]
pub struct Instance {
    pub node: String,
    pub node_uid: String,
    pub slot: u32,
    pub template_hash: String,
    pub phase: String,
    pub ready: bool,
    /// Since when, by a server's clock.
    pub ready_since: Option<Time>,
    /// Restarts since it last ran stably.
    pub failures: u32,
    /// Somebody asked for it to go.
    pub evict: Option<v1::Eviction>,
    pub conditions: Vec<v1::Condition>,
    pub last_exit: Option<v1::Exit>,
    /// What placement reserves.
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    /// Where it ends by itself once its node hears no server: so long after the last word nothing of it is left.
    pub gone_within: Option<GoneWithin>,
}

/// The parts of which a bound on the end of what was cut off is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoneWithin {
    pub stop_after: Duration,
    pub stop_grace: Duration,
}

impl GoneWithin {
    pub fn of(template: Option<&v1::InstanceTemplate>) -> Option<Self> {
        let template = template?;
        let stop_grace = text::duration(template.stop_grace.as_ref(), STOP_GRACE).unwrap_or(STOP_GRACE);
        Some(Self { stop_after: stop_after(template)?, stop_grace })
    }

    pub fn time(self) -> Duration {
        self.stop_after.saturating_add(self.stop_grace).saturating_add(GONE_MARGIN)
    }
}

/// After how long without a server's word it is stopped, where that is declared.
pub fn stop_after(template: &v1::InstanceTemplate) -> Option<Duration> {
    let declared = template.on_disconnect.as_ref()?.stop_after.as_ref()?;
    Some(text::duration(Some(declared), STOP_AFTER_MIN).unwrap_or(STOP_AFTER_MIN).max(STOP_AFTER_MIN))
}

impl Instance {
    pub fn condition(&self, condition_type: &str) -> Option<&v1::Condition> {
        self.conditions.iter().find(|c| c.r#type == condition_type)
    }

    /// All that the leader says of it, which each of its words replaces as a whole.
    pub fn leaders(&self) -> v1::InstanceStatus {
        let conditions = self.condition(PLACED).cloned().into_iter().collect();
        v1::InstanceStatus { evict: self.evict.clone(), conditions, ..Default::default() }
    }

    /// It ran to its end and won't run again: nothing of it is left to run, and what it was for is done.
    pub fn is_finished(&self) -> bool {
        self.phase == FINISHED
    }

    pub fn is_looping(&self) -> bool {
        self.failures >= LOOP
    }

    /// From when on it counts as ready where it's ready now, and must have been so for `min_ready`.
    pub fn counts_from(&self, min_ready: Duration) -> Time {
        let proof = if self.is_looping() { min_ready.max(STABLE) } else { min_ready };
        self.ready_since.map_or(Time::default(), |since| since.plus(proof))
    }

    /// Why it doesn't count as ready yet though it is: it ended too often.
    pub fn unproven(&self) -> String {
        let (times, stable) = (self.failures, STABLE.as_secs());
        format!("ended {times} times in a row; counts as ready once it has run for {stable} s")
    }

    /// Its node can't enforce all limits that it declares.
    pub fn is_unlimited(&self) -> bool {
        self.conditions.iter().any(is_unlimited)
    }

    /// What keeps it from being ready, in words without moving values.
    pub fn trouble(&self) -> Option<(Keeps, String)> {
        let placed = self.condition(PLACED).filter(|c| c.status == "False");
        let keeps = |c: &&v1::Condition| ![PLACED, READY, LIMITED].contains(&c.r#type.as_str());
        let failed = self.conditions.iter().filter(keeps).find(|c| c.status == "False");
        match (placed, failed, &self.last_exit) {
            (Some(placed), ..) => Some((Keeps::Unplaceable, placed.message.clone())),
            (None, Some(failed), _) => {
                let checks = failed.reason == CHECK_FAILING;
                Some((if checks { Keeps::ChecksFailing } else { Keeps::Failing }, failed.message.clone()))
            }
            (None, None, Some(exit)) if matches!(self.phase.as_str(), "BackOff" | "Failed") => {
                Some((Keeps::Failing, exit_words(exit)))
            }
            _ => None,
        }
    }
}

/// It ended, and won't run again.
pub fn is_over(status: &v1::InstanceStatus) -> bool {
    [FINISHED, FAILED].contains(&status.phase.as_str())
}

/// Why it never ran, as far as that is told; none where it did.
pub fn unstarted(status: &v1::InstanceStatus) -> Option<&str> {
    let cannot =
        status.conditions.iter().find(|c| [STARTED, PLACED].contains(&c.r#type.as_str()) && c.status == "False");
    let waits = matches!(status.phase.as_str(), "" | "Pending");
    (cannot.is_some() || waits).then(|| cannot.map_or("", |c| c.message.as_str()))
}

/// What happened between two statuses, the most telling first. No sentence: it's said of one or of several.
fn is_unlimited(condition: &v1::Condition) -> bool {
    condition.r#type == LIMITED && condition.status == "False"
}

fn news(before: &v1::InstanceStatus, after: &v1::InstanceStatus) -> Option<Why> {
    let again = if after.restarts > before.restarts { "; started again" } else { "" };
    let ready = after.conditions.iter().find(|c| c.r#type == READY);
    if let Some(exit) = after.last_exit.as_ref().filter(|exit| before.last_exit.as_ref() != Some(exit)) {
        return Some(Why::new("Exited", format!("{}{again}", exit_words(exit))));
    }
    match (before.ready, after.ready) {
        (false, true) if !again.is_empty() => Some(Why::new("Ready", "started again, and ready")),
        (false, true) => Some(Why::new("Ready", "ready")),
        (true, false) => {
            let why = ready.map(|c| if c.message.is_empty() { c.reason.as_str() } else { c.message.as_str() });
            Some(Why::new("NotReady", format!("no longer ready: {}", why.unwrap_or("the agent doesn't say why"))))
        }
        _ if !again.is_empty() => Some(Why::new("Started", "started again, not ready yet")),
        _ if before.phase != after.phase => Some(match after.phase.as_str() {
            "Starting" => Why::new("Started", "started; its startup check has not passed yet"),
            "Running" => Why::new("Started", "running, not ready yet"),
            "Stopping" => Why::new("Stopping", "being stopped"),
            "BackOff" => Why::new("Phase", "not running; to be started again after a pause"),
            "Pending" => Why::new("Phase", "not started yet"),
            "Failed" => Why::new("Phase", "failed, and won't be started again"),
            phase => Why::new("Phase", phase.to_lowercase()),
        }),
        _ => None,
    }
}

fn exit_words(exit: &v1::Exit) -> String {
    let how = match (exit.code, exit.signal) {
        _ if exit.reason == "OutOfMemory" => "needed more memory than its limit".into(),
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => exit.reason.clone(),
    };
    match exit.log_tail.lines().last() {
        Some(line) => format!("{how}: {line}"),
        None => how,
    }
}

/// How long an instance of that template must have been ready until it's believed to work.
pub fn proof(template: Option<&v1::InstanceTemplate>) -> Duration {
    let checked = template.and_then(|t| t.health.as_ref()).is_some_and(|health| health.readiness.is_some());
    if checked { Duration::ZERO } else { UNCHECKED_PROOF }
}

static INFO: Info = Info {
    kind: KIND,
    plural: "instances",
    short: &["inst"],
    namespaced: true,
    global: false,
    declared: false,
    spec_type: SPEC,
    status_type: STATUS,
    columns: &[
        Column::new("NODE"),
        Column::new("PHASE"),
        Column::new("READY"),
        Column::new("RESTARTS"),
        Column::new("VERSION"),
        Column::wide("PID"),
        Column::wide("PORTS"),
        Column::wide("SLOT"),
    ],
};

pub struct InstanceKind;

impl Kind for InstanceKind {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn admit(&self, _spec: &Bytes) -> Result<Template, Vec<Violation>> {
        Ok(Template::default())
    }

    fn rights(&self, domain: Domain) -> Rights {
        match domain {
            Domain::User => Rights { delete: true, status: Fields::Only(&[EVICT]), ..Rights::NONE },
            Domain::Shard => {
                Rights { create: true, delete: true, remove: true, spec: Fields::AllBut(&[1, 2]), ..Rights::NONE }
            }
            Domain::Leader => Rights {
                spec: Fields::Only(&[1, 2]),
                status: Fields::Only(&[EVICT]),
                conditions: Conditions::Only(&[PLACED]),
                ..Rights::NONE
            },
            Domain::Agent => Rights {
                remove: true,
                status: Fields::AllBut(&[EVICT]),
                conditions: Conditions::AllBut(&[PLACED]),
                ..Rights::NONE
            },
        }
    }

    fn parse(&self, resource: &v1::Resource) -> Result<Arc<dyn StdAny + Send + Sync>, Violation> {
        let spec: v1::InstanceSpec = typed("spec", resource.spec.as_ref())?;
        let status: v1::InstanceStatus = typed("status", resource.status.as_ref())?;
        let gone_within = GoneWithin::of(spec.template.as_ref());
        let requests = spec.template.and_then(|t| t.resources).and_then(|r| r.requests).unwrap_or_default();
        let ready = status.conditions.iter().find(|c| c.r#type == READY && c.status == "True");
        Ok(Arc::new(Instance {
            ready_since: ready.and_then(|c| c.last_transition_time.as_ref()).map(Time::from),
            failures: u32::try_from(status.failures).unwrap_or(0),
            evict: status.evict,
            node: spec.node,
            node_uid: spec.node_uid,
            slot: u32::try_from(spec.slot).unwrap_or(0),
            template_hash: spec.template_hash,
            phase: status.phase,
            ready: status.ready,
            conditions: status.conditions,
            last_exit: status.last_exit,
            cpu_millis: text::cpu_millis(&requests.cpu).unwrap_or(0),
            memory_bytes: text::memory_bytes(&requests.memory).unwrap_or(0),
            gone_within,
        }))
    }

    fn news(&self, before: &v1::Resource, after: Option<&v1::Resource>) -> Why {
        let status = |resource: &v1::Resource| typed("status", resource.status.as_ref()).unwrap_or_default();
        match after {
            None => Why::new("Gone", "its process tree is gone"),
            Some(after) => news(&status(before), &status(after))
                .or_else(|| changed_condition(before, Some(after)))
                .unwrap_or_else(|| Why::new("Observed", "its status was reported")),
        }
    }

    fn amiss(&self, condition: &v1::Condition) -> bool {
        // That it came up against its limits is told only where it did.
        (condition.status == "True") == (condition.r#type == LIMITS_REACHED)
    }

    /// That a limit which it asks for isn't enforced on its node.
    fn caveat(&self, resource: &v1::Resource) -> Option<String> {
        let status: v1::InstanceStatus = typed("status", resource.status.as_ref()).ok()?;
        status.conditions.into_iter().find(is_unlimited).map(|limited| limited.message)
    }

    fn asked_to_go(&self, resource: &v1::Resource) -> Option<String> {
        let status: v1::InstanceStatus = typed("status", resource.status.as_ref()).unwrap_or_default();
        let by = status.evict?.requested_by;
        Some(format!("asked to go by {by}, stays until its service's disruption budget lets it go"))
    }

    fn proof(&self, resource: &v1::Resource) -> Duration {
        let spec: v1::InstanceSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        proof(spec.template.as_ref())
    }

    fn node(&self, resource: &v1::Resource) -> Option<String> {
        let spec: v1::InstanceSpec = typed("spec", resource.spec.as_ref()).ok()?;
        (!spec.node.is_empty()).then_some(spec.node)
    }

    fn row(&self, resource: &v1::Resource) -> Vec<String> {
        let spec: v1::InstanceSpec = typed("spec", resource.spec.as_ref()).unwrap_or_default();
        let status: v1::InstanceStatus = typed("status", resource.status.as_ref()).unwrap_or_default();
        let ports: Vec<String> = status.ports.iter().map(|(name, port)| format!("{name}:{port}")).collect();
        let deleting = resource.metadata.as_ref().is_some_and(|m| m.deletion_time.is_some());
        let phase = match (deleting, status.phase.as_str()) {
            (true, _) => "Stopping",
            (false, "") => "Pending",
            (false, phase) => phase,
        };
        vec![
            spec.node,
            phase.to_owned(),
            status.ready.to_string(),
            status.restarts.to_string(),
            spec.version,
            if status.pid == 0 { String::new() } else { status.pid.to_string() },
            ports.join(","),
            spec.slot.to_string(),
        ]
    }
}
