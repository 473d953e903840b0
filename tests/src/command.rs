//! The binary, as a user runs it.

use std::{
    env,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::network::Far;

/// Longest any command of a test may take; most take milliseconds, and waits have shorter timeouts of their own.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// Beside the test executable: `target/<profile>/deps/<test>` and `target/<profile>/driftless`.
pub fn binary() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let found = test.ancestors().skip(1).take(2).map(|dir| dir.join("driftless")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("driftless is not built beside {}: run 'cargo build --bins'", test.display()))
}

/// A `driftless` command that talks to that server, with nothing of the caller's environment that matters to it.
pub fn driftless(server: &str) -> Command {
    aimed(Command::new(binary()), server)
}

/// The same in a mount namespace where the machine's boot id is what that file says. Only root may make one.
pub fn driftless_of_boot(server: &str, boot_id: &Path) -> Command {
    let mut command = in_own_mounts("mount --bind \"$0\" /proc/sys/kernel/random/boot_id");
    command.arg(boot_id).arg(binary());
    aimed(command, server)
}

/// The same at the other end of a cable.
pub fn driftless_at(far: &Far, server: &str) -> Command {
    let mut command = far.entering();
    command.arg(binary());
    aimed(command, server)
}

/// The same where control groups can be seen, but not made. Only root may.
pub fn driftless_without_cgroups(server: &str) -> Command {
    let all = "awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts";
    let each = "while read -r mount; do mount -o remount,bind,ro \"$mount\" || exit 1; done";
    let mut command = in_own_mounts(&format!("{all} | {each}"));
    command.arg("sh").arg(binary());
    aimed(command, server)
}

/// Does `first` in a mount namespace of its own, then becomes the arguments after the next one.
fn in_own_mounts(first: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{{ {first}; }} && exec \"$@\"")]);
    command
}

fn aimed(mut command: Command, server: &str) -> Command {
    command.env_remove("RUST_LOG").env("DRIFTLESS_SERVER", server).stdin(Stdio::null());
    command
}

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    /// What it said to the person.
    #[track_caller]
    pub fn says(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "expected {part:?} in:\n{}", self.stderr);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in:\n{}", self.stdout))
    }
}

/// Runs it to its end, with that standard input.
pub fn run(command: Command, input: &[u8]) -> Done {
    let mut command = command;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be started");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // Beside: an input larger than a pipe holds must not wait for output that nobody reads. A refusal before the end of
    // the input breaks the pipe, which is no failure of the test.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let watchdog = crate::processes::Watchdog::kill_after(child.id(), COMMAND_MAX);
    let output = child.wait_with_output().expect("it can be waited for");
    drop(watchdog);
    writer.join().expect("the writer doesn't panic");
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A path below the repository's root.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository").join(path)
}
