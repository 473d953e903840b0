//! What it costs to ask a server of many resources for its metrics, and what that costs whoever waits for a change.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures::StreamExt;
use store::WatchItem;

use super::fanout::{change, open};
use crate::{
    bench::{
        figures::{Figure, Report, Samples, millis},
        pages,
        process::Process,
    },
    client::Client,
};

const SCRAPES: usize = 200;
const CHANGES: usize = 1000;
/// Prometheus mostly asks each 15 s; this often, a tenth of what is slow for a scrape shows in the 99th percentile.
const EVERY: Duration = Duration::from_millis(100);
const DELIVERED_MAX: Duration = Duration::from_secs(10);

pub async fn run(server: &Process, client: &Client, pages: SocketAddr, report: &mut Report) -> anyhow::Result<()> {
    let (mut took, cpu) = (Samples::default(), server.cpu()?);
    for _ in 0..SCRAPES {
        let start = Instant::now();
        scrape(pages).await?;
        took.push(start.elapsed());
    }
    let cpu = millis(server.cpu()? - cpu) / SCRAPES as f64;
    let what = "100,000: a scrape of the server's metrics";
    report.add(took.p50("hundred_scrape_p50", what).below(10.0));
    report.add(took.max("hundred_scrape_max", what));
    report.add(Figure::new("hundred_scrape_cpu", "100,000: server CPU of a scrape", cpu, "ms", SCRAPES));
    let what = "100,000: Apply -> event";
    let alone = deliveries(client).await?;
    report.add(alone.p50("hundred_delivery_p50", what));
    report.add(alone.p99("hundred_delivery_p99", what));
    let scraped = tokio::select! {
        samples = deliveries(client) => samples?,
        error = scrape_on(pages) => return Err(error),
    };
    let what = "100,000: Apply -> event, 10 scrapes a second";
    report.add(scraped.p50("hundred_delivery_scraped_p50", what));
    report.add(scraped.p99("hundred_delivery_scraped_p99", what));
    Ok(())
}

async fn scrape_on(pages: SocketAddr) -> anyhow::Error {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        ticks.tick().await;
        if let Err(error) = scrape(pages).await {
            return error;
        }
    }
}

async fn scrape(pages: SocketAddr) -> anyhow::Result<()> {
    anyhow::ensure!(pages::fetch(pages).await?.contains("driftless_resources{"), "a scrape shows no resources");
    Ok(())
}

/// From right before Apply until the one watch shows the change; the next comes only then.
async fn deliveries(client: &Client) -> anyhow::Result<Samples> {
    let mut watch = open(client).await?;
    let mut samples = Samples::default();
    for n in 0..CHANGES {
        let start = Instant::now();
        change(client, n).await?;
        let delivered = async {
            loop {
                match watch.next().await.context("the watch ended")?? {
                    WatchItem::Changes(_) => return anyhow::Ok(start.elapsed()),
                    WatchItem::End { reason, .. } => anyhow::bail!(reason),
                    _ => {}
                }
            }
        };
        let delivered = tokio::time::timeout(DELIVERED_MAX, delivered).await;
        samples.push(delivered.with_context(|| format!("change {n} wasn't told within {DELIVERED_MAX:?}"))??);
    }
    Ok(samples)
}
