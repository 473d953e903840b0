//! `driftless bench`: how fast it is on this machine, beside what the machine itself takes. Starts its own clusters from
//! this very binary and speaks to them as any client does; never touches one that it didn't start.

mod figures;
mod load;
mod local;
mod machine;
mod process;

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
#[command(after_help = "Examples:
  driftless bench
  driftless bench --rounds 1000 -o json > figures.json
  driftless bench --dir /mnt/fast

How it measures:
  It starts `driftless dev` as a child process, on an embedded store (every commit is on the disk before it's
  acknowledged) in a new directory below --dir, and speaks gRPC to it over loopback. The client is this process: it shares
  the machine's cores with the cluster.
  'Apply -> Ready' runs from right before the client calls Apply until its own watch, open since before, shows the service
  with Ready=True and observed_generation = generation. Each round declares a service under a new name and deletes it; 10
  rounds come first and don't count. A simulated instance is ready at once; a real one is `sleep 1000` without a health
  check, under its supervisor. 1,000 services are declared by 10 calls of 100, sent at the same time; both large loads are
  run 5 times, and the median counts.
  p50 and p99 are samples (nearest rank), N says of how many. Memory is what the kernel says of the cluster's one process
  (VmHWM, VmRSS); supervisors are processes of their own. CPU is user and system time over 10 s, after 3 s of quiet.
  The floor is taken in the same run, on the same file system. Other work on the machine makes every figure worse; the
  load average is printed for that.")]
pub struct Args {
    /// Rounds of the measurements that take one service at a time.
    #[arg(long, default_value_t = 300, value_parser = rounds)]
    rounds: usize,
    /// Where it makes a directory for its data, which it removes [default: the system's for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

fn rounds(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(|| "write a number from 1 to 100000".into())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mut report = Report::new("local");
    let scratch = Scratch::new(args.dir.unwrap_or_else(env::temp_dir))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(local::run(&scratch.0, args.rounds, &mut report));
    measured?;
    output::print(&match args.output {
        Output::Table => report.text(),
        Output::Json => report.json()?,
    })
}

/// A directory that goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: impl AsRef<Path>) -> anyhow::Result<Self> {
        let dir = parent.as_ref().join(format!("driftless-bench-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            output::say(&format!("{} could not be removed: {error}", self.0.display()));
        }
    }
}
