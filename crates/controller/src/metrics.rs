//! What a replica shows of itself. What happened was recorded when it did; how things stand is looked at when asked for.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use kinds::RECONCILERS;
use telemetry::metrics::{Family, Page, Source};

use crate::{
    Shared, informer,
    queue::Lane,
    stats::{Looks, Outcome},
};

const RECONCILE_DURATION: Family = Family::histogram(
    "driftless_reconcile_duration_seconds",
    &["reconciler"],
    "From the start of a look at one key to its decision, and to its commit where it took a step",
);
const RECONCILES: Family =
    Family::counter("driftless_reconciles_total", &["reconciler", "outcome"], "Looks at one key, by how they ended");
const QUEUE_DEPTH: Family = Family::gauge(
    "driftless_queue_depth",
    &["lane"],
    "Keys that wait to be looked at; those that wait for a time don't count",
);
const QUEUE_WAIT: Family =
    Family::histogram("driftless_queue_wait_seconds", &["lane"], "How long a key waited in its lane before its look");
const QUEUE_PUT_OFF: Family = Family::counter(
    "driftless_queue_put_off_total",
    &[],
    "Looks put off since the cache had not reached the key's own last write",
);
const SWEEP_AGE: Family = Family::gauge(
    "driftless_sweep_age_seconds",
    &[],
    "How long ago the owned shard that has waited longest was last swept whole; 0 without shards",
);
const DIVERGENCES: Family = Family::counter(
    "driftless_divergences_total",
    &[],
    "Resources in which the cache differed from a list at a revision that it had reached",
);
const OWNED: Family = Family::gauge("driftless_shards_owned", &[], "Shards that this replica may act on");
const LEADER: Family = Family::gauge("driftless_leader", &[], "1 where this replica is the leader");
const CLAIM_CHANGES: Family =
    Family::counter("driftless_claim_changes_total", &["change"], "Claims that this replica took or handed over");
const INFORMER_LAG: Family = Family::histogram(
    "driftless_informer_lag_seconds",
    &[],
    "From a change's stamp by a server to its arrival in this replica's cache",
);
const INFORMER_SNAPSHOTS: Family =
    Family::counter("driftless_informer_snapshots_total", &[], "Watches that began with a snapshot");
const INFORMER_LISTS: Family = Family::counter(
    "driftless_informer_lists_total",
    &[],
    "Lists made since the cache could not be trusted, or nothing vouched for it",
);

/// Everything that a controller shows.
pub const FAMILIES: &[Family] = &[
    RECONCILE_DURATION,
    RECONCILES,
    QUEUE_DEPTH,
    QUEUE_WAIT,
    QUEUE_PUT_OFF,
    SWEEP_AGE,
    DIVERGENCES,
    OWNED,
    LEADER,
    CLAIM_CHANGES,
    INFORMER_LAG,
    INFORMER_SNAPSHOTS,
    INFORMER_LISTS,
];

pub struct Metrics(pub(crate) Arc<Shared>);

impl Source for Metrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&self, page: &mut Page<'_>) {
        let shared = &self.0;
        reconciles(page, &shared.stats.looks);
        queue(page, shared);
        claims(page, shared);
        let stats = &shared.stats;
        page.value(&DIVERGENCES, stats.divergences.load(Relaxed) as f64);
        page.histograms(&INFORMER_LAG, [([], &stats.lag)]);
        page.value(&INFORMER_SNAPSHOTS, stats.snapshots.load(Relaxed) as f64);
        page.value(&INFORMER_LISTS, stats.relists.load(Relaxed) as f64);
    }
}

fn reconciles(page: &mut Page<'_>, looks: &Looks) {
    let names = || RECONCILERS.iter().map(|reconciler| reconciler.name()).zip(looks.iter());
    page.histograms(&RECONCILE_DURATION, names().map(|(name, looks)| ([name], &looks.duration)));
    let outcomes = names().flat_map(|(name, looks)| {
        Outcome::ALL.iter().map(move |outcome| ([name, outcome.word()], looks.count(*outcome) as f64))
    });
    page.values(&RECONCILES, outcomes);
}

fn queue(page: &mut Page<'_>, shared: &Shared) {
    let (changes, sweeps) = shared.queue.depths();
    let (change, sweep) = (Lane::Change.word(), Lane::Sweep.word());
    page.values(&QUEUE_DEPTH, [([change], changes as f64), ([sweep], sweeps as f64)]);
    let waits = &shared.queue.waits;
    page.histograms(&QUEUE_WAIT, [([change], waits.of(Lane::Change)), ([sweep], waits.of(Lane::Sweep))]);
    page.value(&QUEUE_PUT_OFF, shared.stats.put_off.load(Relaxed) as f64);
}

fn claims(page: &mut Page<'_>, shared: &Shared) {
    let oldest = shared.cache.now().zip(shared.holdings.oldest_sweep());
    page.value(&SWEEP_AGE, oldest.map_or(0.0, |(now, oldest)| now.since(oldest).as_secs_f64()));
    page.value(&OWNED, shared.holdings.shards().len() as f64);
    page.value(&LEADER, f64::from(u8::from(shared.holdings.is_active(model::LEADER))));
    let stats = &shared.stats;
    let (taken, handed_over) = (stats.claims_taken.load(Relaxed), stats.claims_handed_over.load(Relaxed));
    page.values(&CLAIM_CHANGES, [(["taken"], taken as f64), (["handed_over"], handed_over as f64)]);
}

/// Whether this replica could act on what it owns, or would own: it has a session, hears of changes, and has everything
/// that it asked for in its cache.
pub(crate) fn ready(shared: &Shared) -> Result<(), String> {
    if !shared.holdings.has_session() {
        return Err("no session is open".into());
    }
    if shared.stats.watching.get() == 0 {
        return Err("no server can be watched".into());
    }
    match shared.cache.covers_all(&informer::list_of(&shared.wanted.borrow())) {
        true => Ok(()),
        false => Err("some of its shards are not in the cache yet".into()),
    }
}
