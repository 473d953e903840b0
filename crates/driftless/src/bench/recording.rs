//! What it costs to record a metric, and how much of the work that is.

use std::{
    hint::black_box,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use telemetry::metrics::{Counter, Exemplars, Histogram};

use super::{
    figures::{Figure, Report, millis},
    fleet::free_address,
    load::{Watching, sleeper},
    local::dev_with,
    pages::Recorded,
    process,
};

const CALLS: u32 = 5_000_000;
/// They allocate and lock, so fewer do.
const TRACED_CALLS: u32 = 500_000;
/// A service is declared, Ready, deleted and gone.
const OPERATIONS: usize = 100;
const WARM_UP: usize = 100;

/// CPU time of one recording, in nanoseconds.
pub struct Costs {
    counted: f64,
    /// With the two looks at the clock.
    timed: f64,
    traced: f64,
}

impl Costs {
    pub fn measure() -> anyhow::Result<Self> {
        let (counter, histogram, exemplars) = (Counter::default(), Histogram::default(), Exemplars::default());
        let traced =
            || exemplars.observe("Service", duration(), Some(black_box("0af7651916cd43dd8448eb211c80319c").into()));
        Ok(Self {
            counted: each(CALLS, || counter.add(black_box(1)))?,
            timed: each(CALLS, || drop(histogram.time()))?,
            traced: each(TRACED_CALLS, traced)?,
        })
    }

    pub fn of(&self, recorded: &Recorded) -> Duration {
        let nanos = recorded.counted * self.counted + recorded.timed * self.timed + recorded.traced * self.traced;
        Duration::from_secs_f64(nanos / 1e9)
    }
}

pub async fn run(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let costs = Costs::measure()?;
    let figure = |name, what: &str, value, n: u32| Figure::new(name, what, value, "ns", n as usize);
    report.add(figure("recording_counter", "adding to a counter", costs.counted, CALLS));
    let histogram = Histogram::default();
    let observe = || histogram.observe(duration());
    report.add(figure("recording_histogram", "a duration into a histogram", each(CALLS, observe)?, CALLS));
    let shared = beside_another(observe, || each(CALLS, observe))?;
    report.add(figure("recording_histogram_shared", "the same, while another thread does it too", shared, CALLS));
    report.add(figure("recording_timer", "timing something into a histogram", costs.timed, CALLS));
    report.add(figure("recording_exemplar", "a declaration's duration with its trace", costs.traced, TRACED_CALLS));
    operations(&dir.join("dev"), rounds, &costs, report).await
}

/// How much of a cluster's work it is.
async fn operations(dir: &Path, rounds: usize, costs: &Costs, report: &mut Report) -> anyhow::Result<()> {
    let pages = free_address()?;
    let (cluster, client) = dev_with(dir, "sim", &["--metrics", &pages.to_string()]).await?;
    let mut watching = Watching::new(&client).await?;
    let (mut before, mut cpu, n) = (Recorded::default(), Duration::ZERO, rounds * OPERATIONS);
    for operation in 0..WARM_UP + n {
        if operation == WARM_UP {
            before = Recorded::now(pages).await?;
            cpu = cluster.cpu()?;
        }
        let service = [sleeper(&format!("counted-{operation}"), 1)];
        watching.run_up(&service).await?;
        watching.run_down(&service).await?;
    }
    let cpu = cluster.cpu()? - cpu;
    let recorded = Recorded::now(pages).await?.since(&before);
    let all = recorded.counted + recorded.timed + recorded.traced;
    let share = costs.of(&recorded).as_secs_f64() / cpu.as_secs_f64() * 100.0;
    report.add(Figure::new("recording_operation_cpu", "CPU per operation", millis(cpu) / n as f64, "ms", n));
    report.add(Figure::new("recording_operation_records", "recorded per operation", all / n as f64, "", n));
    report.add(Figure::new("recording_operation_share", "recording, of that CPU", share, "%", n).below(1.0));
    cluster.end().await
}

fn duration() -> Duration {
    black_box(Duration::from_micros(700))
}

/// Of this thread.
fn each(calls: u32, record: impl Fn()) -> anyhow::Result<f64> {
    let before = process::thread_cpu()?;
    for _ in 0..calls {
        record();
    }
    Ok((process::thread_cpu()? - before).as_secs_f64() * 1e9 / f64::from(calls))
}

/// Measures while another thread does that without a pause.
fn beside_another<T>(other: impl Fn() + Sync, measure: impl FnOnce() -> T) -> T {
    let (began, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                other();
                began.store(true, Relaxed);
            }
        });
        while !began.load(Relaxed) {
            thread::yield_now();
        }
        let measured = measure();
        done.store(true, Relaxed);
        measured
    })
}
