//! What a service's status should say: counts as they are once the decided step is done, so that the step can carry it.

use api::v1;
use model::{Next, Why, condition};

use super::{
    PROGRESSING, READY, Service,
    fleet::{Counts, Fleet},
    rest::unheard,
    target::{Going, Target},
};
use crate::Item;

/// Enough instances are ready for the service to count as up, whatever their template.
pub const AVAILABLE: &str = "Available";

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
    let words = Words { service, target, counts, trouble: fleet.trouble(), unheard, next };
    let rolled_back = if gives_up { target.declared.clone() } else { kept_rollback(service, target) };
    v1::ServiceStatus {
        observed_generation: item.metadata().generation,
        conditions: vec![words.available(), words.progressing(complete, going), words.ready(complete, &rolled_back)],
        replicas: small(counts.updated + counts.others),
        ready_replicas: small(counts.ready()),
        updated_replicas: if target.is_declared() { small(counts.updated) } else { 0 },
        progress: going.progress.clone().filter(|_| !complete && !gives_up),
        last_good: last_good(service, target, complete),
        rolled_back,
    }
}

/// What ran completely before, if it is another template.
fn has_better(service: &Service, target: &Target) -> bool {
    service.status.last_good.as_ref().is_some_and(|good| good.template_hash != target.hash)
}

/// Forgotten as soon as something else is declared.
fn kept_rollback(service: &Service, target: &Target) -> String {
    if service.status.rolled_back == target.declared { target.declared.clone() } else { String::new() }
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
    target: &'a Target,
    counts: Counts,
    trouble: Option<String>,
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
        let words = format!("{} of {} ready, {updated} updated", self.counts.ready(), self.service.replicas);
        match (self.next, &self.trouble, &self.unheard) {
            (Next::Blocked(why), ..) if !self.is_about_silence(why) => {
                (why.reason, format!("{words}; {}", why.message))
            }
            (_, Some(trouble), None) => ("InstancesFailing", format!("{words}; {trouble}")),
            (_, Some(trouble), Some(unheard)) => {
                ("InstancesFailing", format!("{words}; {trouble}; {}", unheard.message))
            }
            (_, None, Some(unheard)) => (unheard.reason, format!("{words}; {}", unheard.message)),
            (_, None, None) => ("Progressing", words),
        }
    }

    fn is_about_silence(&self, why: &Why) -> bool {
        self.unheard.as_ref().is_some_and(|unheard| unheard.reason == why.reason)
    }

    fn progressing(&self, complete: bool, going: &Going) -> v1::Condition {
        let (reason, words) = self.state();
        if complete {
            return condition(PROGRESSING, Some(false), "Complete", "every instance is of the template");
        }
        if going.failed {
            let words = format!("no progress within {:?}: {words}", self.service.progress_deadline.unwrap_or_default());
            return condition(PROGRESSING, Some(false), "DeadlineExceeded", words);
        }
        condition(PROGRESSING, Some(true), reason, words)
    }

    fn ready(&self, complete: bool, rolled_back: &str) -> v1::Condition {
        let (reason, words) = self.state();
        if !rolled_back.is_empty() {
            let good = self.service.status.last_good.clone().unwrap_or_default();
            let words = format!(
                "the declared template {} missed its progress deadline; went back to {}{}; declare a fix to try again",
                self.target.declared,
                good.template_hash,
                if good.version.is_empty() { String::new() } else { format!(" ({})", good.version) }
            );
            return condition(READY, Some(false), "RolledBack", words);
        }
        match complete {
            // Nobody knows that they aren't, either.
            true if self.counts.unheard > 0 => condition(READY, None, reason, words),
            true => condition(
                READY,
                Some(true),
                "AllReady",
                format!("{} of {} ready", self.counts.ready(), self.service.replicas),
            ),
            false => condition(READY, Some(false), reason, words),
        }
    }
}

fn small(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
