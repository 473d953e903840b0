//! Field by field, what differs between two specs (or statuses) of one kind.

use std::collections::BTreeMap;

use prost_types::Any;

use super::{tree::Value, write::contents};
use crate::v1;

/// In path order; paths begin with `root` ("spec").
pub fn changes(root: &str, type_name: &str, before: Option<&Any>, after: Option<&Any>) -> Vec<v1::FieldChange> {
    let flat = |any: Option<&Any>| {
        let mut fields = BTreeMap::new();
        if let Some(any) = any {
            flatten(root, &contents(any, Some(type_name)), &mut fields);
        }
        fields
    };
    let (before, after) = (flat(before), flat(after));
    let paths: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let of = |fields: &BTreeMap<String, String>, path: &String| fields.get(path).cloned().unwrap_or_default();
    paths
        .into_iter()
        .map(|path| v1::FieldChange { path: path.clone(), before: of(&before, path), after: of(&after, path) })
        .filter(|change| change.before != change.after)
        .collect()
}

fn flatten(path: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Map(entries) if !entries.is_empty() => {
            return entries.iter().for_each(|e| flatten(&format!("{path}.{}", e.key), &e.node.value, fields));
        }
        Value::List(items) if !items.is_empty() => {
            let items = items.iter().enumerate();
            return items.for_each(|(i, item)| flatten(&format!("{path}[{i}]"), &item.value, fields));
        }
        Value::Map(_) => "{}".to_owned(),
        Value::List(_) => "[]".to_owned(),
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(n) => n.to_string(),
        Value::Text(text) => text.clone(),
    };
    fields.insert(path.to_owned(), text);
}
