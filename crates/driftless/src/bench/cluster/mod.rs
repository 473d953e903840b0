//! A cluster of processes on an etcd of its own: how fast others take over, what more controllers bring, what a watch
//! costs, and what 100,000 resources do.

mod fanout;
mod hundred;
mod scrape;
mod steps;
mod takeover;

use std::path::Path;

use super::{figures::Report, machine};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    Takeover,
    Steps,
    Fanout,
    /// 100,000 resources.
    Hundred,
}

/// Each part has an etcd and processes of its own, so that none pays for the one before.
pub async fn run(dir: &Path, etcd: &Path, parts: &[Part], rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    for figure in machine::floor(dir)? {
        report.add(figure);
    }
    for part in parts {
        let (what, measured) = match part {
            Part::Takeover => ("takeover", takeover::run(&dir.join("takeover"), etcd, rounds, report).await),
            Part::Steps => ("steps per second", steps::run(&dir.join("steps"), etcd, report).await),
            Part::Fanout => ("watch fan-out", fanout::run(&dir.join("fanout"), etcd, report).await),
            Part::Hundred => ("100,000 resources", hundred::run(&dir.join("hundred"), etcd, report).await),
        };
        if let Err(error) = measured {
            report.missing(what, &error);
        }
    }
    Ok(())
}
