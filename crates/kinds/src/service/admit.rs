//! Admission: from a declared message to a Service that can't be wrong.

use std::time::Duration;

use api::{brief, manifest::Range, v1};
use bytes::Bytes;
use model::Violation;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::{MinReady, Service, lost::Patience};
use crate::{
    Template,
    instance::{self, GoneWithin, STOP_AFTER_MIN, STOP_GRACE, port_variable},
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
const PORTS_MAX: usize = 32;
/// Bytes of one argument or environment value; Linux refuses 128 KiB and more.
const TEXT_MAX: usize = 100 * 1024;
/// Configs of one service: each is named in its status, too.
const CONFIGS_MAX: usize = 100;
/// Names without a variable that are warned of.
const UNSET_TOLD: usize = 5;
const LOST_AFTER: Duration = Duration::from_secs(30);
const GRACE_MAX: Duration = Duration::from_secs(24 * 3600);

pub fn admit(spec: &Bytes) -> Result<Template, Vec<Violation>> {
    let spec = v1::ServiceSpec::decode(spec.clone()).map_err(|e| vec![Violation::new("spec", e.to_string())])?;
    let service = match (service(&spec), sensible(&spec)) {
        (Ok(service), sensible) if sensible.is_empty() => service,
        (read, found) => return Err(read.err().into_iter().flatten().chain(found).collect()),
    };
    Ok(Template { hash: template_hash(&spec), warnings: warnings(&spec, &service) })
}

/// Digest of what instances are made from: the declared template and version, undefaulted, maps sorted (they are
/// `BTreeMap`s here). Stored at admission; never computed anew for a stored resource.
pub fn template_hash(spec: &v1::ServiceSpec) -> String {
    let identity =
        v1::ServiceSpec { version: spec.version.clone(), template: spec.template.clone(), ..Default::default() };
    // 40 bits: one service would need a million templates for an even chance of two alike.
    format!("{:010x}", xxh3_64(&identity.encode_to_vec()) >> 24)
}

/// Asked of what is declared from now on only: what is stored is acted on as it always was.
fn sensible(spec: &v1::ServiceSpec) -> Vec<Violation> {
    let template = spec.template.clone().unwrap_or_default();
    let mut check = Checker::default();
    check_variables(&mut check, &template.ports);
    check_requests(&mut check, &template.resources.unwrap_or_default());
    let configs = template.env_from.len();
    check.require(
        configs <= CONFIGS_MAX,
        "spec.template.env_from",
        format!("names {configs} Configs; at most {CONFIGS_MAX}: put what belongs together into one"),
    );
    check.violations.into_iter().chain(long_enough(spec)).collect()
}

/// Each port is handed over under a name of its own. That two are called alike is said of any that are read.
fn check_variables(check: &mut Checker, ports: &[v1::Port]) {
    for (i, port) in ports.iter().enumerate() {
        let variable = port_variable(&port.name);
        let clashes =
            |other: &&v1::Port| port_variable(&other.name) == variable && !other.name.eq_ignore_ascii_case(&port.name);
        if let Some(other) = ports[..i].iter().find(clashes) {
            let words =
                format!("{:?} and {:?} would both be {variable} in the environment; rename one", other.name, port.name);
            check.require(false, &format!("spec.template.ports[{i}].name"), words);
        }
    }
}

/// What an instance may not have isn't reserved for it.
fn check_requests(check: &mut Checker, resources: &v1::Resources) {
    let (requests, limits) =
        (resources.requests.clone().unwrap_or_default(), resources.limits.clone().unwrap_or_default());
    let at = "spec.template.resources.requests";
    let amounts = [
        ("cpu", cpu_millis(&requests.cpu), cpu_millis(&limits.cpu), &requests.cpu, &limits.cpu),
        ("memory", memory_bytes(&requests.memory), memory_bytes(&limits.memory), &requests.memory, &limits.memory),
    ];
    for (name, requested, limit, declared, limited) in amounts {
        let fits = limit.is_none_or(|limit| limit == 0 || requested.is_none_or(|requested| requested <= limit));
        let words = format!("{declared} is more than the limit, {limited}; lower it, or raise limits.{name}");
        check.require(fits, &format!("{at}.{name}"), words);
    }
    check.require(
        requests.pids <= 0,
        &format!("{at}.pids"),
        "nothing reserves processes, they can only be limited; write it under limits",
    );
}

/// A shorter one that is stored counts as the shortest.
fn long_enough(spec: &v1::ServiceSpec) -> Option<Violation> {
    let declared = spec.template.as_ref().and_then(|t| t.on_disconnect.as_ref()?.stop_after.as_ref());
    if duration(declared, STOP_AFTER_MIN).is_none_or(|declared| declared >= STOP_AFTER_MIN) {
        return None;
    }
    let words = format!(
        "must be at least {STOP_AFTER_MIN:?}: less would stop it whenever a server goes away for a moment, before its node \
         is called Unknown"
    );
    Some(Violation::new("spec.template.on_disconnect.stop_after", words))
}

fn warnings(spec: &v1::ServiceSpec, service: &Service) -> Vec<String> {
    let mut warnings = silence_warnings(spec, service);
    let unset = instance::unset(&service.template).into_iter().take(UNSET_TOLD);
    warnings.extend(unset.map(|(field, name)| {
        format!(
            "spec.template.{field}: $({name}) stays as it is: no variable of that name is declared; $$({name}) says that \
             it's meant so"
        )
    }));
    if !instance::proof(spec.template.as_ref()).is_zero() {
        warnings
            .push("no spec.template.health.readiness: an instance counts as ready as soon as its process runs".into());
    }
    let rollout = spec.rollout.unwrap_or_default();
    let given = |time: Option<prost_types::Duration>| duration(time.as_ref(), Duration::ZERO);
    if rollout.progress_deadline.is_some() && given(rollout.min_ready) >= given(rollout.progress_deadline) {
        warnings.push("spec.rollout.min_ready isn't less than progress_deadline: every rollout will miss it".into());
    }
    let (floor, replicas) = (service.min_available, service.replicas);
    if spec.min_available.is_some() && floor > replicas && replicas > 0 {
        warnings.push(format!(
            "spec.min_available: {floor} is more than spec.replicas: {replicas}: no drain ever gets what it asks for"
        ));
    }
    warnings
}

/// Where what is declared about silent nodes comes to something else.
fn silence_warnings(spec: &v1::ServiceSpec, service: &Service) -> Vec<String> {
    let mut warnings = Vec::new();
    let gone_within = GoneWithin::of(spec.template.as_ref());
    let patience = Patience::of(service.lost_after, gone_within);
    if patience.time() > service.lost_after && (spec.lost_after.is_some() || gone_within.is_some()) {
        let declared = service.lost_after;
        warnings
            .push(format!("spec.lost_after {declared:?} is too short: what a node ran is replaced after {patience}"));
    }
    if gone_within.is_some() && service.surge > 0 {
        warnings.push(
            "on_disconnect.stop_after is for what must not run twice, but a rollout runs up to max_surge more beside it; \
             declare spec.rollout: {max_surge: 0, max_unavailable: 1}"
                .into(),
        );
    }
    warnings
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
