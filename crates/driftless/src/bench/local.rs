//! One machine, one `driftless dev`: how long from Apply to Ready, and what the cluster takes of the machine.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use api::v1;

use super::{
    figures::{Figure, Report, Samples, millis},
    load::{self, Watching, sleeper},
    machine,
    process::{self, Process},
};
use crate::client::Client;

/// Rounds before those that count: connections, caches and pages are warm then.
const WARM_UP: usize = 10;
const CALLS: usize = 500;
const MANY: usize = 1000;
/// Times that the large loads are repeated; the median counts.
const LARGE_ROUNDS: usize = 5;
/// From the start, or the last change, to the measurement of an idle cluster.
const SETTLE: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(10);

pub async fn run(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    for figure in machine::floor(dir).context("the machine's floor can't be measured")? {
        report.add(figure);
    }
    if let Err(error) = processes(&dir.join("process"), rounds, report).await {
        report.missing("with real processes", &error);
    }
    if let Err(error) = simulated(&dir.join("sim"), rounds, report).await {
        report.missing("simulated", &error);
    }
    Ok(())
}

/// A dev cluster on an embedded store in `dir`, and a client of it.
pub async fn dev(dir: &Path, driver: &str) -> anyhow::Result<(Process, Client)> {
    dev_with(dir, driver, &[]).await
}

/// The same with more options.
pub async fn dev_with(dir: &Path, driver: &str, options: &[&str]) -> anyhow::Result<(Process, Client)> {
    let data = dir.to_str().context("the directory's name is no UTF-8")?;
    let args = [&["dev", "--data-dir", data, "--listen", "127.0.0.1:0", "--driver", driver], options].concat();
    let mut cluster = Process::role(&args, &dir.with_extension("log"))?;
    let announced = cluster.ready().await?;
    let address = announced.strip_prefix("dev cluster on ").and_then(|rest| rest.split(',').next());
    let client = load::client(address.context("it didn't say where it listens")?)?;
    Ok((cluster, client))
}

async fn processes(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let start = Instant::now();
    let (cluster, client) = dev(dir, "process").await?;
    report.add(Figure::new("dev_start", "start of an empty dev cluster", millis(start.elapsed()), "ms", 1));
    let measured = idle_then_processes(&cluster, &client, rounds, report).await;
    load::clean(&client).await?;
    cluster.end().await?;
    measured
}

async fn idle_then_processes(
    cluster: &Process,
    client: &Client,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    tokio::time::sleep(SETTLE).await;
    let idle = process::cpu_percent(cluster, IDLE).await?;
    report.add(Figure::new("idle_cpu", "idle dev cluster: CPU of one core", idle, "%", 1).below(1.0));
    report.add(
        Figure::new("idle_resident", "idle dev cluster: resident memory", cluster.resident_mib()?, "MiB", 1)
            .below(64.0),
    );
    let samples = one_by_one(client, rounds).await?;
    let what = "Apply -> Ready, 1 replica, real process";
    report.add(samples.p50("process_ready_p50", what).below(30.0));
    report.add(samples.p99("process_ready_p99", what));
    Ok(())
}

async fn simulated(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let (cluster, client) = dev(dir, "sim").await?;
    report.add(calls(&client).await?.p50("floor_head_p50", "a linearizable gRPC call (Head)"));
    let samples = one_by_one(&client, rounds).await?;
    let what = "Apply -> Ready, 1 replica, simulated";
    report.add(samples.p50("sim_ready_p50", what).below(15.0));
    report.add(samples.p99("sim_ready_p99", what));
    let large = large(&client, |round| vec![sleeper(&format!("wide-{round}"), MANY as i32)]).await?;
    let what = "1,000 simulated replicas of one service Ready";
    report.add(large.p50("sim_replicas_1000_p50", what).below(1000.0));
    report.add(large.max("sim_replicas_1000_max", what));
    let many = |round| (0..MANY).map(|n| sleeper(&format!("many-{round}-{n}"), 1)).collect();
    let large = self::large(&client, many).await?;
    let what = "1,000 services of 1 simulated replica Ready";
    report.add(large.p50("sim_services_1000_p50", what).below(2000.0));
    report.add(large.max("sim_services_1000_max", what));
    Watching::new(&client).await?.run_up(&many(LARGE_ROUNDS)).await?;
    report.add(Figure::new("peak_memory", "peak memory of the cluster's process", cluster.peak_mib()?, "MiB", 1));
    tokio::time::sleep(SETTLE).await;
    let idle = process::cpu_percent(&cluster, IDLE).await?;
    report.add(Figure::new("settled_cpu", "1,000 settled services: CPU of one core", idle, "%", 1));
    let resident = cluster.resident_mib()?;
    report.add(Figure::new("settled_resident", "1,000 settled services: resident memory", resident, "MiB", 1));
    cluster.end().await
}

async fn calls(client: &Client) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for round in 0..WARM_UP + CALLS {
        let start = Instant::now();
        client.api.head().await?;
        if round >= WARM_UP {
            samples.push(start.elapsed());
        }
    }
    Ok(samples)
}

/// One service after the other, each under a new name, each gone before the next.
async fn one_by_one(client: &Client, rounds: usize) -> anyhow::Result<Samples> {
    let mut watching = Watching::new(client).await?;
    let mut samples = Samples::default();
    for round in 0..WARM_UP + rounds {
        let service = [sleeper(&format!("one-{round}"), 1)];
        let took = watching.run_up(&service).await?;
        if round >= WARM_UP {
            samples.push(took);
        }
        watching.run_down(&service).await?;
    }
    Ok(samples)
}

/// All at once, then gone, some times.
async fn large(client: &Client, load: impl Fn(usize) -> Vec<v1::Resource>) -> anyhow::Result<Samples> {
    let mut watching = Watching::new(client).await?;
    let mut samples = Samples::default();
    for round in 0..LARGE_ROUNDS {
        let services = load(round);
        samples.push(watching.run_up(&services).await?);
        watching.run_down(&services).await?;
    }
    Ok(samples)
}
