//! Admission's second half: what can be read, and still isn't what anybody means. Asked of what is declared from now on
//! alone, never of what is stored, which is acted on as it always was.

use std::time::Duration;

use api::{brief, v1};
use model::Violation;

use super::{Service, admit::PORTS_MAX, lost::Patience};
use crate::{
    instance::{self, GoneWithin, STOP_AFTER_MIN, port_variable},
    text::{Checker, cpu_millis, duration, memory_bytes},
};

/// Configs of one service: each is named in its status, too.
const CONFIGS_MAX: usize = 100;
/// Names without a variable that are warned of.
const UNSET_TOLD: usize = 5;

pub fn violations(spec: &v1::ServiceSpec) -> Vec<Violation> {
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
    // That there are more is said, too.
    let ports: Vec<(&str, String)> =
        ports.iter().take(PORTS_MAX).map(|port| (port.name.as_str(), port_variable(&port.name))).collect();
    for (i, (name, variable)) in ports.iter().enumerate() {
        let clashes = |(other, its): &&(&str, String)| its == variable && !other.eq_ignore_ascii_case(name);
        if let Some((other, _)) = ports[..i].iter().find(clashes) {
            let (other, name, variable) = (brief(other), brief(name), brief(variable));
            let words = format!("{other:?} and {name:?} would both be {variable} in the environment; rename one");
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
        let words =
            format!("{} is more than the limit, {}; lower it, or raise limits.{name}", brief(declared), brief(limited));
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

pub fn warnings(spec: &v1::ServiceSpec, service: &Service) -> Vec<String> {
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
