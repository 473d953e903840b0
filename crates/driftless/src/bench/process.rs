//! A role of this very binary as a child process, and what the kernel says of it.

use std::{
    env, fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// From the start until it says that it can be used.
const READY_MAX: Duration = Duration::from_secs(60);
/// USER_HZ, in which the kernel counts CPU time for users; a fixed part of its interface on what Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;
/// From SIGTERM to SIGKILL.
const END_MAX: Duration = Duration::from_secs(10);

/// Killed when dropped.
pub struct Process {
    child: Child,
    pid: Pid,
    /// Kept open, so that it can go on writing.
    _out: Lines<BufReader<ChildStdout>>,
    /// What it said when it was ready, after "ready: ".
    pub announced: String,
    pub started_in: Duration,
}

impl Process {
    /// Runs `driftless` with these arguments until it's ready. What it logs goes into `log`.
    pub async fn start(args: &[&str], log: &Path) -> anyhow::Result<Self> {
        let start = Instant::now();
        let log_file = fs::File::options().create(true).append(true).open(log)?;
        let mut child = Command::new(env::current_exe()?)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a child")?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.context("the child has no pid")?;
        let mut out = BufReader::new(child.stdout.take().context("the child has no stdout")?).lines();
        let ready = async {
            while let Some(line) = out.next_line().await? {
                if let Some(announced) = line.strip_prefix("ready: ") {
                    return Ok(announced.to_owned());
                }
            }
            anyhow::bail!("it ended before it was ready:\n{}", fs::read_to_string(log).unwrap_or_default())
        };
        let announced = tokio::time::timeout(READY_MAX, ready)
            .await
            .map_err(|_| anyhow::anyhow!("`driftless {}` wasn't ready within {READY_MAX:?}", args.join(" ")))
            .and_then(|ready| ready)
            .with_context(|| format!("`driftless {}`", args.join(" ")))?;
        Ok(Self { child, pid, _out: out, announced, started_in: start.elapsed() })
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("cannot signal process {:?}", self.pid))
    }

    pub async fn end(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        if tokio::time::timeout(END_MAX, self.child.wait()).await.is_err() {
            self.child.kill().await?;
            anyhow::bail!("a child didn't end within {END_MAX:?} of SIGTERM");
        }
        Ok(())
    }

    /// CPU time so far, of all its threads, also those that ended.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = self.proc("stat")?;
        cpu(&stat).with_context(|| format!("/proc/{}/stat is not as expected: {stat}", self.pid))
    }

    /// Peak of the resident memory, in MiB.
    pub fn peak_mib(&self) -> anyhow::Result<f64> {
        self.status_mib("VmHWM")
    }

    pub fn resident_mib(&self) -> anyhow::Result<f64> {
        self.status_mib("VmRSS")
    }

    fn status_mib(&self, field: &str) -> anyhow::Result<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        Ok(kib.with_context(|| format!("/proc/{}/status has no {field}", self.pid))? / 1024.0)
    }

    fn proc(&self, file: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{file}", self.pid);
        fs::read_to_string(&path).with_context(|| path.clone())
    }
}

/// Share of one core, in percent, that it takes over so long.
pub async fn cpu_percent(process: &Process, over: Duration) -> anyhow::Result<f64> {
    let (before, start) = (process.cpu()?, Instant::now());
    tokio::time::sleep(over).await;
    Ok((process.cpu()? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}

/// `utime` and `stime`, the 14th and 15th of proc_pid_stat(5), behind a name that may hold anything.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_an_odd_name() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194304 1 2 3 4 150 50 7 8 20 0 1 0 100";
        assert_eq!(cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(cpu("42 (short) S 1"), None);
    }
}
