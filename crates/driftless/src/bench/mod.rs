//! `driftless bench`: how fast it is on this machine, beside what the machine itself takes. Starts its own clusters from
//! this very binary and speaks to them as any client does; never touches one that it didn't start.

mod agent;
mod cluster;
mod figures;
mod fleet;
mod load;
mod local;
mod machine;
mod pages;
mod process;
mod recording;
mod rollout;
mod traces;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use figures::Report;

use crate::output;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  driftless bench
  driftless bench --rounds 1000 -o json > figures.json
  driftless bench --dir /mnt/fast
  driftless bench cluster

How it measures:
  It starts `driftless dev` as a child process, on an embedded store (every commit is on the disk before it's
  acknowledged) in a new directory below --dir, and speaks gRPC to it over loopback. The client is this process: it shares
  the machine's cores with the cluster.
  'Apply -> Ready' runs from right before the client calls Apply until its own watch, open since before, shows the service
  with Ready=True, observed_generation = generation and ready_replicas = replicas. Each round declares a service under a
  new name and deletes it; 10 rounds come first and don't count. A simulated instance is ready at once; a real one is
  `sleep 1000` without a health check, under its supervisor. 1,000 services are declared by 10 calls of 100, sent at the
  same time; both large loads are run 5 times, and the median counts.
  p50 and p99 are samples (nearest rank), N says of how many. Memory is what the kernel says of the cluster's one process
  (VmHWM, VmRSS); supervisors are processes of their own. CPU is user and system time over 10 s, after 3 s of quiet.
  The floor is taken in the same run, on the same file system. Other work on the machine makes every figure worse; the
  load average is printed for that. What couldn't be measured is said, with the reason."
)]
pub struct Args {
    #[command(subcommand)]
    which: Option<Which>,
    #[command(flatten)]
    local: Common,
}

#[derive(Debug, clap::Subcommand)]
enum Which {
    /// Several processes on an etcd of their own: takeover, steps, watch fan-out, 100,000 resources.
    #[command(after_help = "Examples:
  driftless bench cluster
  driftless bench cluster --only fanout,hundred
  driftless bench cluster --etcd /opt/etcd/etcd -o json

How it measures:
  Each part starts an etcd (one member, fsync on) and one server on it, and what else it needs, all on this machine.
  Takeover: three controllers share the shards; the signal goes to the one that is the leader and also owns the shard of
  the service which is then, at once, scaled up by one. The time runs from the signal until a client's watch shows that
  service Ready with one replica more: another replica took both claims, created the instance and placed it. A SIGSTOP
  is noticed only by the session's end, whose TTL is 5 s; there are at most 5 rounds of it.
  Steps: transactions of controllers, by the history, from the first of 10 Apply calls (of 100 services each) until the
  last service is seen Ready. Server, etcd and client share the cores with the controllers.
  Fan-out: 1,000 watches on 8 connections hear of 500 changes of one resource of some 500 bytes; each change is made when
  all have heard of the one before. The time runs from right before Apply. CPU is the server process's, with the applies.
  100,000: 10,000 services of 9 simulated instances. Memory per resource is what a server that was just started on them
  (VmRSS) has more than one on an empty store, shared by all resources; allocator and indexes are in it. A scrape's time
  is from its connection to the end of the page; Apply -> event is one change after the other, on one watch of that server,
  first undisturbed, then scraped each 100 ms. Digest comparison
  and sweep are the controller's own functions, run in this process on a copy taken through the API, whose digests must
  equal the server's, and in which nothing may be left to write; CPU time of the thread, averaged over 2 s.")]
    Cluster(ClusterArgs),
    /// 500 real processes on one node: starting them, looking after them, bringing one back.
    #[command(after_help = "Example:
  driftless bench agent

How it measures:
  A server on an embedded store, a controller and an agent, each a process, and a service of 500 replicas that each
  `sleep 1000`. Starting runs from right before Apply until a client's watch shows all 500 ready. CPU is user and system
  time over 10 s after 3 s of quiet. Private memory is Private_Clean + Private_Dirty of smaps_rollup. A crash is a SIGKILL
  of the instance's process, of another instance each time; the time runs until a watch shows the instance ready with
  another pid.")]
    Agent(Common),
    /// Replacing 100 simulated instances, and planning a change.
    #[command(after_help = "Example:
  driftless bench rollout

How it measures:
  `driftless dev` with simulated instances, which start and stop at once, on an embedded store. A rollout changes the
  version of a service of 100 replicas; the time runs from right before Apply until a client's watch shows it Ready, all
  instances being of the new version. Transactions are those of everybody (client, controller, agent) by the store's
  counter, steps those of controllers by the history. A plan is one Plan call for a change of version of a service of
  1,000 replicas with surge 25 %, all its steps to the end included; nothing is cached from one to the next.")]
    Rollout(Common),
    /// What traces cost: CPU time with none, a tenth and all of them sampled, in alternation.
    #[command(after_help = "Example:
  driftless bench tracing -o json

How it measures:
  Four clusters, each a `driftless dev` with simulated instances on an embedded store: one without traces, one that
  samples a tenth of them, and two that sample all. They send their spans by OTLP to receivers in this process, which
  count them; the last one's doesn't answer. A turn is 100 operations, one after the other, and a second for spans to be sent: a service of one replica is
  declared, seen Ready, deleted, and seen gone, so that both calls begin a trace. Each cluster has a turn in each round, and
  who comes first changes from round to round; two rounds come first and don't count. CPU is user and system time of the
  clusters' processes over their own turns, so the client and the receivers are not in it. The ratios are of the sums over
  all rounds. Resident memory is VmRSS after the last round.")]
    Tracing(Common),
    /// What recording metrics costs: each by itself, and of a cluster's CPU time.
    #[command(after_help = "Example:
  driftless bench metrics

How it measures:
  The first figures are CPU time of a thread, on average over millions of calls, the loop's own among it. Then a `driftless dev` with simulated instances on an embedded store does operations, one after the other: a
  service of one replica is declared, seen Ready, deleted, and seen gone. How often it recorded something, its own
  /metrics tells before and after; each at its cost, and the sum, is held against the process's CPU time.")]
    Metrics(Common),
}

#[derive(Debug, clap::Args)]
struct ClusterArgs {
    /// The etcd to start.
    #[arg(long, default_value = "/usr/bin/etcd", value_name = "FILE")]
    etcd: PathBuf,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["takeover", "steps", "fanout", "hundred"])]
    only: Vec<cluster::Part>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// Rounds of the measurements that take one thing at a time [default: 300; cluster: 20; agent: 50;
    /// rollout: 5; tracing: 20; metrics: 10].
    #[arg(long, value_parser = rounds)]
    rounds: Option<usize>,
    /// Where it makes a directory for its data, which it removes [default: the system's for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leave the data and the processes' logs there.
    #[arg(long)]
    keep: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

fn rounds(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(|| "write a number from 1 to 100000".into())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let common = match &args.which {
        None => args.local,
        Some(Which::Cluster(args)) => args.common.clone(),
        Some(Which::Agent(common) | Which::Rollout(common) | Which::Tracing(common) | Which::Metrics(common)) => {
            common.clone()
        }
    };
    let scratch = Scratch::new(common.dir.unwrap_or_else(env::temp_dir), common.keep)?;
    let dir = &scratch.dir;
    let rounds = |default: usize| common.rounds.unwrap_or(default);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        match args.which {
            None => {
                let mut report = Report::new("local");
                local::run(dir, rounds(300), &mut report).await.map(|()| report)
            }
            Some(Which::Cluster(args)) => {
                let mut report = Report::new("cluster");
                cluster::run(dir, &args.etcd, &args.only, rounds(20), &mut report).await.map(|()| report)
            }
            Some(Which::Agent(_)) => {
                let mut report = Report::new("agent");
                agent::run(dir, rounds(50), &mut report).await.map(|()| report)
            }
            Some(Which::Rollout(_)) => {
                let mut report = Report::new("rollout");
                rollout::run(dir, rounds(5), &mut report).await.map(|()| report)
            }
            Some(Which::Tracing(_)) => {
                let mut report = Report::new("tracing");
                traces::run(dir, rounds(20), &mut report).await.map(|()| report)
            }
            Some(Which::Metrics(_)) => {
                let mut report = Report::new("metrics");
                recording::run(dir, rounds(10), &mut report).await.map(|()| report)
            }
        }
    })?;
    output::print(&match common.output {
        Output::Table => report.text(),
        Output::Json => report.json()?,
    })
}

/// A directory that goes with it, unless it's kept.
struct Scratch {
    dir: PathBuf,
    keep: bool,
}

impl Scratch {
    fn new(parent: impl AsRef<Path>, keep: bool) -> anyhow::Result<Self> {
        let dir = parent.as_ref().join(format!("driftless-bench-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { dir, keep })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let dir = self.dir.display();
        if self.keep {
            return output::say(&format!("data and logs are in {dir}"));
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            output::say(&format!("{dir} could not be removed: {error}"));
        }
    }
}
