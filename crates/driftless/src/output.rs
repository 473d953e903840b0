//! Results go to stdout, words about the work to stderr. A reader that went away is an error like any other, never a
//! panic.

use std::{
    collections::BTreeMap,
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
    told: Told,
}

/// What was last said of each.
#[derive(Default)]
struct Told(BTreeMap<String, String>);

impl Told {
    /// Whether something else than before is said of it.
    fn is_news(&mut self, who: &str, what: &str) -> bool {
        let news = self.0.get(who).is_none_or(|last| last != what);
        if news {
            self.0.insert(who.to_owned(), what.to_owned());
        }
        news
    }
}

impl Progress {
    pub fn start() -> Self {
        let live = io::stderr().is_terminal() && io::stdout().is_terminal();
        Self { started: Instant::now(), live, told: Told::default() }
    }

    pub fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Only what differs from what was last said of the same one is shown.
    pub fn show(&mut self, who: &str, what: &str) {
        if !self.told.is_news(who, what) {
            return;
        }
        let line = format!("{:6.1}s  {who} {what}", self.elapsed());
        if self.live {
            let _ = write!(io::stderr().lock(), "\r\x1b[K{line}");
        } else {
            say(&line);
        }
    }

    /// Ends the live line, so that whatever follows starts a new one.
    pub fn end(&mut self) {
        if self.live && !self.told.0.is_empty() {
            say("");
        }
        self.told = Told::default();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_one_is_not_said_again_because_another_spoke_between() {
        let mut told = Told::default();
        let lines =
            [("a", "1 of 2"), ("b", "1 of 2"), ("a", "1 of 2"), ("a", "2 of 2"), ("b", "1 of 2"), ("a", "1 of 2")];
        assert_eq!(lines.map(|(who, what)| told.is_news(who, what)), [true, true, false, true, false, true]);
    }
}
