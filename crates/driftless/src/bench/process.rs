//! A role of this very binary as a child process, and what the kernel says of it.

use std::{
    env, fs,
    path::{Path, PathBuf},
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
    out: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Process {
    /// `driftless` with these arguments. What it logs goes into `log`.
    pub fn role(args: &[&str], log: &Path) -> anyhow::Result<Self> {
        Self::spawn(&env::current_exe()?, args, log)
    }

    pub fn spawn(program: &Path, args: &[&str], log: &Path) -> anyhow::Result<Self> {
        let log_file = fs::File::options().create(true).append(true).open(log)?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let out = BufReader::new(child.stdout.take().context("the child has no stdout")?).lines();
        Ok(Self { child, pid: pid.context("the child has no pid")?, out, log: log.to_owned() })
    }

    /// Returns what it says when it can be used, after "ready: ".
    pub async fn ready(&mut self) -> anyhow::Result<String> {
        let ready = async {
            while let Some(line) = self.out.next_line().await? {
                if let Some(announced) = line.strip_prefix("ready: ") {
                    return Ok(announced.to_owned());
                }
            }
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            anyhow::bail!("a child ended before it was ready; {} says:\n{said}", self.log.display())
        };
        let ready = tokio::time::timeout(READY_MAX, ready).await;
        ready.map_err(|_| anyhow::anyhow!("a child wasn't ready within {READY_MAX:?}"))?
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("cannot signal process {:?}", self.pid))
    }

    pub async fn end(self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        self.ended().await
    }

    /// Waits for one that was told to end.
    pub async fn ended(mut self) -> anyhow::Result<()> {
        if tokio::time::timeout(END_MAX, self.child.wait()).await.is_err() {
            self.child.kill().await?;
            anyhow::bail!("a child didn't end within {END_MAX:?} of SIGTERM");
        }
        Ok(())
    }

    /// At once, and gone when this returns.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// CPU time so far, of all its threads, also those that ended.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        cpu(self.pid.as_raw_pid())
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

/// CPU time of any process.
pub fn cpu(pid: i32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
    cpu_of(&stat).with_context(|| format!("{path} is not as expected: {stat}"))
}

/// Processes of that name (its first 15 bytes) that have the text in their command line.
pub fn named(name: &str, text: &str) -> anyhow::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended meanwhile.
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if read("comm").trim_end() == name && read("cmdline").contains(text) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// CPU time of the calling thread; up to a tick of the kernel behind.
pub fn thread_cpu() -> anyhow::Result<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).context(path)?;
    let nanos =
        text.split(' ').next().and_then(|nanos| nanos.parse().ok()).with_context(|| format!("{path}: {text}"))?;
    Ok(Duration::from_nanos(nanos))
}

/// Memory of a process that no other one shares, in KiB.
pub fn private_kib(pid: i32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok())
    };
    field("Private_Clean:").zip(field("Private_Dirty:")).map(|(clean, dirty)| clean + dirty).context(path)
}

/// `utime` and `stime`, the 14th and 15th of proc_pid_stat(5), behind a name that may hold anything.
fn cpu_of(stat: &str) -> Option<Duration> {
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
        assert_eq!(cpu_of(stat), Some(Duration::from_secs(2)));
        assert_eq!(cpu_of("42 (short) S 1"), None);
    }
}
