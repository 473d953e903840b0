//! Results go to stdout, words about the work to stderr. A reader that went away is an error like any other, never a
//! panic.
//!
//! What is said may quote what programs wrote, so nothing leaves from here that a terminal would obey: only `logs`, which is
//! the program's own output, goes past this.

use std::{
    borrow::Cow,
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
    out.write_all(visible(text).as_bytes())?;
    out.flush()?;
    Ok(())
}

/// A line for the person who waits.
pub fn say(line: &str) {
    // Where stderr is gone, nobody is there to be told.
    let _ = writeln!(io::stderr().lock(), "{}", visible(line));
}

/// Control characters other than line breaks and tabs, spelled as JSON and quoted YAML spell them: so it's right for text and
/// leaves documents what they are. JSON itself leaves DEL and those from 0x80 on as they are.
fn visible(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match hidden(c) {
            true => _ = write!(shown, "\\u{:04x}", u32::from(c)),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// Columns padded to their widest cell, two spaces between them.
pub fn table(title: &[String], rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    let rows: Vec<Vec<String>> = rows.iter().map(|r| r.iter().map(|c| visible(c).into_owned()).collect()).collect();
    let widths: Vec<usize> = (0..title.len())
        .map(|i| rows.iter().chain([&title.to_vec()]).filter_map(|r| r.get(i)).map(|c| width(c)).max().unwrap_or(0))
        .collect();
    for row in [title.to_vec()].iter().chain(&rows) {
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
            let _ = write!(io::stderr().lock(), "\r\x1b[K{}", visible(&line));
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
    fn nothing_that_a_program_wrote_speaks_to_the_terminal() {
        assert_eq!(visible("\x1b]0;title\x07end\r\n\tnext"), "\\u001b]0;title\\u0007end\\u000d\n\tnext");
        assert_eq!(visible("\u{7f}\u{9b}2Jé"), "\\u007f\\u009b2Jé");
        assert!(matches!(visible("one\n\ttwo é"), Cow::Borrowed(_)));
        let table = table(&["WHY".into(), "AGE".into()], &[vec!["\x1b[2J".into(), "1s".into()]]);
        assert_eq!(table, "WHY        AGE\n\\u001b[2J  1s\n", "a cell is as wide as it's shown");
    }

    #[test]
    fn a_document_means_the_same_once_it_is_visible() {
        let value = serde_json::json!({ "message": "\x1b]0;title\x07\r\u{7f}\u{9b}2J" });
        let json = api::manifest::print(&value, Format::Json);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&visible(&json)).ok().as_ref(), Some(&value));
        let yaml = api::manifest::print(&value, Format::Yaml);
        assert_eq!(visible(&yaml), yaml, "its writer spells them already");
    }

    #[test]
    fn what_was_said_of_one_is_not_said_again_because_another_spoke_between() {
        let mut told = Told::default();
        let lines =
            [("a", "1 of 2"), ("b", "1 of 2"), ("a", "1 of 2"), ("a", "2 of 2"), ("b", "1 of 2"), ("a", "1 of 2")];
        assert_eq!(lines.map(|(who, what)| told.is_news(who, what)), [true, true, false, true, false, true]);
    }
}
