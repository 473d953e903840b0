//! How long until work goes on elsewhere: from the signal to the owner of a service's shard, which also is the leader,
//! until a change of that service, declared at once after, is seen Ready.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use api::v1;
use model::{LEADER, shard_claim};
use rustix::process::Signal;

use crate::bench::{
    figures::{Report, Samples},
    fleet::Fleet,
    load::{Watching, sleeper, typed},
};

const CONTROLLERS: [&str; 3] = ["a", "b", "c"];
/// Enough that the leader always owns the shard of some.
const SERVICES: usize = 64;
/// A stopped owner holds on until its session's TTL ends: 5 s each.
const STOPPED_ROUNDS: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Kill,
    Stop,
    Terminate,
}

pub async fn run(dir: &Path, etcd: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut fleet = Fleet::on_etcd(dir, etcd).await?;
    fleet.start_agent("sim")?;
    for name in CONTROLLERS {
        fleet.start_controller(name)?;
    }
    let services: Vec<_> = (0..SERVICES).map(|n| sleeper(&format!("busy-{n}"), 1)).collect();
    Watching::new(&fleet.client).await?.run_up(&services).await?;
    let killed = several(&mut fleet, How::Kill, rounds).await?;
    let what = "takeover after SIGKILL";
    report.add(killed.p50("takeover_sigkill_p50", what).below(600.0));
    report.add(killed.max("takeover_sigkill_max", what));
    let terminated = several(&mut fleet, How::Terminate, rounds).await?;
    let what = "takeover after SIGTERM";
    report.add(terminated.p50("takeover_sigterm_p50", what));
    report.add(terminated.max("takeover_sigterm_max", what));
    let stopped = several(&mut fleet, How::Stop, rounds.min(STOPPED_ROUNDS)).await?;
    let what = "takeover after SIGSTOP (session TTL: 5 s)";
    report.add(stopped.p50("takeover_sigstop_p50", what));
    report.add(stopped.max("takeover_sigstop_max", what));
    fleet.end().await
}

async fn several(fleet: &mut Fleet, how: How, rounds: usize) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..rounds {
        samples.push(once(fleet, how).await?);
    }
    Ok(samples)
}

async fn once(fleet: &mut Fleet, how: How) -> anyhow::Result<Duration> {
    let owners = fleet.balanced().await?;
    let victim = owners.owner(LEADER)?.to_owned();
    let mut found = None;
    let list = store::List { filter: model::Filter::kind(kinds::service::KIND), ..Default::default() };
    for object in fleet.client.api.list(list).await?.objects {
        let resource = object.resource()?;
        let shard = resource.metadata.as_ref().map_or(0, |metadata| metadata.shard);
        if owners.owner(&shard_claim(shard))? == victim {
            found = Some(resource);
        }
    }
    let changed = scaled(found.context("the leader owns the shard of no service")?)?;
    let mut watching = Watching::new(&fleet.client).await?;
    let controller = fleet.controllers.remove(&victim).context("the leader is no controller of ours")?;
    let start = Instant::now();
    controller.signal(match how {
        How::Kill => Signal::KILL,
        How::Stop => Signal::STOP,
        How::Terminate => Signal::TERM,
    })?;
    watching.run_up(&[changed]).await?;
    let took = start.elapsed();
    drop(watching);
    match how {
        How::Stop => {
            controller.signal(Signal::CONT)?;
            fleet.controllers.insert(victim, controller);
        }
        How::Kill => {
            controller.kill().await?;
            fleet.start_controller(&victim)?;
        }
        How::Terminate => {
            controller.ended().await?;
            fleet.start_controller(&victim)?;
        }
    }
    Ok(took)
}

/// The same with one replica more, which its new owner has to create and the new leader to place.
fn scaled(service: v1::Resource) -> anyhow::Result<v1::Resource> {
    let metadata = service.metadata.context("a service without metadata")?;
    let spec: v1::ServiceSpec = typed(service.spec.as_ref())?;
    Ok(sleeper(&metadata.name, spec.replicas.unwrap_or(1) + 1))
}
