//! How many steps controllers take in a second, where one, two or four share the work.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::v1;

use crate::{
    bench::{
        figures::{Figure, Report},
        fleet::Fleet,
        load::{Watching, sleeper},
    },
    client::Client,
};

const SERVICES: usize = 1000;
const ROUNDS: usize = 3;
/// As many entries as a server shows at once.
const ENTRIES_MAX: i32 = 10_000;
const CONTROLLERS: [(&str, usize); 3] = [("steps_1", 1), ("steps_2", 2), ("steps_4", 4)];

pub async fn run(dir: &Path, etcd: &Path, report: &mut Report) -> anyhow::Result<()> {
    for (name, controllers) in CONTROLLERS {
        let mut fleet = Fleet::on_etcd(&dir.join(name), etcd).await?;
        fleet.start_agent("sim")?;
        for n in 0..controllers {
            fleet.start_controller(&format!("c{n}"))?;
        }
        fleet.balanced().await?;
        let mut rates = Vec::new();
        for round in 0..ROUNDS {
            rates.push(once(&fleet.client, round).await?);
        }
        rates.sort_by(f64::total_cmp);
        let what = format!("controllers' steps per second, {controllers} of them (1,000 new services)");
        report.add(Figure::new(name, what, rates[ROUNDS / 2], "/s", ROUNDS));
        fleet.end().await?;
    }
    Ok(())
}

/// A step is a transaction of a controller: whatever it batches counts once.
async fn once(client: &Client, round: usize) -> anyhow::Result<f64> {
    let services: Vec<_> = (0..SERVICES).map(|n| sleeper(&format!("many-{round}-{n}"), 1)).collect();
    let mut watching = Watching::new(client).await?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let took = watching.run_up(&services).await?;
    let steps = steps_since(client, began).await?;
    watching.run_down(&services).await?;
    Ok(steps as f64 / took.as_secs_f64())
}

async fn steps_since(client: &Client, began: Duration) -> anyhow::Result<usize> {
    let since =
        prost_types::Timestamp { seconds: began.as_secs().try_into()?, nanos: began.subsec_nanos().try_into()? };
    let request = v1::HistoryRequest { since: Some(since), limit: ENTRIES_MAX, ..Default::default() };
    let entries = client.api.entries(request).await?.entries;
    anyhow::ensure!(entries.len() < ENTRIES_MAX as usize, "more entries than can be read at once");
    let steps: BTreeSet<i64> =
        entries.iter().filter(|e| e.actor.starts_with("controller/")).map(|e| e.revision).collect();
    Ok(steps.len())
}
