//! How a run ended: waits for its supervisor's end, and reads what that left on disk.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::OwnedFd,
    path::Path,
    process::Child,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use model::Time;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    folder::{self, Folder},
    identity::{Fields, Identity, Life},
    launch,
};
use crate::{
    driver::{Ended, Exit, How},
    template::Template,
};

/// Of the log, in `Exit::log_tail`.
const TAIL_BYTES: u64 = 2048;
const TAIL_LINES: usize = 10;

pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Ready as soon as the supervisor has ended, and with it the whole tree.
pub async fn wait(
    supervisor: Arc<OwnedFd>,
    child: Option<Child>,
    folder: Folder,
    run: u64,
    remove_groups: impl FnOnce() + Send + 'static,
) -> Ended {
    // A pidfd is readable once its process has ended.
    // SAFETY: the descriptor is owned by the Arc, which is kept as long as the registration, and never changes.
    match unsafe { AsyncFd::register_with_interest(Arc::clone(&supervisor), Interest::READABLE) } {
        Ok(held) => drop(held.readable().await),
        Err(e) => {
            tracing::error!(error = %e, "the runtime can't wait for a supervisor; a thread does");
            // It ends with the wait, one way or the other.
            let _ = tokio::task::spawn_blocking(move || wait_blocking(&supervisor)).await;
        }
    }
    let read = move || {
        if let Some(mut child) = child {
            let _ = child.wait();
        }
        remove_groups();
        read(&folder.run(run), &folder).map_or(Ended::Broken, Ended::Exit)
    };
    tokio::task::spawn_blocking(read).await.unwrap_or(Ended::Broken)
}

fn wait_blocking(supervisor: &OwnedFd) {
    while let Err(Errno::INTR) = poll(&mut [PollFd::new(supervisor, PollFlags::IN)], None) {}
}

/// None: it didn't come to write one. Only for when nobody keeps the run any more: one who was killed before the record had
/// its name has written it all the same.
pub fn read(dir: &Path, folder: &Folder) -> Option<Exit> {
    let mut records = ["exit", "exit.new"].into_iter().filter_map(|name| Fields::read(&dir.join(name)));
    let (time, fields) = records.find_map(|fields| Some((Time(fields.number("time")?), fields)))?;
    // What was lost of it before doesn't matter any more once it was asked to end.
    let lost = fields.text("oom") == Some("true") && fields.text("asked") != Some("true");
    let how = match (fields.number("code"), fields.number("signal"), fields.number("errno")) {
        (Some(0), _, _) => How::Code(0),
        // So the kernel does it; of another end it was one of its children that was killed.
        (_, Some(libc::SIGKILL), _) if lost => How::OutOfMemory,
        _ if fields.text("late") == Some("true") => How::CutOff,
        (Some(code), _, _) => How::Code(code),
        (_, Some(signal), _) => How::Signal(signal),
        (_, _, Some(errno)) => How::CannotStart(why(folder, errno, fields.text("at").unwrap_or_default())),
        _ if fields.text("lost") == Some("machine") => How::MachineRestarted,
        _ => How::SupervisorLost,
    };
    let log_tail = if how == How::Code(0) { String::new() } else { tail(dir) };
    let lost_some = lost && matches!(how, How::Code(_) | How::Signal(_));
    Some(Exit { log_tail, lost_some, ..Exit::new(how, time) })
}

fn why(folder: &Folder, errno: i32, at: &str) -> String {
    let spec = folder.resource().ok().and_then(|r| crate::assigned::spec(&r));
    let template = Template::from(&spec.and_then(|s| s.template).unwrap_or_default());
    launch::cannot_start(&template, &folder.work(), errno, at)
}

/// What became of a run that left no record.
pub fn of_broken(dir: &Path) -> How {
    let supervisor = Identity::read(&dir.join("supervisor"));
    match (supervisor, Life::now()) {
        (Some(supervisor), Ok(life)) if supervisor.life != life => How::MachineRestarted,
        _ => How::SupervisorLost,
    }
}

/// On behalf of a supervisor that can't any more.
pub fn write(dir: &Path, how: &How, time: Time) -> io::Result<Exit> {
    let lost = if *how == How::MachineRestarted { "machine" } else { "supervisor" };
    folder::write(dir, "exit", format!("lost {lost}\ntime {}\n", time.0).as_bytes(), true)?;
    Ok(Exit { log_tail: tail(dir), ..Exit::new(how.clone(), time) })
}

/// The last lines, within a bound; also of the file before, where the newest was just begun.
fn tail(dir: &Path) -> String {
    let mut bytes = end_of(&dir.join("log"), TAIL_BYTES).unwrap_or_default();
    let room = TAIL_BYTES.saturating_sub(bytes.len() as u64);
    if room > 0 {
        // There mostly is none.
        let before = end_of(&dir.join("log.1"), room).unwrap_or_default();
        bytes.splice(0..0, before);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

fn end_of(log: &Path, length: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(log)?;
    let all = file.metadata()?.len();
    file.seek(SeekFrom::Start(all.saturating_sub(length)))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}
