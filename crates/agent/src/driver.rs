//! What a node runs instances by. The agent decides; a driver does one thing when asked, tells what it sees, and keeps
//! what an agent must not forget when it's killed.
//!
//! `process` runs real processes under supervisors; `sim` runs nothing. Another one (Docker, say) needs this trait only.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api::v1;
use async_trait::async_trait;
use futures::future::BoxFuture;
use model::{Key, Time};
use serde::{Deserialize, Serialize};
use store::LogStream;

use crate::{
    Moment,
    node::{Confirmation, Unconfirmed},
    template::{Limits, Probe, Template},
};

pub mod process;
pub mod sim;

/// An instance, for all time: its name may be used again, its uid isn't.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub uid: Arc<str>,
    pub key: Key,
}

/// What must survive the agent, kept by the driver beside each instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Counts starts, from 1; 0: never started.
    pub run: u64,
    /// How often it was started again.
    pub restarts: u32,
    /// Starts since it last ran stably; the backoff follows from it.
    pub failures: u32,
    /// When this run was started.
    #[serde(with = "micros")]
    pub started: Time,
    pub ports: BTreeMap<String, u16>,
    /// Of the run before.
    pub last_exit: Option<Exit>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub how: How,
    #[serde(with = "micros")]
    pub time: Time,
    /// The last lines it wrote, where it failed.
    pub log_tail: String,
    /// Why it was made to end, where it was found unwell.
    #[serde(default)]
    pub unwell: Option<String>,
    /// It ended by itself, after the kernel had killed something of its tree for want of memory.
    #[serde(default)]
    pub lost_some: bool,
}

impl Exit {
    pub fn new(how: How, time: Time) -> Self {
        Self { how, time, log_tail: String::new(), unwell: None, lost_some: false }
    }

    /// Ended by itself, with nothing wrong. Code 0 from what was stopped since it was unwell is no success.
    pub fn is_success(&self) -> bool {
        self.how == How::Code(0) && self.unwell.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Code(i32),
    Signal(i32),
    /// It never ran: why, for people.
    CannotStart(String),
    /// The kernel killed it since its memory limit was reached.
    OutOfMemory,
    /// It was stopped since no server was heard for too long.
    CutOff,
    /// Its supervisor vanished; what was left of the tree was killed.
    SupervisorLost,
    /// The machine (or its container) started anew below it.
    MachineRestarted,
}

/// What must survive the agent about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    pub machine_id: String,
    /// The store whose word counts.
    pub incarnation: Option<String>,
    /// What the last complete list left in doubt, so that the next agent goes on saying it.
    #[serde(default)]
    pub unconfirmed: Option<Unconfirmed>,
    /// The confirmation after which nothing was left to stop; it's good for nothing more.
    #[serde(default)]
    pub used: Option<Confirmation>,
}

/// An instance that the driver has, whoever started it.
pub struct Found {
    /// As it was assigned when it was last started.
    pub resource: v1::Resource,
    /// But that can't be read any more: it's what `assigned::unread` says.
    pub unread: bool,
    pub memory: Memory,
    pub ready: bool,
    /// It was being stopped for good.
    pub stop: bool,
    pub run: FoundRun,
}

pub enum FoundRun {
    Never,
    Running(Started),
    Exited(Exit),
    /// Nobody keeps it any more; what may be left of it must be killed.
    Broken,
    /// It can't be told at present; look again.
    Unknown(String),
}

/// A run that is going on.
pub struct Started {
    pub pid: i64,
    pub ports: BTreeMap<String, u16>,
    pub reached: Reached,
    pub ended: BoxFuture<'static, Ended>,
}

/// How often a run came up against its limits, as the kernel counts. Time that it was made to wait for CPU isn't among
/// them: that is what such a limit does all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Processes and threads that it was refused.
    pub pids: u64,
    /// Of its processes that were killed for want of memory.
    pub memory: u64,
}

impl Reached {
    /// Only the magnitude: what grows all the time isn't told anew each time.
    pub fn rounded(self) -> Self {
        let magnitude = |n: u64| n.checked_ilog10().map_or(0, |digits| 10_u64.pow(digits));
        Self { pids: magnitude(self.pids), memory: magnitude(self.memory) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Exit(Exit),
    Broken,
}

/// What a start needs. The memory is as it shall be kept from this run on.
#[derive(Clone)]
pub struct Launch {
    pub id: Id,
    pub resource: Arc<v1::Resource>,
    pub template: Arc<Template>,
    pub memory: Memory,
    /// Where the template says so: until when it may run without another word from a server.
    pub contact_until: Option<Moment>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It counts as a run that ended at once.
    #[error("cannot start")]
    CannotStart(Exit),
    /// The node's trouble, not the instance's: nothing was started.
    #[error("{0}")]
    Trouble(String),
    /// Something runs already: the run before, or this one, which didn't answer.
    #[error("a run is still alive; look again")]
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ask, then kill the tree after the grace.
    Gracefully,
    /// Kill the tree.
    Kill,
    /// Its keeper doesn't react: end that, so that what is left can be cleaned up.
    Destroy,
}

pub type Result<T, E = Trouble> = std::result::Result<T, E>;

/// The node couldn't do it: what, and why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(pub String);

/// Every call may be repeated.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn capacity(&self) -> v1::Capacity;

    /// Makes a machine id at the first call.
    async fn load_node(&self) -> Result<NodeMemory>;

    async fn save_node(&self, memory: &NodeMemory) -> Result<()>;

    /// Everything that is here.
    async fn observe(&self) -> Result<Vec<Found>>;

    /// One of them, again, and which run that is.
    async fn look(&self, id: &Id) -> Result<(Memory, FoundRun)>;

    /// Starts a run that isn't there yet; the answer comes once the program runs.
    async fn start(&self, launch: Launch) -> Result<Started, StartError>;

    /// Asks; `Started::ended` tells when it's so.
    async fn stop(&self, id: &Id, how: Stop) -> Result<()>;

    /// Kills what is left of a broken run, and keeps that it ended so.
    async fn clean(&self, id: &Id) -> Result<Exit>;

    /// A server was heard: a run that must not go on without may until then.
    async fn heard(&self, id: &Id, until: Moment);

    /// Which of the limits can't be enforced here, in words; none where all can.
    fn unenforced(&self, limits: &Limits) -> Option<String>;

    /// How often that run came up against the others.
    async fn reached(&self, target: &Target) -> Reached;

    async fn note_ready(&self, id: &Id, ready: bool) -> Result<()>;

    async fn note_stop(&self, id: &Id, stop: bool) -> Result<()>;

    /// Forgets an instance of which nothing runs. Its logs may be kept for a while.
    async fn forget(&self, id: &Id) -> Result<()>;

    /// One health check; the error says what is wrong, for people.
    async fn probe(&self, target: &Target, probe: &Probe, timeout: Duration) -> Result<(), String>;

    /// What the instance wrote.
    async fn logs(&self, id: &Id, part: LogPart) -> Result<LogStream>;
}

/// Which part of what an instance wrote. By default all that is kept of the present or last run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPart {
    /// Of the run before.
    pub previous: bool,
    /// Only what was written since then, to the second.
    pub since: Option<SystemTime>,
    /// Only so many last lines.
    pub tail: Option<usize>,
    /// And all that comes, also of later runs, until the instance is gone.
    pub follow: bool,
    /// Behind that position, which a piece told; then nothing but `follow` counts.
    pub after: Option<String>,
}

/// Whom a check is about.
#[derive(Clone)]
pub struct Target {
    pub id: Id,
    pub run: u64,
    pub template: Arc<Template>,
    pub ports: BTreeMap<String, u16>,
}

/// `model::Time` as it is kept on disk: microseconds since the Unix epoch.
pub(crate) mod micros {
    use model::Time;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(time.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        i64::deserialize(deserializer).map(Time)
    }
}
