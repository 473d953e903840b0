//! How names, namespaces, labels and annotations look.

use std::collections::BTreeMap;

use api::brief;
use model::Violation;

/// RFC 1123: one label of a host name.
pub const NAME_MAX: usize = 63;
/// `<name>-<10 digits of a template hash>-<slot below 10,000, or a few more>` must be a name too: 46 + 1 + 10 + 1 + 5.
pub const PARENT_NAME_MAX: usize = 46;
pub const LABELS_MAX: usize = 64;
pub const FINALIZERS_MAX: usize = 16;
pub const ANNOTATIONS_MAX: usize = 64;
/// Keys and values of one resource's annotations.
pub const ANNOTATION_BYTES_MAX: usize = 64 * 1024;
const PREFIX_MAX: usize = 253;

/// "web", "node-1".
pub fn name(field: &str, name: &str, most: usize) -> Option<Violation> {
    let violation = |message: String| Some(Violation::new(field, message));
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() {
        violation("missing".into())
    } else if name.len() > most {
        violation(format!("has {} characters; at most {most}", name.len()))
    } else if !name.bytes().all(plain) || name.starts_with('-') || name.ends_with('-') {
        violation(format!("{name:?}: lower-case letters, digits and '-', starting and ending with a letter or digit"))
    } else {
        None
    }
}

pub fn labels(field: &str, labels: &BTreeMap<String, String>) -> Vec<Violation> {
    let mut violations = Vec::new();
    if labels.len() > LABELS_MAX {
        violations.push(Violation::new(field, format!("{} labels; at most {LABELS_MAX}", labels.len())));
    }
    for (key, value) in labels {
        let at = format!("{field}[{key:?}]");
        violations.extend(qualified_name(&at, key));
        if !value.is_empty() && !is_word(value) {
            violations.push(Violation::new(at, format!("value {:?}: {WORD}", brief(value))));
        }
    }
    violations
}

/// Who has something to finish before the record may go.
pub fn finalizers(field: &str, finalizers: &[String]) -> Vec<Violation> {
    let mut violations = Vec::new();
    if finalizers.len() > FINALIZERS_MAX {
        violations.push(Violation::new(field, format!("{} of them; at most {FINALIZERS_MAX}", finalizers.len())));
    }
    for (i, finalizer) in finalizers.iter().enumerate() {
        let at = format!("{field}[{i}]");
        violations.extend(qualified_name(&at, finalizer));
        if finalizers[..i].contains(finalizer) {
            violations.push(Violation::new(at, format!("{:?} is there twice", brief(finalizer))));
        }
    }
    violations
}

pub fn annotations(field: &str, annotations: &BTreeMap<String, String>) -> Vec<Violation> {
    let mut violations: Vec<Violation> =
        annotations.keys().filter_map(|key| qualified_name(&format!("{field}[{key:?}]"), key)).collect();
    if annotations.len() > ANNOTATIONS_MAX {
        violations.push(Violation::new(field, format!("{} of them; at most {ANNOTATIONS_MAX}", annotations.len())));
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ANNOTATION_BYTES_MAX {
        violations.push(Violation::new(field, format!("{bytes} bytes; at most {ANNOTATION_BYTES_MAX}")));
    }
    violations
}

const WORD: &str = "at most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit";

/// "app", "example.com/app".
fn qualified_name(field: &str, key: &str) -> Option<Violation> {
    let (prefix, word) = key.split_once('/').map_or((None, key), |(prefix, word)| (Some(prefix), word));
    if let Some(prefix) = prefix
        && (prefix.len() > PREFIX_MAX || prefix.split('.').any(|part| name("", part, NAME_MAX).is_some()))
    {
        return Some(Violation::new(field, format!("prefix {:?}: a host name, such as example.com", brief(prefix))));
    }
    (!is_word(word)).then(|| Violation::new(field, format!("key {:?}: {WORD}", brief(word))))
}

fn is_word(word: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    word.len() <= NAME_MAX
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && edge(word.bytes().next())
        && edge(word.bytes().last())
}
