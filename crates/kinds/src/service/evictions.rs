//! What somebody asked to go and isn't granted, in words. They are made here alone: the service's condition has them, the
//! Drained of a node quotes that, and `why` says the same.

use std::collections::BTreeSet;

use api::v1;
use model::{Next, condition};

use super::{
    Service,
    fleet::{Fleet, One},
    rest::{PAUSED, and_unheard},
    status::reason,
};
use crate::{instance::Keeps, text::some_of};

/// True while something that was asked to go must stay; absent otherwise.
pub const HELD: &str = "EvictionsHeld";
/// No time and no recovery lets it go: somebody has to declare something else.
pub const BUDGET_SPENT: &str = "BudgetSpent";
/// It goes once enough others are ready.
pub const WAITING: &str = "Waiting";

/// Names in one sentence; the rest is a number.
const NAMED: usize = 3;

/// As it is once the decided step is done.
pub fn held(service: &Service, fleet: &Fleet<'_>, next: &Next) -> Option<v1::Condition> {
    let held = fleet.held_after(next);
    if held.is_empty() {
        return None;
    }
    let (reason, words) = match (next, dead_end(service)) {
        (Next::Blocked(why), _) if ![BUDGET_SPENT, PAUSED].contains(&why.reason) => {
            (why.reason, format!("{} can't be replaced: {}", asked(&held), why.message))
        }
        (_, Some(_)) => (BUDGET_SPENT, words(service, &held)),
        (_, None) => {
            let trouble = fleet.trouble();
            // Time lets checks pass; a replacement that can't be placed, or fails, waits for somebody.
            let stuck = trouble.as_ref().map(|(keeps, _)| *keeps).filter(|keeps| *keeps != Keeps::ChecksFailing);
            let trouble = trouble.map(|(_, words)| format!("; {words}")).unwrap_or_default();
            (stuck.map_or(WAITING, reason), words(service, &held) + &trouble + &and_unheard(service, fleet))
        }
    };
    Some(condition(HELD, Some(true), reason, words))
}

/// Who it is, what the budget is, and what can be done, if only that helps.
pub fn words(service: &Service, held: &[One<'_>]) -> String {
    let (asked, floor) = (asked(held), service.floor());
    match dead_end(service) {
        Some(advice) => format!("{asked} can't go: {floor} must stay ready (spec.min_available), {advice}"),
        None => format!("{asked} can't go until more than {floor} are ready (spec.min_available)"),
    }
}

fn asked(held: &[One<'_>]) -> String {
    let names: Vec<&str> = held.iter().map(|one| one.item.key.name()).collect();
    let by = held.iter().filter_map(|one| one.instance.evict.as_ref()).map(|evict| evict.requested_by.as_str());
    let by: Vec<&str> = by.collect::<BTreeSet<_>>().into_iter().collect();
    format!("{}, asked to go by {},", some_of(&names, NAMED), some_of(&by, NAMED))
}

/// Why the budget never lets anything go that is ready, however well all are, and what would. Besides those that were asked
/// to go at most `replicas` are ready, and `surge` instances more than that may be there.
fn dead_end(service: &Service) -> Option<String> {
    let (replicas, floor) = (service.replicas, service.floor());
    let first = usize::from(service.surge == 0);
    let (most, least) = (replicas.saturating_sub(first), floor + first);
    if floor <= most {
        return None;
    }
    let advice = format!("lower min_available to {most}, or raise replicas to {least}");
    Some(match floor > replicas {
        true => format!("more than the {replicas} declared; {advice}"),
        false => format!(
            "which are all of them, and none may be made in its place first (spec.rollout.max_surge is 0); raise max_surge, \
             or {advice}"
        ),
    })
}
