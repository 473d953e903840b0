//! Admission: from a declared message to a Service that can't be wrong.

use std::time::Duration;

use api::{brief, manifest::Range, v1};
use bytes::Bytes;
use model::Violation;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::{MinReady, Service, sensible};
use crate::{
    Template,
    instance::{self, STOP_AFTER_MIN, STOP_GRACE},
    text::{Checker, cpu_millis, duration, env_name, memory_bytes},
};

/// Instances of one service.
pub const REPLICAS_MAX: i32 = 10_000;
const PERCENT_MAX: i32 = 100;
const PORT_MAX: i32 = 65_535;
pub static RANGES: [Range<'static>; 7] = [
    ("driftless.v1.ServiceSpec.replicas", 0..=REPLICAS_MAX),
    ("driftless.v1.ServiceSpec.min_available", 0..=REPLICAS_MAX),
    ("driftless.v1.Rollout.max_surge", 0..=REPLICAS_MAX),
    ("driftless.v1.Rollout.max_surge_percent", 0..=PERCENT_MAX),
    ("driftless.v1.Rollout.max_unavailable", 0..=REPLICAS_MAX),
    ("driftless.v1.Rollout.max_unavailable_percent", 0..=PERCENT_MAX),
    ("driftless.v1.Port.port", 0..=PORT_MAX),
];
const ENV_MAX: usize = 200;
pub const PORTS_MAX: usize = 32;
/// Bytes of one argument or environment value; Linux refuses 128 KiB and more.
const TEXT_MAX: usize = 100 * 1024;
const LOST_AFTER: Duration = Duration::from_secs(30);
const GRACE_MAX: Duration = Duration::from_secs(24 * 3600);

pub fn admit(spec: &Bytes) -> Result<Template, Vec<Violation>> {
    let spec = v1::ServiceSpec::decode(spec.clone()).map_err(|e| vec![Violation::new("spec", e.to_string())])?;
    let service = match (service(&spec), sensible::violations(&spec)) {
        (Ok(service), found) if found.is_empty() => service,
        (read, found) => return Err(read.err().into_iter().flatten().chain(found).collect()),
    };
    Ok(Template { hash: template_hash(&spec), warnings: sensible::warnings(&spec, &service) })
}

/// Digest of what instances are made from: the declared template and version, undefaulted, maps sorted (they are
/// `BTreeMap`s here). Stored at admission; never computed anew for a stored resource.
pub fn template_hash(spec: &v1::ServiceSpec) -> String {
    let identity =
        v1::ServiceSpec { version: spec.version.clone(), template: spec.template.clone(), ..Default::default() };
    // 40 bits: one service would need a million templates for an even chance of two alike.
    format!("{:010x}", xxh3_64(&identity.encode_to_vec()) >> 24)
}

/// Reads a spec, or says everything that is wrong with it.
pub fn service(spec: &v1::ServiceSpec) -> Result<Service, Vec<Violation>> {
    let mut check = Checker::default();
    let declared = spec.replicas.unwrap_or(1);
    let replicas = bounded(&mut check, "spec.replicas", declared, REPLICAS_MAX);
    let template = spec.template.clone().unwrap_or_default();
    check.require(
        spec.template.is_some(),
        "spec.template",
        "missing: say what to run, e.g. template: {command: [sleep, '60']}",
    );
    if spec.template.is_some() {
        check_template(&mut check, &template);
    }
    let (surge, unavailable) = rollout(&mut check, spec.rollout.as_ref(), replicas);
    let floor = replicas.saturating_sub(unavailable);
    let min_available =
        spec.min_available.map_or(floor, |n| bounded(&mut check, "spec.min_available", n, REPLICAS_MAX));
    let lost_after = duration(spec.lost_after.as_ref(), LOST_AFTER);
    let lost_after = check.read(lost_after, LOST_AFTER, "spec.lost_after", "must not be negative");
    check.require(spec.version.len() <= 128, "spec.version", "at most 128 bytes");
    let rollout = spec.rollout.unwrap_or_default();
    let progress_deadline = rollout.progress_deadline.as_ref().map(|d| {
        let positive = duration(Some(d), Duration::ZERO).filter(|d| *d > Duration::ZERO);
        check.read(positive, Duration::from_secs(1), "spec.rollout.progress_deadline", "must be more than 0s")
    });
    let min_ready = min_ready(&mut check, &rollout, &template, progress_deadline);
    check.require(
        !rollout.auto_rollback || progress_deadline.is_some(),
        "spec.rollout.auto_rollback",
        "needs a progress_deadline: without one no rollout ever counts as failed",
    );
    let service = Service {
        replicas,
        version: spec.version.clone(),
        template,
        surge,
        unavailable,
        min_available,
        lost_after,
        min_ready,
        progress_deadline,
        auto_rollback: rollout.auto_rollback,
        pause: rollout.pause(),
        status: v1::ServiceStatus::default(),
    };
    if check.violations.is_empty() { Ok(service) } else { Err(check.violations) }
}

/// By default at most half of the deadline, or nothing could ever make progress.
fn min_ready(
    check: &mut Checker,
    rollout: &v1::Rollout,
    template: &v1::InstanceTemplate,
    deadline: Option<Duration>,
) -> MinReady {
    let Some(declared) = &rollout.min_ready else {
        let proof = instance::proof(Some(template));
        return MinReady::Unchecked(deadline.map_or(proof, |deadline| proof.min(deadline / 2)));
    };
    let declared = duration(Some(declared), Duration::ZERO);
    MinReady::Declared(check.read(declared, Duration::ZERO, "spec.rollout.min_ready", "must not be negative"))
}

fn bounded(check: &mut Checker, field: &str, value: i32, most: i32) -> usize {
    check.require((0..=most).contains(&value), field, format!("is {value}; must be from 0 to {most}"));
    usize::try_from(value.clamp(0, most)).unwrap_or(0)
}

fn rollout(check: &mut Checker, rollout: Option<&v1::Rollout>, replicas: usize) -> (usize, usize) {
    let rollout = rollout.copied().unwrap_or_default();
    let surge =
        share(check, "max_surge", rollout.max_surge, rollout.max_surge_percent, |p| (replicas * p).div_ceil(100));
    let unavailable = share(check, "max_unavailable", rollout.max_unavailable, rollout.max_unavailable_percent, |p| {
        replicas * p / 100
    });
    let said_nothing = rollout.max_surge.is_none() && rollout.max_surge_percent.is_none();
    let surge = if said_nothing { 1 } else { surge };
    check.require(
        surge > 0 || unavailable > 0 || replicas == 0,
        "spec.rollout",
        "max_surge and max_unavailable are both 0, so nothing could ever be replaced; raise one of them",
    );
    (surge, unavailable)
}

fn share(
    check: &mut Checker,
    field: &str,
    absolute: Option<i32>,
    percent: Option<i32>,
    of: impl Fn(usize) -> usize,
) -> usize {
    let path = format!("spec.rollout.{field}");
    check.require(absolute.is_none() || percent.is_none(), &path, format!("set {field} or {field}_percent, not both"));
    match (absolute, percent) {
        (Some(n), _) => bounded(check, &path, n, REPLICAS_MAX),
        (None, Some(p)) => of(bounded(check, &format!("{path}_percent"), p, PERCENT_MAX)),
        (None, None) => 0,
    }
}

fn check_template(check: &mut Checker, template: &v1::InstanceTemplate) {
    let at = "spec.template";
    let program = template.command.first().map_or("", String::as_str);
    check.require(
        !program.is_empty(),
        &format!("{at}.command"),
        "missing: program and arguments, e.g. [python3, -m, http.server]",
    );
    for (i, argument) in template.command.iter().enumerate() {
        check_text(check, &format!("{at}.command[{i}]"), argument);
    }
    check.require(template.env.len() <= ENV_MAX, &format!("{at}.env"), format!("more than {ENV_MAX} variables"));
    for (name, value) in &template.env {
        let plain = env_name(name);
        check.require(
            plain,
            &format!("{at}.env[{name:?}]"),
            "a name holds letters, digits and '_', and starts with no digit",
        );
        check_text(check, &format!("{at}.env[{name:?}]"), value);
    }
    for (i, from) in template.env_from.iter().enumerate() {
        check.require(!from.config.is_empty(), &format!("{at}.env_from[{i}].config"), "missing: a Config's name");
        let plain = from.prefix.is_empty() || env_name(&from.prefix);
        check.require(
            plain,
            &format!("{at}.env_from[{i}].prefix"),
            "letters, digits and '_', not starting with a digit",
        );
    }
    if let Some(stop_after) = template.on_disconnect.as_ref().and_then(|d| d.stop_after.as_ref()) {
        let positive = duration(Some(stop_after), STOP_AFTER_MIN).is_some();
        check.require(positive, &format!("{at}.on_disconnect.stop_after"), "must not be negative");
    }
    check_ports(check, template);
    check_health(check, template);
    check_resources(check, template);
    let grace = duration(template.stop_grace.as_ref(), STOP_GRACE);
    check.require(grace.is_some_and(|g| g <= GRACE_MAX), &format!("{at}.stop_grace"), "must be from 0s to 86400s");
    let restart = matches!(template.restart.as_str(), "" | "Always" | "OnFailure" | "Never");
    check.require(
        restart,
        &format!("{at}.restart"),
        format!("is {:?}; must be Always, OnFailure or Never", brief(&template.restart)),
    );
    let dir = &template.working_dir;
    check.require(dir.is_empty() || dir.starts_with('/'), &format!("{at}.working_dir"), "must be an absolute path");
    check_text(check, &format!("{at}.working_dir"), dir);
}

fn check_text(check: &mut Checker, field: &str, text: &str) {
    check.require(!text.contains('\0'), field, "holds a NUL byte, which no process can be given");
    check.require(text.len() <= TEXT_MAX, field, format!("longer than {TEXT_MAX} bytes"));
}

fn check_ports(check: &mut Checker, template: &v1::InstanceTemplate) {
    check.require(template.ports.len() <= PORTS_MAX, "spec.template.ports", format!("more than {PORTS_MAX}"));
    for (i, port) in template.ports.iter().enumerate() {
        let at = format!("spec.template.ports[{i}]");
        let plain = (1..=32).contains(&port.name.len())
            && port.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        check.require(plain, &format!("{at}.name"), "1 to 32 letters, digits, '-' or '_'");
        let twice = template.ports[..i].iter().any(|p| p.name.eq_ignore_ascii_case(&port.name));
        check.require(!twice, &format!("{at}.name"), format!("{:?} is there twice", brief(&port.name)));
        check.require(
            (0..=PORT_MAX).contains(&port.port),
            &format!("{at}.port"),
            format!("is {}; 1 to 65535, or 0 for any free one", port.port),
        );
    }
}

fn check_health(check: &mut Checker, template: &v1::InstanceTemplate) {
    let health = template.health.clone().unwrap_or_default();
    let checks = [("startup", health.startup), ("readiness", health.readiness), ("liveness", health.liveness)];
    for (name, probe) in checks {
        if let Some(probe) = probe {
            check_probe(check, &format!("spec.template.health.{name}"), &probe, template);
        }
    }
}

fn check_probe(check: &mut Checker, at: &str, probe: &v1::Check, template: &v1::InstanceTemplate) {
    let kinds = [probe.http.is_some(), probe.tcp.is_some(), probe.exec.is_some(), probe.grpc.is_some()];
    let set = kinds.iter().filter(|set| **set).count();
    check.require(set == 1, at, format!("needs exactly one of http, tcp, exec, grpc; {set} are set"));
    let ports = [
        ("http", probe.http.as_ref().map(|c| &c.port)),
        ("tcp", probe.tcp.as_ref().map(|c| &c.port)),
        ("grpc", probe.grpc.as_ref().map(|c| &c.port)),
    ];
    for (kind, port) in ports {
        if let Some(port) = port {
            check_probe_port(check, &format!("{at}.{kind}.port"), port, template);
        }
    }
    if let Some(http) = &probe.http {
        let plain = http.path.is_empty() || http.path.starts_with('/');
        let visible = http.path.bytes().all(|b| b.is_ascii_graphic());
        check.require(
            plain && visible,
            &format!("{at}.http.path"),
            "starts with '/' and holds no spaces or control characters",
        );
    }
    if let Some(exec) = &probe.exec {
        check.require(exec.command.first().is_some_and(|c| !c.is_empty()), &format!("{at}.exec.command"), "missing");
    }
    for (field, value) in [("interval", &probe.interval), ("timeout", &probe.timeout)] {
        let positive = duration(value.as_ref(), Duration::from_secs(1)).is_some_and(|d| d >= Duration::from_millis(1));
        check.require(positive, &format!("{at}.{field}"), "must be at least 0.001s");
    }
    for (field, value) in
        [("success_threshold", probe.success_threshold), ("failure_threshold", probe.failure_threshold)]
    {
        check.require(value >= 0, &format!("{at}.{field}"), format!("is {value}; must be at least 1 (0: the default)"));
    }
}

fn check_probe_port(check: &mut Checker, field: &str, name: &str, template: &v1::InstanceTemplate) {
    let names: Vec<&str> = template.ports.iter().map(|p| p.name.as_str()).collect();
    let message = match names.is_empty() {
        true => "the template declares no ports; add ports: [{name: http}]".to_owned(),
        false => {
            let names: Vec<_> = names.iter().map(|name| brief(name)).collect();
            format!("{:?} is no declared port; there is {}", brief(name), names.join(", "))
        }
    };
    check.require(!names.is_empty() && (name.is_empty() || names.contains(&name)), field, message);
}

fn check_resources(check: &mut Checker, template: &v1::InstanceTemplate) {
    let resources = template.resources.clone().unwrap_or_default();
    for (name, amounts) in [("requests", resources.requests), ("limits", resources.limits)] {
        let amounts = amounts.unwrap_or_default();
        let at = format!("spec.template.resources.{name}");
        check.require(
            cpu_millis(&amounts.cpu).is_some(),
            &format!("{at}.cpu"),
            format!("{:?} is no amount of cores; write 2, 0.5 or 500m", brief(&amounts.cpu)),
        );
        check.require(
            memory_bytes(&amounts.memory).is_some(),
            &format!("{at}.memory"),
            format!("{:?} is no amount of memory; write 128Mi, 1Gi or bytes", brief(&amounts.memory)),
        );
        check.require(amounts.pids >= 0, &format!("{at}.pids"), "must not be negative");
    }
}
