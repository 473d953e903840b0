//! What a service waits for when there is nothing to do, in words.

use std::collections::BTreeSet;

use model::{Key, Next, Until, Why};

use super::{
    Service, evictions,
    fleet::{Fleet, One},
    lost::Patience,
    plan::{complete, ready},
    status,
    target::{Going, Target},
};
use crate::{
    node, placement,
    text::{count, some_of},
};

/// Its user paused the rollout.
pub const PAUSED: &str = "Paused";
/// Of silent nodes, in words; the rest is a number.
const NODES_NAMED: usize = 3;
/// Instances without limits that `why` goes on to.
const INSTANCES_TOLD: usize = 3;

/// Nothing to do now: say what it waits for.
pub fn rest(service: &Service, target: &Target, fleet: &Fleet<'_>, going: &Going) -> Next {
    let until = match [fleet.wake, going.fails_at.filter(|_| !going.failed)].into_iter().flatten().min() {
        Some(at) => Until::Time(at),
        None => Until::Change,
    };
    if complete(service, fleet) {
        return complete_rest(service, target, fleet, until);
    }
    if service.pause && !fleet.outdated.is_empty() {
        let words =
            format!("the rollout is paused with {} of another template", count(fleet.outdated.len(), "instance"));
        return Next::Blocked(Why::new(PAUSED, words));
    }
    let updated_ready = ready(&fleet.updated);
    if updated_ready == fleet.updated.len()
        && !fleet.evicting.is_empty()
        && fleet.stopping.is_empty()
        && fleet.wake.is_none()
    {
        let words = evictions::words(service, &fleet.evicting) + &and_unheard(service, fleet);
        return Next::Blocked(Why::new(evictions::BUDGET_SPENT, words));
    }
    let waiting =
        fleet.updated.iter().filter(|one| !one.available).chain(&fleet.stopping).map(|one| one.item.key.clone());
    Next::Wait(until, Why::new("NotReady", waiting_words(service, fleet, updated_ready)).because_of(waiting))
}

fn waiting_words(service: &Service, fleet: &Fleet<'_>, updated_ready: usize) -> String {
    let replicas = service.replicas;
    let mut words = match fleet.outdated.len() {
        0 => format!("{} of {replicas} ready{}", fleet.vouched(), fleet.finished()),
        outdated => format!(
            "{updated_ready} of {replicas} of the declared template ready, {} of another left",
            count(outdated, "instance")
        ),
    };
    if !fleet.evicting.is_empty() {
        words += &format!("; {}", evictions::words(service, &fleet.evicting));
    }
    words += &fleet.trouble().map(|(_, trouble)| format!("; {trouble}")).unwrap_or_default();
    words + &and_unheard(service, fleet)
}

pub fn and_unheard(service: &Service, fleet: &Fleet<'_>) -> String {
    unheard(service, fleet).map(|why| format!("; {}", why.message)).unwrap_or_default()
}

fn complete_rest(service: &Service, target: &Target, fleet: &Fleet<'_>, until: Until) -> Next {
    if !fleet.stopping.is_empty() {
        let names = fleet.stopping.iter().map(|one| one.item.key.clone());
        let words =
            format!("{} still stopping{}", count(fleet.stopping.len(), "instance"), and_unheard(service, fleet));
        return Next::Wait(until, Why::new("Stopping", words).because_of(names));
    }
    if let Some(unheard) = unheard(service, fleet) {
        let words = format!("{} of {} ready; {}", fleet.vouched(), service.replicas, unheard.message);
        let why = Why::new(unheard.reason, words).because_of(unheard.because_of);
        return if fleet.braked { Next::Blocked(why) } else { Next::Wait(until, why) };
    }
    let ready = format!("{} of {} ready{}", service.replicas, service.replicas, fleet.finished());
    if !target.is_declared() {
        let words = status::went_back(service, &target.declared, &service.status.rolled_back_because);
        let why = Why::new(status::ROLLED_BACK, format!("{ready}; {words}"));
        return match until {
            Until::Change => Next::Blocked(why),
            until => Next::Wait(until, why),
        };
    }
    let unlimited: Vec<Key> =
        fleet.updated.iter().filter(|one| one.instance.is_unlimited()).map(|one| one.item.key.clone()).collect();
    let but = match unlimited.len() {
        0 => String::new(),
        some => format!("; limits are not enforced for {}", count(some, "instance")),
    };
    let why = Why::new("AllReady", ready + &but).because_of(unlimited.into_iter().take(INSTANCES_TOLD));
    match until {
        Until::Change => Next::Settled(why),
        until => Next::Wait(until, why),
    }
}

/// How many are on nodes that are Unknown, and what becomes of them.
pub fn unheard(service: &Service, fleet: &Fleet<'_>) -> Option<Why> {
    let (asked, wanted): (Vec<One<'_>>, Vec<One<'_>>) = fleet.unheard().partition(|one| one.item.deleting());
    let nodes: BTreeSet<&str> = wanted.iter().chain(&asked).map(|one| one.instance.node.as_str()).collect();
    if nodes.is_empty() {
        return None;
    }
    let silent = nodes.iter().take(NODES_NAMED).map(|node| Key::new(node::KIND, "", node));
    if fleet.braked {
        let words = format!("{}: {}", on_nodes("", wanted.iter().chain(&asked)), placement::BRAKE);
        return Some(Why::new("Brake", words).because_of(silent.chain([Key::new(
            placement::KIND,
            "",
            placement::NAME,
        )])));
    }
    let replaced =
        longest(service, &wanted).map(|patience| format!("{}, replaced after {patience}", on_nodes("", wanted.iter())));
    // Until then it may have a process, and never do more live than are allowed.
    let held = longest(service, &asked).map(|patience| {
        let there = on_nodes(" asked to go", asked.iter());
        format!("{there}: it counts as running until it says that it ended, or for {patience}")
    });
    let words: Vec<String> = replaced.into_iter().chain(held).collect();
    Some(Why::new("NodesSilent", words.join("; ")).because_of(silent))
}

fn longest(service: &Service, fleet: &[One<'_>]) -> Option<Patience> {
    let patience = fleet.iter().map(|one| Patience::of(service.lost_after, one.instance.gone_within));
    patience.max_by_key(|patience| patience.time())
}

fn on_nodes<'a>(asked: &str, fleet: impl Iterator<Item = &'a One<'a>> + Clone) -> String {
    let nodes: BTreeSet<&str> = fleet.clone().map(|one| one.instance.node.as_str()).collect();
    let nodes: Vec<&str> = nodes.into_iter().collect();
    let which = if nodes.len() == 1 { "which is not heard" } else { "which are not heard" };
    format!("{}{asked} on {}, {which}", fleet.count(), some_of(&nodes, NODES_NAMED))
}
