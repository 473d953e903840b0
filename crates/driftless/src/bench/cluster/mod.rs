//! A cluster of processes on an etcd of its own: how fast others take over, what more controllers bring, what a watch
//! costs, and what 100,000 resources do.

mod fanout;
mod hundred;
mod steps;
mod takeover;

use std::path::Path;

use super::{figures::Report, machine};

/// Each part has an etcd and processes of its own, so that none pays for the one before.
pub async fn run(dir: &Path, etcd: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    for figure in machine::floor(dir)? {
        report.add(figure);
    }
    if let Err(error) = takeover::run(&dir.join("takeover"), etcd, rounds, report).await {
        report.missing("takeover", &error);
    }
    if let Err(error) = steps::run(&dir.join("steps"), etcd, report).await {
        report.missing("steps per second", &error);
    }
    if let Err(error) = fanout::run(&dir.join("fanout"), etcd, report).await {
        report.missing("watch fan-out", &error);
    }
    if let Err(error) = hundred::run(&dir.join("hundred"), etcd, report).await {
        report.missing("100,000 resources", &error);
    }
    Ok(())
}
