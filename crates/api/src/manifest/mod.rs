//! Manifests: resources as the YAML or JSON that people write, by the canonical protobuf JSON mapping.
//!
//! The type of a spec comes from `kind`, so `@type` is never read or printed. Nothing is guessed: unknown fields,
//! duplicate keys and values of another type are refused, all of them at once, with file, line, column, field path and
//! the nearest known name. What was printed can be declared again: what only a server can say in `metadata` (`uid`,
//! `revision`, ...) is ignored when read, and so is `status` beside a `uid`, which the document tells. In a manifest that
//! was never printed a `status` is a mistake, and refused.
//!
//! Here is no word about particular kinds: the caller hands in what there is (`Kinds`).

mod bind;
mod diff;
mod document;
mod near;
mod place;
mod tree;
mod write;

#[cfg(test)]
mod tests;

use std::{fmt, ops::RangeInclusive};

use crate::{brief, v1};

pub use diff::changes;
pub use near::nearest;
pub use tree::Place;
pub use write::{Format, body, list, message, one, print};

/// Bytes of one file, which may hold many documents.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Nested lists and maps. The deepest field of any kind is at 8; an unoptimised build takes 40 KiB of stack for a level,
/// and a thread has 2 MiB.
pub const DEPTH_MAX: usize = 24;
/// Documents in one file, items of lists included.
pub const DOCUMENTS_MAX: usize = 10_000;
/// Problems told of one file.
const PROBLEMS_MAX: usize = 20;

/// What kinds there are.
#[derive(Clone, Copy)]
pub struct Kinds<'a> {
    /// Of every kind that may be declared, for suggestions.
    pub names: &'a [&'a str],
    /// The messages of the kind of exactly that name.
    pub types: &'a dyn Fn(&str) -> Option<KindTypes>,
    /// What numbers may be, for errors. Whether one is within them says a server.
    pub ranges: &'a [Range<'a>],
}

/// A field by its full name ("driftless.v1.Rollout.max_surge"), and the least and the most that it may be.
pub type Range<'a> = (&'a str, RangeInclusive<i32>);

/// The full names of a kind's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindTypes {
    pub spec: String,
    pub status: String,
}

/// One declared resource and where it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub resource: v1::Resource,
    pub source: String,
    pub place: Place,
    /// It was printed with its status, which isn't declared with it.
    pub has_status: bool,
    tree: tree::Node,
}

impl Document {
    /// Where that field stands, or else what is nearest around it: "spec.template.ports[0].name".
    pub fn place_of(&self, field: &str) -> Place {
        // Of all metadata only the kind stands beside it.
        let field = if field == "metadata.kind" { "kind" } else { field };
        place::find(&self.tree, field).unwrap_or(self.place)
    }
}

/// Something in a file that can't be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub source: String,
    /// Unknown (line 0) where the text has none, as in JSON with escapes that YAML doesn't know.
    pub place: Place,
    /// "spec.replicas"; empty where it's about the document.
    pub field: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if self.place.line > 0 {
            write!(f, ":{}:{}", self.place.line, self.place.column)?;
        }
        match self.field.as_str() {
            "" => write!(f, ": {}", self.message),
            field => write!(f, ": {}: {}", brief(field), self.message),
        }
    }
}

/// Everything that is wrong with a file, one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct Problems(pub Vec<Problem>);

fn lines(problems: &[Problem]) -> String {
    let mut lines: Vec<String> = problems.iter().take(PROBLEMS_MAX).map(Problem::to_string).collect();
    if problems.len() > PROBLEMS_MAX {
        lines.push(format!("... and {} more", problems.len() - PROBLEMS_MAX));
    }
    lines.join("\n")
}

/// Reads a file: YAML documents, a JSON object, a list of resources, or `{"items": [...]}`. All or nothing.
///
/// `source` is what people know the text by: a path, or "standard input".
pub fn read(source: &str, text: &str, kinds: &Kinds<'_>) -> Result<Vec<Document>, Problems> {
    let fail =
        |place, message| Problems(vec![Problem { source: source.to_owned(), place, field: String::new(), message }]);
    if text.len() > FILE_BYTES_MAX {
        let message = format!("is {} bytes; a manifest holds at most {FILE_BYTES_MAX}: split it", text.len());
        return Err(fail(Place::UNKNOWN, message));
    }
    let nodes = tree::parse(text).map_err(|e| fail(e.place, e.message))?;
    let mut reader = document::Reader::new(source, kinds);
    for node in nodes {
        reader.top(node);
    }
    reader.finish()
}
