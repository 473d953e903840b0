//! What the kernel says of this process, under the names that Prometheus' own clients use.

use std::{fs, sync::OnceLock};

use super::{Family, Page, Source};

const BUILD_INFO: Family =
    Family::gauge("driftless_build_info", &["role", "version"], "Always 1: which program this is, and in which role");
const READY: Family = Family::gauge("driftless_ready", &["role"], "1 where the role can do its work, as /readyz says");
const CPU: Family = Family::counter("process_cpu_seconds_total", &[], "Time that it computed, in user and kernel");
const MEMORY: Family = Family::gauge("process_resident_memory_bytes", &[], "Memory that it occupies");
const STARTED: Family = Family::gauge("process_start_time_seconds", &[], "When it started, since 1970");
const FILES: Family = Family::gauge("process_open_fds", &[], "Files and sockets that it has open");

pub const FAMILIES: &[Family] = &[BUILD_INFO, READY, CPU, MEMORY, STARTED, FILES];

pub struct Process {
    pub role: &'static str,
    pub version: &'static str,
}

impl Source for Process {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&self, page: &mut Page<'_>) {
        page.values(&BUILD_INFO, [([self.role, self.version], 1.0)]);
        if let Some(stat) = Stat::read() {
            page.value(&CPU, stat.cpu_ticks as f64 / ticks_per_second());
            page.value(&MEMORY, stat.pages as f64 * rustix::param::page_size() as f64);
            if let Some(booted) = booted() {
                page.value(&STARTED, booted + stat.started_ticks as f64 / ticks_per_second());
            }
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            page.value(&FILES, files.count() as f64);
        }
    }
}

/// Each role, and whether it's ready.
pub struct Ready(pub Vec<(&'static str, bool)>);

impl Source for Ready {
    fn families(&self) -> &'static [Family] {
        const { &[READY] }
    }

    fn collect(&self, page: &mut Page<'_>) {
        page.values(&READY, self.0.iter().map(|(role, ready)| ([*role], f64::from(u8::from(*ready)))));
    }
}

/// Of `/proc/self/stat`; see proc(5).
struct Stat {
    cpu_ticks: u64,
    started_ticks: u64,
    pages: u64,
}

impl Stat {
    fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        // The second field is a name in brackets, which may hold anything; the third follows the last bracket.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self { cpu_ticks: field(14)? + field(15)?, started_ticks: field(22)?, pages: field(24)? })
    }
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// When the machine did, in seconds since 1970. It doesn't change while we run.
fn booted() -> Option<f64> {
    static BOOTED: OnceLock<Option<f64>> = OnceLock::new();
    *BOOTED.get_or_init(|| {
        let text = fs::read_to_string("/proc/stat").ok()?;
        text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    })
}
