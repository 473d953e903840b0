//! A command that goes on, read line by line with a deadline.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

pub struct Lines {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    pub fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// Its stderr goes there.
    pub fn start_with(mut command: Command, stderr: Stdio) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the binary can be started");
        let out = child.stdout.take().expect("piped");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line; none at the end, or when it takes longer.
    pub fn next(&self, within: Duration) -> Option<String> {
        self.lines.recv_timeout(within).ok()
    }

    /// Reads on until it ends by itself.
    #[track_caller]
    pub fn ends(&self, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it didn't end within {within:?}"),
            }
        }
    }

    /// Reads on until it ends by itself, and tells by which code.
    #[track_caller]
    pub fn ends_with(mut self, within: Duration) -> Option<i32> {
        self.ends(within);
        self.child.wait().expect("it's ours").code()
    }

    /// What is there already.
    pub fn ready(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Reads on until a line is what's looked for. Panics, with what was read, where that takes longer.
    #[track_caller]
    pub fn until<T>(&self, what: &str, within: Duration, mut wanted: impl FnMut(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + within;
        let mut read = Vec::new();
        while let Some(line) = self.next(deadline.saturating_duration_since(Instant::now())) {
            if let Some(found) = wanted(&line) {
                return found;
            }
            read.push(line);
        }
        let shown = read.len().saturating_sub(20);
        panic!("{what}: not within {within:?}; read last:\n{}", read[shown..].join("\n"));
    }

    /// The same over JSON lines.
    #[track_caller]
    pub fn until_json<T>(&self, what: &str, within: Duration, mut wanted: impl FnMut(&Value) -> Option<T>) -> T {
        self.until(what, within, |line| wanted(&serde_json::from_str(line).unwrap_or_default()))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
