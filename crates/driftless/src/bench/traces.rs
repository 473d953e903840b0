//! What traces cost: four `driftless dev` at once, without traces, with a tenth of them, with all of them, and with all of
//! them and a receiver that hangs, which do the same work in turns. Only the clusters' own processes count; who receives
//! the spans is this process.

use std::{path::Path, time::Duration};

use telemetry::testing::{Mood, Receiver};

use super::{
    figures::{Figure, Report},
    load::{Watching, sleeper},
    local::dev_with,
    process::Process,
};
use crate::client::Client;

/// Operations of one cluster before it's the next one's turn.
const OPERATIONS: usize = 100;
/// Added to each turn: longer than spans wait for their export.
const SETTLE: Duration = Duration::from_secs(1);
/// What a receiver that hangs may cost: a full queue (8,192 spans), two batches, and what the allocator keeps of them.
const MORE_MAX: f64 = 32.0;
/// Turns that come first and don't count.
const WARM_UP: usize = 2;

pub async fn run(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut sides = [
        Side::start(&dir.join("off"), None).await?,
        Side::start(&dir.join("tenth"), Some("0.1")).await?,
        Side::start(&dir.join("all"), Some("1")).await?,
        Side::start(&dir.join("hanging"), Some("1")).await?,
    ];
    sides[3].receiver.iter().for_each(|receiver| receiver.set(Mood::Hangs));
    for round in 0..WARM_UP + rounds {
        // Who comes first changes, so that nobody always follows the same one.
        for turn in 0..sides.len() {
            let side = (round + turn) % sides.len();
            sides[side].turn(round, round >= WARM_UP).await?;
        }
    }
    let operations = rounds * OPERATIONS;
    let [off, tenth, all, hanging] = &sides;
    anyhow::ensure!(
        off.spans() == 0 && tenth.spans() > 0 && all.spans() > tenth.spans(),
        "spans didn't come as sampled"
    );
    let figure = |name, what: &str, value, unit| Figure::new(name, what, value, unit, operations);
    report.add(figure("tracing_off_cpu", "CPU per operation, no traces", off.millis(operations), "ms"));
    report.add(figure("tracing_10_cpu", "CPU per operation, 10 % sampled", tenth.millis(operations), "ms"));
    report.add(figure("tracing_100_cpu", "CPU per operation, all sampled", all.millis(operations), "ms"));
    report.add(figure("tracing_10_ratio", "10 % sampled, as a multiple of none", tenth.to(off), "").below(1.05));
    report.add(figure("tracing_100_ratio", "all sampled, as a multiple of none", all.to(off), "").below(1.15));
    let each = |side: &Side| side.spans() as f64 / operations as f64;
    report.add(figure("tracing_10_spans", "spans received per operation, 10 % sampled", each(tenth), ""));
    report.add(figure("tracing_100_spans", "spans received per operation, all sampled", each(all), ""));
    let (plain, held) = (off.cluster.resident_mib()?, hanging.cluster.resident_mib()?);
    report.add(figure("tracing_off_resident", "resident memory at the end, no traces", plain, "MiB"));
    report.add(figure("tracing_hanging_resident", "with all sampled and a receiver that hangs", held, "MiB"));
    report.add(figure("tracing_hanging_more", "that is more by", held - plain, "MiB").below(MORE_MAX));
    for side in sides {
        side.cluster.end().await?;
    }
    Ok(())
}

/// One of the clusters.
struct Side {
    cluster: Process,
    client: Client,
    receiver: Option<Receiver>,
    /// Of the turns that count.
    cpu: Duration,
    received: usize,
}

impl Side {
    /// `ratio`: how many traces are sampled; none are made without.
    async fn start(dir: &Path, ratio: Option<&str>) -> anyhow::Result<Self> {
        let receiver = ratio.map(|_| Receiver::start());
        // An empty one is none, whatever the environment says.
        let endpoint = receiver.as_ref().map(Receiver::endpoint).unwrap_or_default();
        let options = ["--otlp-endpoint", &endpoint, "--trace-ratio", ratio.unwrap_or("0")];
        std::fs::create_dir_all(dir)?;
        let (cluster, client) = dev_with(dir, "sim", &options).await?;
        Ok(Self { cluster, client, receiver, cpu: Duration::ZERO, received: 0 })
    }

    async fn turn(&mut self, round: usize, counts: bool) -> anyhow::Result<()> {
        let cpu = self.cluster.cpu()?;
        self.take_spans();
        let mut watching = Watching::new(&self.client).await?;
        for n in 0..OPERATIONS {
            let service = [sleeper(&format!("traced-{round}-{n}"), 1)];
            watching.run_up(&service).await?;
            watching.run_down(&service).await?;
        }
        tokio::time::sleep(SETTLE).await;
        if counts {
            self.cpu += self.cluster.cpu()? - cpu;
            self.received += self.take_spans();
        }
        Ok(())
    }

    /// How many came since this was called last.
    fn take_spans(&self) -> usize {
        self.receiver.as_ref().map_or(0, |receiver| receiver.take().len())
    }

    fn spans(&self) -> usize {
        self.received
    }

    fn millis(&self, operations: usize) -> f64 {
        super::figures::millis(self.cpu) / operations as f64
    }

    fn to(&self, other: &Self) -> f64 {
        self.cpu.as_secs_f64() / other.cpu.as_secs_f64()
    }
}
