//! Replacing 100 simulated instances by another version, and planning such a change.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use api::v1;
use kinds::service;

use super::{
    figures::{Figure, Report, Samples},
    load::{Watching, sleeper},
    local::dev,
};
use crate::client::Client;

const REPLICAS: i32 = 100;
const PLANNED_REPLICAS: i32 = 1000;
/// As many entries as a server shows at once.
const ENTRIES_MAX: i32 = 10_000;

pub async fn run(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let (cluster, client) = dev(&dir.join("rollout"), "sim").await?;
    let one = v1::Rollout { max_surge: Some(1), ..Default::default() };
    let measured = several(&client, "surge-1", one, rounds).await?;
    let what = "100 replicas replaced, surge 1";
    report.add(measured.took.p50("rollout_surge1_p50", what));
    report.add(measured.steps("rollout_surge1_steps", what));
    report.add(measured.transactions("rollout_surge1_transactions", what).below(6.0));
    let quarter = v1::Rollout { max_surge_percent: Some(25), ..Default::default() };
    let measured = several(&client, "surge-25", quarter, rounds).await?;
    let what = "100 replicas replaced, surge 25 %";
    report.add(measured.took.p50("rollout_surge25_p50", what).below(300.0));
    report.add(measured.steps("rollout_surge25_steps", what));
    report.add(measured.transactions("rollout_surge25_transactions", what).below(1.0));
    match plans(&client, rounds).await {
        Ok(samples) => {
            let what = "plan of a change of 1,000 replicas";
            report.add(samples.p50("plan_1000_p50", what).below(200.0));
            report.add(samples.max("plan_1000_max", what));
        }
        Err(error) => report.missing("plan", &error),
    }
    cluster.end().await
}

#[derive(Default)]
struct Measured {
    took: Samples,
    /// Of controllers, and of everybody, in all rounds.
    steps: usize,
    transactions: u64,
    total: Duration,
}

impl Measured {
    fn steps(&self, name: &'static str, what: &str) -> Figure {
        let rate = self.steps as f64 / self.total.as_secs_f64();
        Figure::new(name, format!("{what}: controllers' steps per second"), rate, "/s", self.took.len())
    }

    fn transactions(&self, name: &'static str, what: &str) -> Figure {
        let each = self.transactions as f64 / (self.took.len() as f64 * f64::from(REPLICAS));
        Figure::new(name, format!("{what}: store transactions per instance"), each, "", self.took.len())
    }
}

async fn several(client: &Client, name: &str, rollout: v1::Rollout, rounds: usize) -> anyhow::Result<Measured> {
    let mut watching = Watching::new(client).await?;
    watching.run_up(&[version(name, REPLICAS, &rollout, 0)?]).await?;
    let mut measured = Measured::default();
    for round in 1..=rounds {
        let next = version(name, REPLICAS, &rollout, round)?;
        let before = client.api.head().await?;
        let took = watching.run_up(std::slice::from_ref(&next)).await?;
        let after = client.api.head().await?;
        measured.took.push(took);
        measured.total += took;
        measured.transactions += after.commits - before.commits;
        let key = next.metadata.as_ref().map(|m| v1::ResourceKey::from(&model::Key::of(m)));
        let request = v1::HistoryRequest { key, limit: ENTRIES_MAX, ..Default::default() };
        let entries = client.api.entries(request).await?.entries;
        let of_this = entries.iter().filter(|e| e.revision > before.revision.0 && e.actor.starts_with("controller/"));
        measured.steps += of_this.map(|e| e.revision).collect::<BTreeSet<i64>>().len();
    }
    Ok(measured)
}

fn version(name: &str, replicas: i32, rollout: &v1::Rollout, round: usize) -> anyhow::Result<v1::Resource> {
    let mut resource = sleeper(name, replicas);
    let mut spec: v1::ServiceSpec = super::load::typed(resource.spec.as_ref())?;
    spec.version = format!("v{round}");
    // The simulated ones have no check, yet never crash: what is measured are the steps, not the time to prove oneself.
    let min_ready = Some(prost_types::Duration::default());
    spec.rollout = Some(v1::Rollout { min_ready, ..*rollout });
    resource.spec = Some(kinds::any(service::SPEC, &spec));
    Ok(resource)
}

async fn plans(client: &Client, rounds: usize) -> anyhow::Result<Samples> {
    let rollout = v1::Rollout { max_surge_percent: Some(25), ..Default::default() };
    Watching::new(client).await?.run_up(&[version("planned", PLANNED_REPLICAS, &rollout, 0)?]).await?;
    let mut samples = Samples::default();
    for round in 1..=rounds {
        let resource = Some(version("planned", PLANNED_REPLICAS, &rollout, round)?);
        let declarations = vec![v1::Declaration { resource, expected_revision: None }];
        let request = v1::PlanRequest { declarations, ..Default::default() };
        let start = Instant::now();
        let plan = client.api.plan(&client.caller, request).await.context("the server can't plan")?;
        samples.push(start.elapsed());
        anyhow::ensure!(plan.settled, "the plan was cut off after {} steps", plan.steps.len());
    }
    Ok(samples)
}
