//! Results go to stdout, words about the work to stderr. A reader that went away is an error like any other, never a
//! panic.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    time::Instant,
};

use api::manifest::Format;

/// How a verb prints what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    Text,
    Yaml,
    Json,
}

impl Output {
    /// None: text for eyes.
    pub fn format(self) -> Option<Format> {
        match self {
            Self::Text => None,
            Self::Yaml => Some(Format::Yaml),
            Self::Json => Some(Format::Json),
        }
    }
}

/// A part of the result.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// A line for the person who waits.
pub fn say(line: &str) {
    // Where stderr is gone, nobody is there to be told.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Columns padded to their widest cell, two spaces between them.
pub fn table(title: &[String], rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    let widths: Vec<usize> = (0..title.len())
        .map(|i| rows.iter().chain([&title.to_vec()]).filter_map(|r| r.get(i)).map(|c| width(c)).max().unwrap_or(0))
        .collect();
    for row in [title.to_vec()].iter().chain(rows) {
        let mut line = String::new();
        for (cell, wide) in row.iter().zip(&widths) {
            let cell = if cell.is_empty() { "-" } else { cell };
            let _ = write!(line, "{cell}{}  ", " ".repeat(wide.saturating_sub(width(cell))));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn width(cell: &str) -> usize {
    cell.chars().count().max(1)
}

/// What happens while one waits: a line that changes on a terminal, a line for each change elsewhere.
pub struct Progress {
    started: Instant,
    live: bool,
    last: String,
}

impl Progress {
    pub fn start() -> Self {
        let live = io::stderr().is_terminal() && io::stdout().is_terminal();
        Self { started: Instant::now(), live, last: String::new() }
    }

    pub fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Only what differs from the last line is shown.
    pub fn show(&mut self, what: &str) {
        if what == self.last {
            return;
        }
        self.last = what.to_owned();
        if self.live {
            let _ = write!(io::stderr().lock(), "\r\x1b[K{:6.1}s  {what}", self.elapsed());
        } else {
            say(&format!("{:6.1}s  {what}", self.elapsed()));
        }
    }

    /// Ends the live line, so that whatever follows starts a new one.
    pub fn end(&mut self) {
        if self.live && !self.last.is_empty() {
            say("");
        }
        self.last.clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
