//! From a document's tree to a resource: kind, metadata, spec.

use prost_reflect::MessageDescriptor;
use prost_types::Any;

use super::{
    DOCUMENTS_MAX, Document, Kinds, Place, Problem, Problems,
    bind::{Binder, Finding, join, twice, unknown},
    tree::{Entry, Node, Value},
};
use crate::{descriptors, v1};

/// The one version there is; may be left out.
pub const API_VERSION: &str = "driftless/v1";
const TOP: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// What users say in `metadata`; the rest is the server's and ignored.
const DECLARED: [&str; 6] = ["name", "namespace", "labels", "annotations", "finalizers", "owner"];

pub struct Reader<'a> {
    source: &'a str,
    kinds: &'a Kinds<'a>,
    documents: Vec<Document>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a str, kinds: &'a Kinds<'a>) -> Self {
        Self { source, kinds, documents: Vec::new(), problems: Vec::new() }
    }

    pub fn finish(self) -> Result<Vec<Document>, Problems> {
        if self.problems.is_empty() { Ok(self.documents) } else { Err(Problems(self.problems)) }
    }

    /// One document of the text: a resource, a list of them, or nothing.
    pub fn top(&mut self, node: Node) {
        match node.value {
            Value::Null => {}
            Value::List(items) => self.items(items),
            Value::Map(entries) if is_list(&entries) => self.listed(entries),
            _ => self.resource(&node),
        }
    }

    /// `{"items": [...], "revision": "..."}`, as lists are printed.
    fn listed(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            match (entry.key.as_str(), entry.node.value) {
                ("items", Value::List(items)) => self.items(items),
                ("items", other) => {
                    self.problem(entry.place, "items", format!("expected a list; found {}", other.kind()));
                }
                ("revision" | "apiVersion", _) => {}
                (key, _) => self.problem(entry.place, key, "unknown field beside items".into()),
            }
        }
    }

    fn items(&mut self, items: Vec<Node>) {
        for item in items {
            self.resource(&item);
        }
    }

    fn problem(&mut self, place: Place, field: &str, message: String) {
        self.problems.push(Problem { source: self.source.to_owned(), place, field: field.to_owned(), message });
    }

    fn resource(&mut self, node: &Node) {
        if self.documents.len() >= DOCUMENTS_MAX {
            self.problem(node.place, "", format!("more than {DOCUMENTS_MAX} documents: split the file"));
            return;
        }
        let mut binder = Binder::new(self.kinds.ranges);
        let bound = bind(&mut binder, self.kinds, node);
        let findings = binder.findings;
        self.problems.extend(findings.into_iter().map(|f: Finding| Problem {
            source: self.source.to_owned(),
            place: f.place,
            field: f.field,
            message: f.message,
        }));
        if let Some((resource, has_status)) = bound {
            let source = self.source.to_owned();
            self.documents.push(Document { resource, source, place: node.place, has_status, tree: node.clone() });
        }
    }
}

fn is_list(entries: &[Entry]) -> bool {
    entries.iter().any(|e| e.key == "items") && entries.iter().all(|e| e.key != "kind")
}

/// What is declared, and whether a status stands beside it. None only with findings.
fn bind(binder: &mut Binder<'_>, kinds: &Kinds<'_>, node: &Node) -> Option<(v1::Resource, bool)> {
    let Value::Map(entries) = &node.value else {
        let found = node.value.kind();
        binder.find(node.place, "", format!("expected a resource, a map with kind, metadata and spec; found {found}"));
        return None;
    };
    let top = Top::find(binder, entries);
    if let Some(version) = top.version.filter(|e| e.node.value != Value::Text(API_VERSION.into())) {
        let found = version.node.value.kind();
        binder.find(version.node.place, "apiVersion", format!("expected {API_VERSION:?}; found {found}"));
    }
    if let Some(status) = top.status().filter(|_| !top.is_printed()) {
        binder.find(status.place, "status", "is reported, never declared; leave it out");
    }
    let kind = kind(binder, kinds, node.place, top.kind);
    let metadata = metadata(binder, node.place, top.metadata);
    let (kind, types) = kind?;
    let descriptor = descriptors().get_message_by_name(&types.spec).expect("kinds name messages of ours");
    let spec = spec(binder, &descriptor, top.spec);
    let resource = v1::Resource { metadata: Some(v1::Metadata { kind, ..metadata }), spec: Some(spec), status: None };
    Some((resource, top.status().is_some()))
}

#[derive(Default)]
struct Top<'a> {
    version: Option<&'a Entry>,
    kind: Option<&'a Entry>,
    metadata: Option<&'a Entry>,
    spec: Option<&'a Entry>,
    /// Not read: only servers write it. See `status`.
    status: Option<&'a Entry>,
}

impl<'a> Top<'a> {
    fn find(binder: &mut Binder<'_>, entries: &'a [Entry]) -> Self {
        let mut top = Self::default();
        for entry in entries {
            let slot = match entry.key.as_str() {
                "apiVersion" | "api_version" => &mut top.version,
                "kind" => &mut top.kind,
                "metadata" => &mut top.metadata,
                "spec" => &mut top.spec,
                "status" => &mut top.status,
                key => {
                    binder.find(entry.place, &join("", key), unknown("field", key, &TOP.map(str::to_owned)));
                    continue;
                }
            };
            match slot {
                Some(first) => binder.find(entry.place, &entry.key, twice(first.place)),
                None => *slot = Some(entry),
            }
        }
        top
    }

    fn status(&self) -> Option<&'a Entry> {
        self.status.filter(|entry| entry.node.value != Value::Null)
    }

    /// A server's answer, as it was printed: it has the uid that only a server gives out.
    fn is_printed(&self) -> bool {
        let metadata = self.metadata.map(|entry| &entry.node.value);
        matches!(metadata, Some(Value::Map(entries)) if entries.iter().any(|entry| entry.key == "uid"))
    }
}

fn kind(
    binder: &mut Binder<'_>,
    kinds: &Kinds<'_>,
    place: Place,
    entry: Option<&Entry>,
) -> Option<(String, super::KindTypes)> {
    let names: Vec<String> = kinds.names.iter().map(|&n| n.to_owned()).collect();
    let Some(entry) = entry else {
        binder.find(place, "kind", format!("missing; there is {}", names.join(", ")));
        return None;
    };
    let Value::Text(name) = &entry.node.value else {
        binder.find(entry.node.place, "kind", format!("expected a kind's name; found {}", entry.node.value.kind()));
        return None;
    };
    let types = (kinds.types)(name);
    if types.is_none() {
        binder.find(entry.node.place, "kind", unknown("kind", name, &names));
    }
    types.map(|types| (name.clone(), types))
}

fn metadata(binder: &mut Binder<'_>, place: Place, entry: Option<&Entry>) -> v1::Metadata {
    let Some(entry) = entry else {
        binder.find(place, "metadata", "missing: write metadata: {name: ...}");
        return v1::Metadata::default();
    };
    let descriptor = descriptors().get_message_by_name("driftless.v1.Metadata").expect("ours");
    let mut node = entry.node.clone();
    if let Value::Map(entries) = &mut node.value {
        entries.retain(|e| e.key == "kind" || is_declared(&descriptor, &e.key));
        for kind in entries.extract_if(.., |e| e.key == "kind") {
            binder.find(kind.place, "metadata.kind", "belongs beside metadata, not into it");
        }
    }
    let message = binder.message(&descriptor, "metadata", &node);
    let metadata: v1::Metadata = message.transcode_to().expect("the same type");
    let is_named = |e: &Entry| e.key == "name" && !matches!(e.node.value, Value::Null | Value::Text(_));
    // One that is no text was found fault with already.
    if metadata.name.is_empty() && matches!(&node.value, Value::Map(entries) if !entries.iter().any(is_named)) {
        binder.find(entry.place, "metadata.name", "missing: every resource has a name");
    }
    metadata
}

/// Declared by users, or known to nobody (which binding says); not what servers stamp.
fn is_declared(descriptor: &MessageDescriptor, key: &str) -> bool {
    let known = descriptor.get_field_by_name(key).or_else(|| descriptor.get_field_by_json_name(key));
    known.is_none_or(|field| DECLARED.contains(&field.name()))
}

fn spec(binder: &mut Binder<'_>, descriptor: &MessageDescriptor, entry: Option<&Entry>) -> Any {
    let value = match entry {
        Some(entry) if entry.node.value != Value::Null => {
            prost::Message::encode_to_vec(&binder.message(descriptor, "spec", &entry.node))
        }
        _ => Vec::new(),
    };
    Any { type_url: format!("type.googleapis.com/{}", descriptor.full_name()), value }
}
