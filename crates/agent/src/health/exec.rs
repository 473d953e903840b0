//! The exec check: a command in the instance's environment and control group, kept by a supervisor, so that it ends in
//! time and leaves nothing behind even when the agent is killed meanwhile. Where the keeper is killed, the agent does it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{io::AsyncReadExt, process::Command};

use crate::{driver::process::checks, template::expand};

/// What the keeper needs beyond the command's time, at most: to start, and to end all that the command began. On a busy machine
/// that may be a while.
pub const MARGIN: Duration = Duration::from_secs(5);
/// Of what the command says, in the message.
const SAID_BYTES_MAX: u64 = 256;
/// As the supervisor says that time was up.
const TIMED_OUT: i32 = 124;

/// Where a check's command runs.
pub struct Place<'a> {
    pub supervisor: &'a Path,
    /// The run's environment, as its supervisor got it.
    pub env: PathBuf,
    pub work: PathBuf,
    pub cgroup: Option<PathBuf>,
    /// What the command is known by, and all that comes of it.
    pub mark: String,
}

pub async fn run(command: &[String], limit: Duration, place: &Place<'_>) -> Result<(), String> {
    let program = command.first().ok_or("the check has no command")?;
    let env = read_env(&place.env);
    let mut keeper = Command::new(place.supervisor);
    keeper.arg("check").arg("--cwd").arg(&place.work).arg("--env").arg(&place.env);
    keeper.arg("--timeout-ms").arg(limit.as_millis().to_string());
    keeper.args(place.cgroup.iter().flat_map(|group| ["--cgroup".as_ref(), group.as_os_str()]));
    keeper.arg("--").args(command.iter().map(|part| expand(part, &env)));
    // The end of standard input tells the keeper that nobody waits any more.
    // It hands the mark on, and has it itself, so that there is no moment without.
    keeper.env_clear().env(checks::VARIABLE, &place.mark);
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let failed = |e: std::io::Error| format!("running the check: {}", super::plain(&e));
    let mut keeper = keeper.spawn().map_err(failed)?;
    let mut output = keeper.stdout.take().ok_or("running the check: no output")?;
    let _waiting = keeper.stdin.take();
    let read = async {
        let mut said = Vec::new();
        (&mut output).take(SAID_BYTES_MAX).read_to_end(&mut said).await?;
        // What is more is thrown away, but the command mustn't wait for a reader.
        tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
        Ok(said)
    };
    let end = async {
        let ended = keeper.wait().await?;
        if ended.code().is_none() {
            // Of whom the output is waited for.
            let mark = place.mark.clone();
            let _ = tokio::task::spawn_blocking(move || checks::kill(&mark)).await;
        }
        Ok(ended)
    };
    let (said, ended) = tokio::try_join!(read, end).map_err(failed)?;
    match ended.code() {
        Some(0) => Ok(()),
        Some(TIMED_OUT) => Err(format!("{program}: did not end within {limit:?}")),
        Some(code) => Err(format!("{program}: exited with code {code}{}", first_line(&said))),
        None => Err(format!("{program}: its keeper was killed")),
    }
}

fn read_env(file: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let entries = text.split('\0').filter_map(|entry| entry.split_once('='));
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn first_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    match text.lines().find(|line| !line.trim().is_empty()) {
        Some(line) => format!(": {line}"),
        None => String::new(),
    }
}
