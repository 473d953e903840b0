//! Health checks: asks again and again whether an instance is well, and says when the answer changes.
//!
//! The first question is asked as soon as the process runs, and the next ones soon after, so that Ready follows within
//! milliseconds of the server's first listen. It never acts: what a failed check means is decided by `plan`.

pub mod exec;
mod grpc;
mod http;

#[cfg(test)]
mod tests;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use rand::Rng;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use crate::{
    driver::{Driver, Target},
    template::{Check, Probe},
};

/// What became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The startup check passed.
    Up,
    Ready,
    /// And what the check says, for people.
    NotReady(String),
    /// It must be started anew: why.
    Dead(String),
}

/// Findings on their way; who finds more waits.
pub const FINDINGS_MAX: usize = 4;
/// Before the second question; later pauses are a quarter of the time that has passed, up to the check's interval.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Intervals differ by up to a tenth, so that hundreds of checks don't fall together.
const JITTER: f64 = 0.1;

/// Goes on until it is dropped. `carried`: an earlier agent saw it ready; then it is until the check says otherwise.
pub async fn watch(driver: Arc<dyn Driver>, target: Target, carried: bool, tell: mpsc::Sender<Finding>) {
    let template = Arc::clone(&target.template);
    if let Some(check) = template.startup.as_ref().filter(|_| !carried) {
        startup(&*driver, &target, check, &tell).await;
    }
    say(&tell, Finding::Up).await;
    let ready = async {
        match &template.readiness {
            Some(check) => readiness(&*driver, &target, check, carried, &tell).await,
            None => say(&tell, Finding::Ready).await,
        }
    };
    let alive = async {
        if let Some(check) = &template.liveness {
            liveness(&*driver, &target, check, &tell).await;
        }
    };
    futures::future::join(ready, alive).await;
}

async fn say(tell: &mpsc::Sender<Finding>, finding: Finding) {
    // Whoever listened is gone; so will this be.
    let _ = tell.send(finding).await;
}

/// Returns once it passed.
async fn startup(driver: &dyn Driver, target: &Target, check: &Check, tell: &mpsc::Sender<Finding>) {
    let mut pace = Pace::new(check.interval);
    let (mut good, mut bad) = (0, 0);
    loop {
        match driver.probe(target, &check.probe, check.timeout).await {
            Ok(()) => (good, bad) = (good + 1, 0),
            Err(_) => (good, bad) = (0, bad + pace.counts()),
        }
        if good >= check.successes {
            return;
        }
        if bad == check.failures {
            say(tell, Finding::Dead(format!("its startup check never passed in {bad} tries"))).await;
        }
        sleep(pace.next()).await;
    }
}

async fn readiness(driver: &dyn Driver, target: &Target, check: &Check, carried: bool, tell: &mpsc::Sender<Finding>) {
    let mut pace = Pace::new(check.interval);
    let (mut good, mut bad, mut ready) = (0, 0, carried);
    let mut said = String::new();
    loop {
        match driver.probe(target, &check.probe, check.timeout).await {
            Ok(()) => {
                (good, bad) = (good + 1, 0);
                if !ready && good >= check.successes {
                    ready = true;
                    pace.settle();
                    say(tell, Finding::Ready).await;
                }
            }
            Err(why) => {
                (good, bad) = (0, bad + pace.counts());
                let failed = if ready { bad >= check.failures } else { bad > 0 && why != said };
                if failed {
                    ready = false;
                    said.clone_from(&why);
                    say(tell, Finding::NotReady(why)).await;
                }
            }
        }
        sleep(pace.next()).await;
    }
}

async fn liveness(driver: &dyn Driver, target: &Target, check: &Check, tell: &mpsc::Sender<Finding>) {
    let mut pace = Pace::new(check.interval);
    pace.settle();
    let mut bad = 0;
    loop {
        sleep(pace.next()).await;
        match driver.probe(target, &check.probe, check.timeout).await {
            Ok(()) => bad = 0,
            Err(why) => {
                bad += 1;
                if bad == check.failures {
                    say(
                        tell,
                        Finding::Dead(format!(
                            "its liveness check failed {}: {why}",
                            kinds::count(bad as usize, "time")
                        )),
                    )
                    .await;
                }
            }
        }
    }
}

/// How long until the next question.
struct Pace {
    since: Instant,
    interval: Duration,
    settled: bool,
}

impl Pace {
    fn new(interval: Duration) -> Self {
        Self { since: Instant::now(), interval, settled: false }
    }

    fn settle(&mut self) {
        self.settled = true;
    }

    /// Failures while it's starting are expected; those count that are an interval apart.
    fn counts(&self) -> u32 {
        u32::from(self.settled)
    }

    fn next(&mut self) -> Duration {
        let early = (self.since.elapsed() / 4).max(FIRST_PAUSE);
        self.settled |= early >= self.interval;
        match self.settled {
            false => early,
            true => self.interval.mul_f64(rand::rng().random_range(1.0 - JITTER..=1.0 + JITTER)),
        }
    }
}

/// Asks once. The error says what is wrong, for people, in the same words each time.
pub async fn probe(target: &Target, probe: &Probe, limit: Duration, place: &exec::Place<'_>) -> Result<(), String> {
    let ask = async {
        match probe {
            Probe::Http { path, port } => http::get(port_of(target, port)?, path).await,
            Probe::Tcp { port } => connect(port_of(target, port)?).await.map(drop),
            Probe::Grpc { port, service } => grpc::check(port_of(target, port)?, service).await,
            Probe::Exec { command } => exec::run(command, limit, place).await,
        }
    };
    // A command is ended by its own keeper, which says so; the margin lets it.
    let margin = if matches!(probe, Probe::Exec { .. }) { exec::MARGIN } else { Duration::ZERO };
    timeout(limit + margin, ask).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

fn port_of(target: &Target, name: &str) -> Result<u16, String> {
    let port = target.template.port(name, &target.ports).copied();
    port.ok_or_else(|| format!("the check names port {name:?}, which the template doesn't have"))
}

async fn connect(port: u16) -> Result<TcpStream, String> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(|e| format!("port {port}: {}", plain(&e)))
}

/// Without the operating system's number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
