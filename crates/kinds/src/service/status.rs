//! What a service's status should say: counts as they are once the decided step is done, so that the step can carry it.

use api::v1;
use model::{Next, Why, condition};

use super::{
    PROGRESSING, READY, Service, evictions,
    fleet::{Counts, Fleet},
    rest::unheard,
    target::{Going, Target},
};
use crate::{Item, instance::Keeps};

/// Enough instances are ready for the service to count as up, whatever their template.
pub const AVAILABLE: &str = "Available";
/// Of a rollout that is over, and went well.
const COMPLETE: &str = "Complete";
/// Reasons of a rollout that failed.
pub const ROLLED_BACK: &str = "RolledBack";
const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

pub fn of(
    item: &Item,
    service: &Service,
    target: &Target,
    fleet: &Fleet<'_>,
    going: &Going,
    next: &Next,
) -> v1::ServiceStatus {
    let counts = fleet.after(next);
    let complete = counts.updated == service.replicas && counts.updated_ready == service.replicas && counts.others == 0;
    let gives_up = going.failed && service.auto_rollback && target.is_declared() && has_better(service, target);
    let unheard = unheard(service, fleet);
    let words = Words { service, counts, finished: fleet.finished(), trouble: fleet.trouble(), unheard, next };
    let (rolled_back, because) = match gives_up {
        true => (target.declared.clone(), words.no_progress()),
        false => kept_rollback(service, target),
    };
    let went_back = (!rolled_back.is_empty()).then(|| went_back(service, &rolled_back, &because));
    let always = [words.available(), words.progressing(complete, going, &went_back), words.ready(complete, &went_back)];
    let conditions = always.into_iter().chain(evictions::held(service, fleet, next)).collect();
    v1::ServiceStatus {
        observed_generation: item.metadata().generation,
        conditions,
        replicas: small(counts.updated + counts.others),
        ready_replicas: small(counts.ready()),
        updated_replicas: if target.is_declared() { small(counts.updated) } else { 0 },
        progress: going.progress.clone().filter(|_| !complete && !gives_up),
        last_good: last_good(service, target, complete),
        rolled_back,
        rolled_back_because: because,
        observed_configs: target.configs.clone(),
    }
}

/// What ran completely before, if it is another template.
fn has_better(service: &Service, target: &Target) -> bool {
    service.status.last_good.as_ref().is_some_and(|good| good.template_hash != target.hash)
}

/// Which template was given up, and why. Forgotten as soon as something else is declared.
fn kept_rollback(service: &Service, target: &Target) -> (String, String) {
    let known = &service.status;
    match known.rolled_back == target.declared {
        true => (known.rolled_back.clone(), known.rolled_back_because.clone()),
        false => Default::default(),
    }
}

/// What became of the declared template, whose identity this is, and who can help.
pub fn went_back(service: &Service, declared: &str, because: &str) -> String {
    let good = service.status.last_good.clone().unwrap_or_default();
    let (from, to) = (service.version.as_str(), good.version.as_str());
    // By their names, if those tell them apart.
    let named = from != to && !from.is_empty() && !to.is_empty();
    let (from, to) = if named { (from, to) } else { (declared, good.template_hash.as_str()) };
    let because = if because.is_empty() { "it missed its progress deadline" } else { because };
    format!("rolled back from {from} to {to} because {because}; declare a fix to try again")
}

fn last_good(service: &Service, target: &Target, complete: bool) -> Option<v1::GoodTemplate> {
    if !complete || target.hash.is_empty() || service.replicas == 0 {
        return service.status.last_good.clone();
    }
    Some(v1::GoodTemplate {
        template_hash: target.hash.clone(),
        version: target.version.clone(),
        template: Some(target.template.clone()),
    })
}

struct Words<'a> {
    service: &'a Service,
    counts: Counts,
    finished: String,
    trouble: Option<(Keeps, String)>,
    /// What is on nodes that are Unknown.
    unheard: Option<Why>,
    next: &'a Next,
}

impl Words<'_> {
    fn available(&self) -> v1::Condition {
        let (ready, floor) = (self.counts.ready(), self.service.min_available.min(self.service.replicas));
        let words = format!("{ready} ready, {floor} needed");
        match &self.unheard {
            _ if ready >= floor => condition(AVAILABLE, Some(true), "EnoughReady", words),
            Some(unheard) if ready + self.counts.unheard >= floor => {
                condition(AVAILABLE, None, unheard.reason, format!("{words}; {}", unheard.message))
            }
            _ => condition(AVAILABLE, Some(false), "TooFewReady", words),
        }
    }

    /// How far it is, and what is in the way.
    fn state(&self) -> (&'static str, String) {
        let Counts { updated, .. } = self.counts;
        let words =
            format!("{} of {} ready{}, {updated} updated", self.counts.ready(), self.service.replicas, self.finished);
        match (self.next, &self.trouble, &self.unheard) {
            (Next::Blocked(why), ..) if !self.is_about_silence(why) => {
                (why.reason, format!("{words}; {}", why.message))
            }
            (_, Some((keeps, trouble)), None) => (reason(*keeps), format!("{words}; {trouble}")),
            (_, Some((keeps, trouble)), Some(unheard)) => {
                (reason(*keeps), format!("{words}; {trouble}; {}", unheard.message))
            }
            (_, None, Some(unheard)) => (unheard.reason, format!("{words}; {}", unheard.message)),
            (_, None, None) => ("Progressing", words),
        }
    }

    fn is_about_silence(&self, why: &Why) -> bool {
        self.unheard.as_ref().is_some_and(|unheard| unheard.reason == why.reason)
    }

    /// Why the deadline was missed.
    fn no_progress(&self) -> String {
        let (_, words) = self.state();
        format!("no progress within {:?}: {words}", self.service.progress_deadline.unwrap_or_default())
    }

    fn progressing(&self, complete: bool, going: &Going, went_back: &Option<String>) -> v1::Condition {
        if complete {
            let (reason, words) = match went_back {
                Some(_) => (ROLLED_BACK, "every instance is of the template from before, not of what is declared"),
                None => (COMPLETE, "every instance is of the template"),
            };
            return condition(PROGRESSING, Some(false), reason, words);
        }
        if going.failed {
            return condition(PROGRESSING, Some(false), DEADLINE_EXCEEDED, self.no_progress());
        }
        let (reason, words) = self.state();
        condition(PROGRESSING, Some(true), reason, words)
    }

    fn ready(&self, complete: bool, went_back: &Option<String>) -> v1::Condition {
        let (reason, words) = self.state();
        match (went_back, complete) {
            (Some(words), _) => condition(READY, Some(false), ROLLED_BACK, words),
            // Nobody knows that they aren't, either.
            (None, true) if self.counts.unheard > 0 => condition(READY, None, reason, words),
            (None, true) => {
                let words = format!("{} of {} ready{}", self.counts.ready(), self.service.replicas, self.finished);
                condition(READY, Some(true), "AllReady", words)
            }
            (None, false) => condition(READY, Some(false), reason, words),
        }
    }
}

/// Of a service some of whose instances are kept from being ready by that.
pub fn reason(keeps: Keeps) -> &'static str {
    match keeps {
        Keeps::Failing => "InstancesFailing",
        Keeps::Unplaceable | Keeps::ChecksFailing => keeps.reason(),
    }
}

/// The version that runs: the declared one; the one before, where that was given up; both, while one replaces the other.
pub fn version(spec: &v1::ServiceSpec, status: &v1::ServiceStatus, ready: bool) -> String {
    let good = status.last_good.as_ref().map(|good| good.version.as_str()).unwrap_or_default();
    match (status.rolled_back.is_empty(), ready) {
        (false, _) => good.to_owned(),
        (true, false) if !good.is_empty() && good != spec.version => format!("{good}->{}", spec.version),
        (true, _) => spec.version.clone(),
    }
}

/// Why what is declared won't come about unless somebody does something: a judgement of the declared generation.
pub fn failed(status: &v1::ServiceStatus) -> Option<String> {
    let said = |condition_type: &str, reason: &str| {
        let mut all = status.conditions.iter();
        let found = all.find(|c| c.r#type == condition_type && c.reason == reason && c.status == "False")?;
        Some(found.message.clone())
    };
    said(READY, ROLLED_BACK).or_else(|| said(PROGRESSING, DEADLINE_EXCEEDED))
}

/// Ready says what the decision says too. Whether it's available isn't known where nodes are silent, which that tells as well.
pub fn amiss(condition: &v1::Condition) -> bool {
    match condition.r#type.as_str() {
        READY => false,
        PROGRESSING => condition.status == "False" && condition.reason != COMPLETE,
        evictions::HELD => condition.status == "True",
        _ => condition.status == "False",
    }
}

fn small(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
