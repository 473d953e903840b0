//! Where in a text a field stands, for problems that only a server finds: it knows paths, not lines.

use super::tree::{Entry, Node, Place, Value};

/// The place of the last part of the path that is there; none where nothing of it is.
pub fn find(tree: &Node, path: &str) -> Option<Place> {
    let mut at = tree;
    let mut place = None;
    for name in names(path) {
        let found = match &at.value {
            Value::Map(entries) => entry(entries, &name).map(|entry| (&entry.node, place_of(entry))),
            Value::List(items) => name.parse().ok().and_then(|i: usize| items.get(i)).map(|node| (node, node.place)),
            _ => None,
        };
        let Some((node, there)) = found else { break };
        (at, place) = (node, Some(there));
    }
    place
}

/// A value's own; for what has a line for each of its parts, its name's.
fn place_of(entry: &Entry) -> Place {
    match &entry.node.value {
        Value::Map(_) | Value::List(_) | Value::Null => entry.place,
        _ => entry.node.place,
    }
}

/// By that name, or the one that the JSON mapping has for it: "maxSurge" for "max_surge".
fn entry<'e>(entries: &'e [Entry], name: &str) -> Option<&'e Entry> {
    let squeezed = |text: &str| text.replace('_', "").to_ascii_lowercase();
    let exact = entries.iter().find(|entry| entry.key == name);
    exact.or_else(|| entries.iter().find(|entry| squeezed(&entry.key) == squeezed(name)))
}

/// The parts of `a.b[0].c["d.e"]`.
fn names(path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let quoted = rest.strip_prefix("[\"").and_then(|inner| inner.split_once("\"]"));
        let index = rest.strip_prefix('[').and_then(|inner| inner.split_once(']'));
        if let Some((name, after)) = quoted.or(index) {
            names.push(name.to_owned());
            rest = after;
        } else {
            let plain = rest.trim_start_matches('.');
            let end = plain.find(['.', '[']).filter(|end| *end > 0).unwrap_or(plain.len());
            names.push(plain[..end].to_owned());
            rest = &plain[end..];
        }
    }
    names
}
