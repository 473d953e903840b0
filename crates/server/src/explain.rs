//! Explain: what the controllers decide about a resource right now, and about what it waits for, and so on.
//!
//! The very decision functions run here, on this server's cache, so the answer can't differ from what the owner of the
//! claim decides on the same state. Beside it is said what is known of that owner's own looks: it records those that led to
//! a step, and the end of each sweep over everything; a look that found nothing to do leaves no trace.

use std::{collections::BTreeSet, time::Duration};

use api::v1;
use kinds::{Item, RECONCILERS, Scope, View, held_by, instance::Instance, node};
use model::{
    Domain, Key, LEADER, Next, Revision, Time, Until, Why, fields::conditions_of, shard_claim, with_conditions,
};
use prost_types::Any;
use store::{Error, HistoryQuery, Result};

use crate::{heads::Heads, history::decoded, members::Members, reads::barrier, shared::Shared, world};

/// Links of the chain: service, instance, node, and some room.
const CHAIN_MAX: usize = 20;
/// Newest entries among which the last step is looked for: a rollout's, without reading all of a long history.
const ENTRIES: usize = 200;

pub async fn explain(
    shared: &Shared,
    heads: &Heads,
    members: &Members,
    request: v1::ExplainRequest,
) -> Result<v1::ExplainResponse> {
    let key = request.key.as_ref().map(Key::from).ok_or_else(|| Error::invalid("key", "missing"))?;
    let key = crate::byhand::meant(&key);
    barrier(shared, heads, Revision::ZERO).await?;
    let (world, root, revision) = {
        let cache = shared.cache();
        let Some(record) = cache.get(&key) else { return Err(Error::NotFound(key)) };
        let world = world::whole(&cache, members);
        (world, record.root_uid().to_owned(), cache.revision)
    };
    let entries = newest(shared, root).await?;
    let view = View { world: &world, now: shared.now(), live_since: Time::default() };
    let state = members.state();
    let mut chain = Vec::new();
    let mut ahead = vec![key];
    let mut seen = BTreeSet::new();
    while let Some(key) = ahead.pop() {
        if chain.len() == CHAIN_MAX || !seen.insert(key.clone()) {
            continue;
        }
        let Some(item) = world.get(&key) else { continue };
        let Decided { next, scope, status } = decide(&view, item);
        let mut explained = said(&key, &next);
        if let Some(why) = &mut explained.why {
            why.message += &amiss(&view, item, scope, status.as_ref(), &why.message);
        }
        if let Some(scope) = scope {
            looked_after(&mut explained, scope, item, &state);
        }
        explained.last_step = last_step(&entries, &key);
        chain.push(explained);
        ahead.extend(next.why().because_of.iter().rev().cloned());
    }
    let server = shared.config.name.clone();
    Ok(v1::ExplainResponse { chain, server, revision: revision.0, time: Some(view.now.into()) })
}

/// What was last done to that root, and to what is below it; oldest first.
async fn newest(shared: &Shared, root: String) -> Result<Vec<v1::HistoryEntry>> {
    let query = HistoryQuery { root_uid: Some(root), limit: ENTRIES, ..HistoryQuery::default() };
    let mut records = shared.backend.history(query).await?;
    records.sort_by_key(|record| record.revision);
    records.into_iter().map(decoded).collect()
}

/// A controller's, as its claim shows.
fn last_step(entries: &[v1::HistoryEntry], key: &Key) -> Option<v1::HistoryEntry> {
    let wire = v1::ResourceKey::from(key);
    let concerns = |entry: &&v1::HistoryEntry| entry.touched.iter().any(|touched| touched.key.as_ref() == Some(&wire));
    let step = entries.iter().rev().filter(|entry| !entry.claim.is_empty()).find(concerns)?;
    Some(v1::HistoryEntry { touched: Vec::new(), ..step.clone() })
}

struct Decided {
    next: Next,
    /// None: no controller looks at it by itself.
    scope: Option<Scope>,
    status: Option<Any>,
}

/// The reconciler's word; for an instance, which has none, its agent's and the placement's.
fn decide(view: &View<'_>, item: &Item) -> Decided {
    let reconciler = RECONCILERS.iter().find(|reconciler| reconciler.kind() == item.key.kind());
    let alone = |next| Decided { next, scope: None, status: None };
    match (reconciler, item.body::<Instance>()) {
        (Some(reconciler), _) => {
            let decision = reconciler.plan(view, item);
            Decided { next: decision.next, scope: Some(reconciler.scope()), status: decision.status }
        }
        (None, Some(instance)) => alone(of_instance(view, item, instance)),
        (None, None) => alone(Next::Settled(Why::new("NothingToDo", "no controller acts on this kind by itself"))),
    }
}

/// Every condition, as it is now, that isn't as it should be, and that `told` leaves out: nobody who asks why should have
/// to look elsewhere. `status`: what is decided of it.
fn amiss(view: &View<'_>, item: &Item, scope: Option<Scope>, status: Option<&Any>, told: &str) -> String {
    let Some(kind) = kinds::kind(item.key.kind()) else { return String::new() };
    let of = |status: &Any| conditions_of(&status.value.clone().into()).unwrap_or_default();
    let mut conditions = item.status().map(of).unwrap_or_default();
    if let Some((scope, status)) = scope.zip(status) {
        let domain = if scope == Scope::Leader { Domain::Leader } else { Domain::Shard };
        conditions = with_conditions(&conditions, of(status), kind.rights(domain).conditions, view.now);
    }
    let untold = |c: &&v1::Condition| !c.message.is_empty() && !told.contains(&c.message) && kind.amiss(c);
    let words = |c: &v1::Condition| format!("; {}={} ({}): {}", c.r#type, c.status, c.reason, c.message);
    conditions.iter().filter(untold).map(words).collect()
}

fn of_instance(view: &View<'_>, item: &Item, instance: &Instance) -> Next {
    let node = Key::new(node::KIND, "", &instance.node);
    let on = |why: Why| match instance.node.is_empty() {
        true => why,
        false => why.because_of([node.clone()]),
    };
    if let Some(finalizer) = item.metadata().finalizers.first().filter(|_| item.deleting()) {
        return Next::Blocked(Why::new("Finalizer", held_by(&item.key, finalizer)));
    }
    if item.deleting() {
        let words = format!("asked to go; waits until {} reports its process tree gone", node_words(instance));
        return Next::Wait(Until::Change, on(Why::new("Stopping", words)));
    }
    if let Some((keeps, trouble)) = instance.trouble() {
        return Next::Blocked(on(Why::new(keeps.reason(), trouble)));
    }
    if instance.node.is_empty() {
        return Next::Wait(Until::Change, Why::new("Unplaced", "waits for a node"));
    }
    let heard = view.world.agents().contains(&instance.node);
    if instance.ready && heard {
        let running = format!("{} on {}", instance.phase, instance.node);
        let counts_from = instance.counts_from(Duration::ZERO);
        if instance.is_looping() && counts_from > view.now {
            let words = format!("{running}; {}", instance.unproven());
            return Next::Wait(Until::Time(counts_from), Why::new("Unproven", words));
        }
        return Next::Settled(Why::new("Ready", running));
    }
    if instance.ready {
        let words = format!(
            "ready when {} was last heard, which has no live agent session; nothing newer is known",
            node_words(instance)
        );
        return Next::Wait(Until::Change, on(Why::new("NodeSilent", words)));
    }
    let words = match (heard, instance.phase.as_str()) {
        (false, _) => format!("{} has no live agent session, so nothing new is known", node_words(instance)),
        (true, "" | "Pending") => format!("waits for {} to start it", node_words(instance)),
        (true, phase) => format!("{phase} on {}, not ready yet", instance.node),
    };
    Next::Wait(Until::Change, on(Why::new("NotReady", words)))
}

fn node_words(instance: &Instance) -> String {
    match instance.node.as_str() {
        "" => "a node".to_owned(),
        node => format!("node {node}"),
    }
}

/// A decision in the API's words.
pub fn said(key: &Key, next: &Next) -> v1::Explained {
    let until = match next {
        Next::Wait(Until::Time(at), _) => Some((*at).into()),
        Next::Wait(..) | Next::Settled(_) | Next::Do(..) | Next::Blocked(_) => None,
    };
    v1::Explained {
        key: Some(key.into()),
        state: next.outcome().into(),
        why: Some(next.why().into()),
        until,
        because_of: next.why().because_of.iter().map(Into::into).collect(),
        ..Default::default()
    }
}

fn looked_after(explained: &mut v1::Explained, scope: Scope, item: &Item, state: &v1::Coordination) {
    let shard = item.metadata().shard;
    let name = if scope == Scope::Leader { LEADER.to_owned() } else { shard_claim(shard) };
    if let Some(claim) = state.claims.iter().find(|claim| claim.name == name) {
        explained.epoch = claim.epoch;
        let owner = state.members.iter().find(|member| member.session == claim.owner);
        explained.owner = owner.map_or_else(String::new, |member| member.name.clone());
        let report = owner.and_then(|member| member.report.as_ref());
        let sweeps = report.into_iter().flat_map(|report| &report.shards);
        let swept = sweeps.filter(|s| scope == Scope::Leader || s.shard == shard);
        let last = swept.map(|s| s.last_sweep_millis).max().filter(|millis| *millis > 0).map(Time::from_millis);
        let interval = report.and_then(|report| Duration::try_from(report.sweep_interval?).ok());
        explained.last_sweep = last.map(Into::into);
        // A round begins when the one before ends, and what is taken over in its midst is swept by the one after it.
        let due = |(last, interval): (Time, Duration)| last.plus(interval.saturating_mul(2)).into();
        explained.next_sweep = last.zip(interval).map(due);
    }
    explained.claim = name;
}

#[cfg(test)]
mod tests;
