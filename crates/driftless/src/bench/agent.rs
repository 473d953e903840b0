//! One node with 500 real processes: how soon they run, what looking after them takes, and how soon a crashed one is back.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use api::v1;
use kinds::instance;
use model::Filter;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    figures::{Figure, Report, Samples},
    fleet::Fleet,
    load::{self, Watching, sleeper},
    process,
};
use crate::follow::{Follow, Update};

const INSTANCES: usize = 500;
const SETTLE: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(10);
const BACK_MAX: Duration = Duration::from_secs(30);
/// As the kernel names them: the first 15 bytes.
const SUPERVISOR: &str = "driftless-super";

pub async fn run(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut fleet = Fleet::embedded(&dir.join("agent")).await?;
    fleet.start_controller("a")?;
    fleet.start_agent("process")?;
    let measured = measure(&fleet, dir, rounds, report).await;
    load::clean(&fleet.client).await?;
    fleet.end().await?;
    if let Err(error) = measured {
        report.missing("the agent", &error);
    }
    Ok(())
}

async fn measure(fleet: &Fleet, dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let agent = fleet.agent.as_ref().context("there is no agent")?;
    let took = Watching::new(&fleet.client).await?.run_up(&[sleeper("crowd", INSTANCES as i32)]).await?;
    report
        .add(Figure::new("agent_start_500", "500 processes started and Ready", took.as_secs_f64(), "s", 1).below(10.0));
    tokio::time::sleep(SETTLE).await;
    let supervisors = process::named(SUPERVISOR, dir.to_str().unwrap_or_default())?;
    anyhow::ensure!(supervisors.len() == INSTANCES, "{} supervisors for {INSTANCES} instances", supervisors.len());
    let all = |start: Duration| supervisors.iter().try_fold(start, |sum, pid| anyhow::Ok(sum + process::cpu(*pid)?));
    let (before, start) = (all(Duration::ZERO)?, Instant::now());
    let idle = process::cpu_percent(agent, IDLE).await?;
    let theirs = (all(Duration::ZERO)? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    report.add(Figure::new("agent_idle_cpu", "agent of 500, idle: CPU of one core", idle, "%", 1).below(1.0));
    let what = "500 supervisors together, idle: CPU of one core";
    report.add(Figure::new("supervisors_idle_cpu", what, theirs, "%", INSTANCES).below(1.0));
    report.add(Figure::new("agent_resident", "agent of 500: resident", agent.resident_mib()?, "MiB", 1).below(64.0));
    let private = supervisors.iter().map(|pid| process::private_kib(*pid)).collect::<anyhow::Result<Vec<f64>>>()?;
    let most = private.iter().copied().fold(0.0, f64::max);
    let what = "the largest supervisor: private memory";
    report.add(Figure::new("supervisor_private_max", what, most, "KiB", INSTANCES).below(1024.0));
    let samples = crashes(fleet, rounds.min(INSTANCES)).await?;
    let what = "SIGKILL of a process -> seen Ready with another pid";
    report.add(samples.p50("crash_ready_p50", what).below(15.0));
    report.add(samples.p99("crash_ready_p99", what));
    Ok(())
}

/// Of another instance each time: one that crashes again waits longer.
async fn crashes(fleet: &Fleet, rounds: usize) -> anyhow::Result<Samples> {
    let mut follow = Follow::new(&fleet.client, Filter::kind(instance::KIND));
    let mut running = Vec::new();
    'snapshot: loop {
        for update in follow.next().await? {
            match update {
                Update::Put(resource) => running.push(facts(&resource)?),
                Update::Complete(_) => break 'snapshot,
                Update::Gone(_) => {}
            }
        }
    }
    let mut samples = Samples::default();
    for (uid, pid, _) in running.into_iter().take(rounds) {
        let pid_before = Pid::from_raw(i32::try_from(pid)?).context("an instance without a pid")?;
        let start = Instant::now();
        kill_process(pid_before, Signal::KILL)?;
        let back = async {
            loop {
                for update in follow.next().await? {
                    if let Update::Put(resource) = update
                        && let (other, now, true) = facts(&resource)?
                        && other == uid
                        && now != pid
                    {
                        return anyhow::Ok(Instant::now());
                    }
                }
            }
        };
        let back = tokio::time::timeout(BACK_MAX, back).await.context("a crashed instance didn't come back")??;
        samples.push(back - start);
    }
    Ok(samples)
}

/// Uid, pid, and whether it's ready.
fn facts(resource: &v1::Resource) -> anyhow::Result<(String, i64, bool)> {
    let uid = resource.metadata.as_ref().map(|metadata| metadata.uid.clone()).unwrap_or_default();
    let status: v1::InstanceStatus = load::typed(resource.status.as_ref())?;
    Ok((uid, status.pid, status.ready))
}
