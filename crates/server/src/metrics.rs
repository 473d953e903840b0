//! What a server shows: of itself, and of the cluster as it sees it. The latter every server says the same of; take the
//! maximum, or one of them, and no sum.

use std::sync::Arc;

use api::v1;
use model::{LEADER, Time};
use telemetry::metrics::{Family, Page, Source};

use crate::{members::Members, shared::Shared, tally::Totals, timed::Operation};

const CONVERGENCE: Family = Family::histogram(
    "driftless_convergence_duration_seconds",
    &["kind"],
    "From a declaration that this server admitted until it was seen to be true; with exemplars",
);
const STORE_DURATION: Family = Family::histogram(
    "driftless_store_operation_duration_seconds",
    &["operation"],
    "How long the store took for an operation",
);
const STORE_FAILURES: Family = Family::counter(
    "driftless_store_operation_failures_total",
    &["operation"],
    "Operations that the store didn't answer, or not in time",
);
const COMMITS: Family = Family::counter(
    "driftless_commits_total",
    &["outcome"],
    "Commits through this server by their outcome; fenced ones are writes of deposed owners, refused",
);
const RETRIES: Family =
    Family::counter("driftless_commit_retries_total", &[], "Applies and reports computed anew after a conflict");
const READS: Family = Family::counter("driftless_reads_total", &[], "Linearizable reads answered from the cache");
const WATCHERS: Family = Family::gauge("driftless_watchers", &["filter"], "Open watches: of one node, or of others");
const WATCH_LAG: Family = Family::histogram(
    "driftless_watch_lag_seconds",
    &[],
    "How long the oldest change that a watcher was told had been in the cache by then",
);
const WATCH_COALESCED: Family = Family::counter(
    "driftless_watch_coalesced_changes_total",
    &[],
    "Changes that slow watchers were spared, since a newer one of the same resource followed",
);
const WATCH_SENT: Family = Family::counter(
    "driftless_watch_sent_total",
    &["item"],
    "What was sent to watchers: groups of changes, and others",
);
const FEED_GROUPS: Family = Family::counter("driftless_feed_groups_total", &[], "Groups of changes from the store");
const FEED_FAULTS: Family = Family::counter(
    "driftless_feed_faults_total",
    &["fault"],
    "Watches of the store that ended (reconnect), skipped something (gap), or stood still (stall)",
);
const CACHE_LISTS: Family = Family::counter("driftless_cache_lists_total", &[], "Snapshots taken of the whole store");
const CACHE_HEALED: Family =
    Family::counter("driftless_cache_healed_total", &[], "Resources that such a snapshot found wrong in the cache");
const AUDITED_PAGES: Family =
    Family::counter("driftless_audited_pages_total", &[], "Pages of the store that were compared with the cache");
const AUDIT_DIFFERENCES: Family = Family::counter(
    "driftless_audit_differences_total",
    &[],
    "Resources that this comparison found wrong in the cache",
);
const CACHE_BYTES: Family = Family::gauge("driftless_cache_bytes", &[], "Encoded resources in the cache");
const RESOURCES: Family = Family::gauge(
    "driftless_resources",
    &["kind", "ready"],
    "Resources in the cluster by their condition Ready, of the declared generation; instances on silent nodes are unknown",
);
const INSTANCES: Family = Family::gauge(
    "driftless_instances",
    &["phase"],
    "Instances in the cluster by phase; those on silent nodes are Unknown, unless they are finished",
);
const TROUBLED: Family = Family::gauge(
    "driftless_nodes_in_trouble",
    &["condition"],
    "Nodes whose condition of that name is False: they don't believe the store, can't do their work, or can't enforce limits",
);
const REFUSED: Family = Family::counter(
    "driftless_nodes_refused_total",
    &[],
    "Times that a machine asked for the name of a node that is another's, and didn't get it; this server's log names both",
);
const BRAKE: Family = Family::gauge(
    "driftless_brake_engaged",
    &[],
    "1 while more than half of the nodes are silent, so that nothing that runs on them is replaced",
);
const RESTARTS: Family = Family::gauge(
    "driftless_instance_restarts",
    &[],
    "Restarts of the instances that exist, together; it falls when instances go",
);
const SESSIONS: Family = Family::gauge("driftless_sessions", &["role"], "Members with a living session");
const SHARDS: Family = Family::gauge("driftless_shards", &["owner"], "Shards by whether a living member owns them");
const UNOWNED: Family = Family::gauge(
    "driftless_shard_unowned_seconds",
    &["claim"],
    "Since when a shard, or the leader's claim, has no living owner: of the one that waits longest; 0 where all have one",
);
const TAKEOVER: Family = Family::histogram(
    "driftless_shard_takeover_duration_seconds",
    &[],
    "How long this server saw a claim without a living owner, until it saw a new one",
);
const SWEEP_AGE: Family = Family::gauge(
    "driftless_shard_sweep_age_seconds",
    &[],
    "How long ago the shard that waits longest was last swept whole",
);

/// Everything that a server shows, whatever its store.
pub const FAMILIES: &[Family] = &[
    CONVERGENCE,
    STORE_DURATION,
    STORE_FAILURES,
    COMMITS,
    RETRIES,
    READS,
    WATCHERS,
    WATCH_LAG,
    WATCH_COALESCED,
    WATCH_SENT,
    FEED_GROUPS,
    FEED_FAULTS,
    CACHE_LISTS,
    CACHE_HEALED,
    AUDITED_PAGES,
    AUDIT_DIFFERENCES,
    CACHE_BYTES,
    RESOURCES,
    INSTANCES,
    TROUBLED,
    REFUSED,
    BRAKE,
    RESTARTS,
    SESSIONS,
    SHARDS,
    UNOWNED,
    TAKEOVER,
    SWEEP_AGE,
];

pub struct Metrics {
    pub shared: Arc<Shared>,
    pub members: Members,
}

impl Source for Metrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&self, page: &mut Page<'_>) {
        let shared = &self.shared;
        page.exemplars(&CONVERGENCE, &shared.convergence.durations);
        store(page, shared);
        commits(page, shared);
        watches(page, shared);
        cache(page, shared);
        resources(page, &shared.cache().tally().totals().clone());
        claims(page, &self.members.state(), shared.now());
        page.value(&REFUSED, shared.counters.nodes_refused.get() as f64);
        page.histograms(&TAKEOVER, [([], &shared.takeovers)]);
    }
}

fn store(page: &mut Page<'_>, shared: &Shared) {
    let all = || Operation::ALL.iter().map(|operation| ([operation.word()], shared.times.of(*operation)));
    page.histograms(&STORE_DURATION, all().map(|(labels, of)| (labels, &of.duration)));
    page.values(&STORE_FAILURES, all().map(|(labels, of)| (labels, of.failures.get() as f64)));
}

fn commits(page: &mut Page<'_>, shared: &Shared) {
    let counters = &shared.counters;
    let outcomes = [
        ("committed", &counters.commits),
        ("conflict", &counters.commits_conflicted),
        ("fenced", &counters.commits_fenced),
        ("denied", &counters.commits_denied),
        ("failed", &counters.commits_failed),
    ];
    page.values(&COMMITS, outcomes.map(|(outcome, counter)| ([outcome], counter.get() as f64)));
    page.value(&RETRIES, counters.retries.get() as f64);
    page.value(&READS, counters.reads.get() as f64);
}

fn watches(page: &mut Page<'_>, shared: &Shared) {
    let counters = &shared.counters;
    let (all, node) = (counters.watchers.get(), counters.node_watchers.get());
    page.values(&WATCHERS, [(["node"], node as f64), (["other"], all.saturating_sub(node) as f64)]);
    page.histograms(&WATCH_LAG, [([], &shared.watch_lag)]);
    page.value(&WATCH_COALESCED, counters.coalesced.get() as f64);
    let sent = [
        ("group", &counters.groups_sent),
        ("snapshot", &counters.snapshots_sent),
        ("bookmark", &counters.bookmarks_sent),
    ];
    page.values(&WATCH_SENT, sent.map(|(item, counter)| ([item], counter.get() as f64)));
    page.value(&FEED_GROUPS, counters.groups.get() as f64);
    let faults = [("reconnect", &counters.feed_reconnects), ("gap", &counters.head_gaps), ("stall", &counters.stalls)];
    page.values(&FEED_FAULTS, faults.map(|(fault, counter)| ([fault], counter.get() as f64)));
}

fn cache(page: &mut Page<'_>, shared: &Shared) {
    let counters = &shared.counters;
    page.value(&CACHE_LISTS, counters.relists.get() as f64);
    page.value(&CACHE_HEALED, counters.healed.get() as f64);
    page.value(&AUDITED_PAGES, counters.audited_pages.get() as f64);
    page.value(&AUDIT_DIFFERENCES, counters.audit_differences.get() as f64);
    page.value(&CACHE_BYTES, shared.cache().bytes() as f64);
}

fn resources(page: &mut Page<'_>, tally: &Totals) {
    page.values(&RESOURCES, tally.by_ready().map(|(labels, count)| (labels, count as f64)));
    page.values(&INSTANCES, tally.by_phase().map(|(labels, count)| (labels, count as f64)));
    page.values(&TROUBLED, tally.troubles().map(|(labels, count)| (labels, count as f64)));
    page.value(&BRAKE, f64::from(tally.braked()));
    page.value(&RESTARTS, tally.restarts() as f64);
}

const ROLES: [&str; 3] = ["agent", "controller", "server"];

fn claims(page: &mut Page<'_>, state: &v1::Coordination, now: Time) {
    let members = |role: &str| state.members.iter().filter(|member| member.role == role).count();
    page.values(&SESSIONS, ROLES.map(|role| ([role], members(role) as f64)));
    let (leader, shards): (Vec<&v1::Claim>, Vec<&v1::Claim>) = state.claims.iter().partition(|c| c.name == LEADER);
    let unowned = shards.iter().filter(|claim| claim.unowned_since.is_some()).count();
    let owned = shards.len() - unowned;
    page.values(&SHARDS, [(["living"], owned as f64), (["none"], unowned as f64)]);
    let age = |stamps: &mut dyn Iterator<Item = prost_types::Timestamp>| {
        stamps.map(|stamp| now.since(Time::from(&stamp))).max().unwrap_or_default().as_secs_f64()
    };
    let unowned = |claims: &[&v1::Claim]| age(&mut claims.iter().filter_map(|claim| claim.unowned_since));
    page.values(&UNOWNED, [(["shard"], unowned(&shards)), (["leader"], unowned(&leader))]);
    page.value(&SWEEP_AGE, age(&mut shards.iter().filter_map(|claim| claim.last_sweep)));
}
