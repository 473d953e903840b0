//! 100,000 resources, settled: what a server needs to hold them and to list them, and what a controller needs to look at
//! them again. Digests and plans run in this process, on a copy of the cluster's state, by the controller's own code.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use controller::{
    cache::{Cache, Listed},
    execute,
};
use futures::StreamExt;
use kinds::{KINDS, RECONCILERS, moves};
use model::{Filter, Object};
use store::{Bookmark, List, WatchItem, WatchOptions};

use super::scrape;
use crate::{
    bench::{
        figures::{Figure, Report, millis},
        fleet::Fleet,
        load::{self, sleeper},
        process,
    },
    client::Client,
};

const SERVICES: usize = 10_000;
/// With their service ten resources each.
const REPLICAS: i32 = 9;
const RESOURCES: usize = 100_000;
const FILL_MAX: Duration = Duration::from_secs(300);
const LISTS: u32 = 5;
/// Long enough for the kernel's clock of CPU time, which moves by ticks.
const REPEATED_FOR: Duration = Duration::from_secs(2);
const BOOKMARK_MAX: Duration = Duration::from_secs(30);

pub async fn run(dir: &Path, etcd: &Path, report: &mut Report) -> anyhow::Result<()> {
    let mut fleet = Fleet::on_etcd(dir, etcd).await?;
    let empty = fleet.server.resident_mib()?;
    fleet.start_agent("sim")?;
    fleet.start_controller("a")?;
    let filled = fill(&fleet.client).await?;
    report.add(Figure::new("hundred_fill", "100,000 resources declared and settled", filled.as_secs_f64(), "s", 1));
    let controller = &fleet.controllers["a"];
    report.add(Figure::new(
        "hundred_controller",
        "100,000: controller, resident",
        controller.resident_mib()?,
        "MiB",
        1,
    ));

    // One that only took a snapshot: no trace of the filling.
    let (server, client, pages) = fleet.another_server("s2").await?;
    let grown = server.resident_mib()? - empty;
    let copy = Copy::take(&client).await?;
    anyhow::ensure!(copy.objects.len() >= RESOURCES, "only {} resources", copy.objects.len());
    let count = copy.objects.len();
    let stored: usize = copy.objects.iter().map(|object| object.bytes.len()).sum();
    let each = grown * 1024.0 * 1024.0 / count as f64;
    let stored_each = stored as f64 / count as f64;
    report.add(Figure::new("hundred_stored", "100,000: stored bytes per resource", stored_each, "B", count));
    report.add(Figure::new("hundred_server", "100,000: server memory per resource, index included", each, "B", count));
    let ratio = each / stored_each;
    let what = "100,000: resident memory per stored byte, index included";
    report.add(Figure::new("hundred_ratio", what, ratio, "B/B", count));

    let before = server.cpu()?;
    for _ in 0..LISTS {
        list(&client).await?;
    }
    let each = millis((server.cpu()? - before) / LISTS);
    report.add(Figure::new("hundred_list_cpu", "100,000: server CPU of a full list", each, "ms", LISTS as usize));
    scrape::run(&server, &client, pages, report).await?;
    server.kill().await?;
    fleet.end().await?;
    copy.look(report)
}

async fn fill(client: &Client) -> anyhow::Result<Duration> {
    let services: Vec<_> = (0..SERVICES).map(|n| sleeper(&format!("many-{n}"), REPLICAS)).collect();
    let mut watching = load::Watching::new(client).await?.patient(FILL_MAX);
    watching.run_up(&services).await
}

async fn list(client: &Client) -> anyhow::Result<usize> {
    let (mut count, mut after, mut at) = (0, None, None);
    loop {
        let page = client.api.list(List { after, at, ..List::default() }).await?;
        count += page.objects.len();
        (after, at) = (page.objects.last().map(|object| object.key.clone()), Some(page.revision));
        if !page.more {
            return Ok(count);
        }
    }
}

/// The state at one revision, and the digests that a server said of it.
struct Copy {
    objects: Vec<Object>,
    bookmark: Bookmark,
    shards: Vec<u32>,
    agents: BTreeSet<String>,
}

impl Copy {
    async fn take(client: &Client) -> anyhow::Result<Self> {
        let coordination = client.api.coordination().await?.next().await.context("no coordination state")??;
        let shards: Vec<u32> = (0..coordination.shards).collect();
        let agents = coordination.members.iter().filter(|m| m.role == "agent").map(|m| m.name.clone()).collect();
        let kinds = KINDS.iter().map(|kind| kind.info().kind.to_owned()).collect();
        let filter = Filter { kinds, shards: Some(shards.clone()), ..Filter::default() };
        let mut watch = client.api.watch(WatchOptions { filter, ..WatchOptions::default() }).await?;
        let mut objects: BTreeMap<_, Object> = BTreeMap::new();
        let bookmark = async {
            loop {
                match watch.next().await.context("the watch ended")?? {
                    WatchItem::Snapshot(part) => objects.extend(part.into_iter().map(|o| (o.key.clone(), o))),
                    WatchItem::Changes(group) => {
                        for change in group.changes {
                            match change {
                                store::Change::Put(object) => drop(objects.insert(object.key.clone(), object)),
                                store::Change::Deleted { key, .. } => drop(objects.remove(&key)),
                            }
                        }
                    }
                    WatchItem::Bookmark(bookmark) if !bookmark.digests.is_empty() => return anyhow::Ok(bookmark),
                    _ => {}
                }
            }
        };
        let bookmark = tokio::time::timeout(BOOKMARK_MAX, bookmark).await.context("no digests came")??;
        Ok(Self { objects: objects.into_values().collect(), bookmark, shards, agents })
    }

    fn look(&self, report: &mut Report) -> anyhow::Result<()> {
        let cache = Cache::default();
        cache.set_clock(self.bookmark.time);
        let Bookmark { incarnation, revision, .. } = &self.bookmark;
        cache.begin(incarnation);
        let (objects, shards) = (&self.objects, &self.shards);
        cache.replace(&Listed { incarnation, objects, shards, global: true, revision: *revision });
        cache.set_agents(self.agents.clone());
        cache.set_live_since_now();
        let differing = cache.differing(&self.bookmark.digests);
        anyhow::ensure!(differing.is_empty(), "a copy of the state has other digests in {differing:?}");
        let (each, n) = cpu_of(|| cache.differing(&self.bookmark.digests))?;
        let what = "100,000: CPU of a digest comparison";
        report.add(Figure::new("hundred_digest_cpu", what, millis(each), "ms", n).below(10.0));

        let unsettled = cache.view(sweep).context("the copy has no clock")?;
        anyhow::ensure!(unsettled == 0, "{unsettled} of the resources are not settled");
        let (each, n) = cpu_of(|| cache.view(sweep))?;
        let what = "100,000: CPU of a planning sweep, all settled";
        report.add(Figure::new("hundred_sweep_cpu", what, millis(each), "ms", n).below(1000.0));
        Ok(())
    }
}

/// Looks at everything as a worker does. How many had something to write.
fn sweep(view: &kinds::View<'_>) -> usize {
    let look = |reconciler: &dyn kinds::Reconciler, item: &kinds::Item| {
        let decision = reconciler.plan(view, item);
        let domain = execute::domain(reconciler);
        let status = moves::status_to_write(domain, item, decision.status.as_ref(), view.now);
        usize::from(matches!(decision.next, model::Next::Do(..)) || status.is_some())
    };
    RECONCILERS.iter().flat_map(|r| view.world.of_kind(r.kind()).map(|item| look(*r, item))).sum()
}

/// CPU time of one call, on average over many.
fn cpu_of<T>(call: impl Fn() -> T) -> anyhow::Result<(Duration, usize)> {
    let (start, before) = (Instant::now(), process::thread_cpu()?);
    let mut calls = 0;
    while start.elapsed() < REPEATED_FOR {
        std::hint::black_box(call());
        calls += 1;
    }
    Ok(((process::thread_cpu()? - before) / calls, calls as usize))
}
