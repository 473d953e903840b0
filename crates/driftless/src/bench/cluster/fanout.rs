//! What it costs to tell 1,000 watchers of a change. The next change comes only when all have heard of the last one, so
//! nothing is coalesced and no delivery waits behind another change's.

use std::{
    cell::RefCell,
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use api::v1;
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use kinds::config;
use model::{Filter, Revision};
use store::{WatchItem, WatchOptions, WatchStream};
use tokio::sync::Notify;

use crate::{
    bench::{
        figures::{Figure, Report, Samples, millis},
        fleet::Fleet,
        load,
        pages::Recorded,
        recording::Costs,
    },
    client::Client,
    words::DEFAULT_NAMESPACE,
};

const WATCHERS: usize = 1000;
const CHANGES: usize = 500;
/// Connections that the watchers share.
const CONNECTIONS: usize = 8;
const DELIVERED_MAX: Duration = Duration::from_secs(10);
/// Of the changed value.
const BYTES: usize = 300;

/// What the watchers have heard.
#[derive(Default)]
struct Heard {
    sent: Option<Instant>,
    samples: Samples,
    /// Of the present change.
    deliveries: usize,
    coalesced: usize,
}

pub async fn run(dir: &Path, etcd: &Path, report: &mut Report) -> anyhow::Result<()> {
    let fleet = Fleet::on_etcd(dir, etcd).await?;
    let clients = (0..CONNECTIONS).map(|_| load::client(&fleet.address)).collect::<anyhow::Result<Vec<Client>>>()?;
    change(&fleet.client, 0).await?;
    let mut watches = Vec::new();
    for n in 0..WATCHERS {
        watches.push(open(&clients[n % CONNECTIONS]).await?);
    }
    let (heard, all) = (Rc::new(RefCell::new(Heard::default())), Rc::new(Notify::new()));
    let watching: FuturesUnordered<_> =
        watches.into_iter().map(|watch| hear(watch, heard.clone(), all.clone())).collect();
    let watching = watching.into_future().map(|(ended, _)| ended);
    let (cpu, recorded) = (fleet.server.cpu()?, Recorded::now(fleet.pages).await?);
    let start = Instant::now();
    let changing = change_all(&fleet.client, &heard, &all);
    tokio::select! {
        changed = changing => changed?,
        ended = watching => anyhow::bail!("a watch ended: {ended:?}"),
    }
    let (took, cpu) = (start.elapsed(), fleet.server.cpu()? - cpu);
    let recorded = Recorded::now(fleet.pages).await?.since(&recorded);
    let heard = heard.borrow();
    let deliveries = heard.samples.len();
    anyhow::ensure!(deliveries == WATCHERS * CHANGES, "{deliveries} deliveries of {}", WATCHERS * CHANGES);
    anyhow::ensure!(heard.coalesced == 0, "{} deliveries were coalesced", heard.coalesced);
    let what = "1,000 watchers, 500 changes: Apply -> event";
    report.add(heard.samples.p50("fanout_delivery_p50", what));
    report.add(heard.samples.p99("fanout_delivery_p99", what));
    let rate = deliveries as f64 / took.as_secs_f64();
    report.add(Figure::new(
        "fanout_rate",
        "1,000 watchers, 500 changes: deliveries per second",
        rate,
        "/s",
        deliveries,
    ));
    let each = millis(cpu) * 1000.0 / deliveries as f64;
    let what = "1,000 watchers, 500 changes: server CPU per delivery";
    report.add(Figure::new("fanout_cpu", what, each, "us", deliveries).below(5.0));
    let share = Costs::measure()?.of(&recorded).as_secs_f64() / cpu.as_secs_f64() * 100.0;
    let what = "1,000 watchers, 500 changes: recording metrics, of that CPU";
    report.add(Figure::new("fanout_recording", what, share, "%", deliveries));
    Ok(())
}

async fn change_all(client: &Client, heard: &RefCell<Heard>, all: &Notify) -> anyhow::Result<()> {
    for n in 1..=CHANGES {
        {
            let mut heard = heard.borrow_mut();
            (heard.sent, heard.deliveries) = (Some(Instant::now()), 0);
        }
        let delivered = tokio::time::timeout(DELIVERED_MAX, all.notified());
        let (changed, delivered) = tokio::join!(change(client, n), delivered);
        changed?;
        delivered.map_err(|_| anyhow::anyhow!("change {n} didn't reach all watchers within {DELIVERED_MAX:?}"))?;
    }
    Ok(())
}

/// Declares another value of always the same resource.
pub async fn change(client: &Client, n: usize) -> anyhow::Result<()> {
    let spec = v1::ConfigSpec { data: [("value".to_owned(), format!("{n:0>BYTES$}"))].into() };
    let resource = v1::Resource {
        metadata: Some(v1::Metadata {
            kind: config::KIND.into(),
            namespace: DEFAULT_NAMESPACE.into(),
            name: "watched".into(),
            ..Default::default()
        }),
        spec: Some(kinds::any(config::SPEC, &spec)),
        status: None,
    };
    load::apply(client, &[resource]).await
}

/// A watch of what `change` changes, whose snapshot is complete.
pub async fn open(client: &Client) -> anyhow::Result<WatchStream> {
    let options = WatchOptions { filter: Filter::kind(config::KIND), ..WatchOptions::default() };
    let mut watch = client.api.watch(options).await?;
    while let Some(item) = watch.next().await {
        if matches!(item?, WatchItem::SnapshotEnd { .. }) {
            return Ok(watch);
        }
    }
    anyhow::bail!("a watch ended before its snapshot was complete")
}

/// Goes on until the watch ends, or repeats a revision.
async fn hear(mut watch: WatchStream, heard: Rc<RefCell<Heard>>, all: Rc<Notify>) -> anyhow::Error {
    let mut last = Revision::ZERO;
    while let Some(item) = watch.next().await {
        let group = match item {
            Ok(WatchItem::Changes(group)) => group,
            Ok(WatchItem::End { reason, .. }) => return anyhow::anyhow!(reason),
            Ok(_) => continue,
            Err(error) => return error.into(),
        };
        if group.to <= last {
            return anyhow::anyhow!("revision {} came after {last}", group.to);
        }
        last = group.to;
        let mut heard = heard.borrow_mut();
        if let Some(sent) = heard.sent {
            heard.samples.push(sent.elapsed());
        }
        heard.coalesced += usize::from(group.coalesced);
        heard.deliveries += 1;
        if heard.deliveries == WATCHERS {
            all.notify_one();
        }
    }
    anyhow::anyhow!("the stream ended")
}
