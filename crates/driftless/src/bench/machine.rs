//! The machine below the figures: what it is, and its floor, that is what no control plane on it could be faster than.

use std::{
    fmt, fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    thread,
    time::Instant,
};

use serde::Serialize;

use super::figures::{Figure, Samples};

const SYNCS: usize = 500;
const SPAWNS: usize = 200;
const ROUND_TRIPS: usize = 2000;
/// About what a small transaction adds to a log.
const SYNCED_BYTES: usize = 4096;

#[derive(Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub kernel: String,
    /// Built without optimisation: then the figures say nothing.
    pub debug_build: bool,
    /// Of the machine in the minute before: others at work make every figure worse.
    pub load: String,
}

impl Machine {
    pub fn here() -> Self {
        let line = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = line("/proc/meminfo", "MemTotal");
        let memory_kib: u64 = memory.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpu: line("/proc/cpuinfo", "model name"),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory_mib: memory_kib / 1024,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            debug_build: cfg!(debug_assertions),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, memory_mib, kernel, load, .. } = self;
        write!(f, "{cpu}, {cores} cores, {memory_mib} MiB, Linux {kernel}, load {load} at the start")?;
        if self.debug_build {
            write!(f, "\nA DEBUG BUILD: these figures say nothing; build with --release")?;
        }
        Ok(())
    }
}

/// All of it, on the file system that `dir` is on.
pub fn floor(dir: &Path) -> anyhow::Result<Vec<Figure>> {
    Ok(vec![
        fdatasync(dir)?.p50("floor_fdatasync_p50", "floor: write 4 KiB and fdatasync"),
        spawn()?.p50("floor_spawn_p50", "floor: spawn /bin/true and reap it"),
        round_trip()?.p50("floor_tcp_p50", "floor: loopback TCP round trip of a byte"),
    ])
}

fn fdatasync(dir: &Path) -> anyhow::Result<Samples> {
    let path = dir.join("fdatasync");
    let mut file = fs::File::create(&path)?;
    let block = [7; SYNCED_BYTES];
    let mut once = || {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        Ok(start.elapsed())
    };
    let samples = (0..SYNCS).map(|_| once()).collect::<std::io::Result<Samples>>();
    fs::remove_file(path)?;
    Ok(samples?)
}

fn spawn() -> anyhow::Result<Samples> {
    let once = || {
        let start = Instant::now();
        let status = Command::new("/bin/true").status()?;
        anyhow::ensure!(status.success(), "/bin/true ended with {status}");
        Ok(start.elapsed())
    };
    (0..SPAWNS).map(|_| once()).collect()
}

fn round_trip() -> anyhow::Result<Samples> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    // Ends when `near` does.
    let echo = thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    let mut once = || {
        let start = Instant::now();
        near.write_all(&[1])?;
        near.read_exact(&mut [0])?;
        Ok(start.elapsed())
    };
    let samples = (0..ROUND_TRIPS).map(|_| once()).collect::<std::io::Result<Samples>>();
    drop(near);
    echo.join().map_err(|_| anyhow::anyhow!("the echo panicked"))?;
    Ok(samples?)
}
