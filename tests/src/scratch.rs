//! A directory of a test's own, and all that lives in it: processes, mounts, control groups of instances. All of it is gone
//! when the test ends, and also when the test is killed before it ends.
//!
//! A process that outlives the test clears away, so that nothing has to be remembered by who may be killed at any moment.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

pub struct Scratch {
    dir: TempDir,
    keeper: Child,
}

impl Scratch {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("driftless-test-").tempdir().expect("a temporary directory");
        let mut keeper = Command::new("sh");
        // The directory is not in its arguments, by which it would find itself.
        keeper.args(["-c", include_str!("clear.sh")]).env("DIR", dir.path()).current_dir("/");
        // What interrupts the test goes to its group.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().expect("there is a shell");
        Self { dir, keeper }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The end of its input is what the keeper waits for.
        drop(self.keeper.stdin.take());
        let done = self.keeper.wait();
        if !std::thread::panicking() {
            assert!(done.is_ok_and(|status| status.success()), "something was left in {}", self.path().display());
        }
    }
}

#[cfg(test)]
mod tests;
