//! A process's `/metrics`, as a scrape finds it.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub async fn fetch(pages: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(pages).await.with_context(|| format!("no pages are served on {pages}"))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    anyhow::ensure!(page.starts_with("HTTP/1.1 200"), "a scrape was answered: {page}");
    Ok(page)
}

/// How often something was recorded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recorded {
    /// As if each that was counted had been added by itself.
    pub counted: f64,
    pub timed: f64,
    /// With room for a trace.
    pub traced: f64,
}

/// The family that has exemplars.
const TRACED: &str = "driftless_convergence_duration_seconds_count";

impl Recorded {
    pub async fn now(pages: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self::of(&fetch(pages).await?))
    }

    fn of(page: &str) -> Self {
        let mut recorded = Self::default();
        for line in page.lines().filter(|line| line.starts_with("driftless_")) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap_or_default();
            match name {
                TRACED => recorded.traced += value,
                _ if name.ends_with("_seconds_count") => recorded.timed += value,
                _ if name.ends_with("_total") => recorded.counted += value,
                _ => {}
            }
        }
        recorded
    }

    pub fn since(&self, before: &Self) -> Self {
        Self {
            counted: self.counted - before.counted,
            timed: self.timed - before.timed,
            traced: self.traced - before.traced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Recorded;

    #[test]
    fn what_was_recorded_is_read_off_a_page() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# TYPE driftless_commits_total counter\n\
            driftless_commits_total{outcome=\"committed\"} 3.0\ndriftless_reads_total 2.0\n\
            driftless_watch_lag_seconds_bucket{le=\"0.01\"} 5\ndriftless_watch_lag_seconds_count 7\n\
            driftless_convergence_duration_seconds_count{kind=\"Service\"} 1\n\
            driftless_shards{owner=\"none\"} 9\nprocess_cpu_seconds_total 11.0\n";
        assert_eq!(Recorded::of(page), Recorded { counted: 5.0, timed: 7.0, traced: 1.0 });
    }
}
