//! `driftless describe`: everything about one resource, for reading and for programs.

use std::fmt::Write as _;

use anyhow::Context;
use api::{
    manifest::{self, Format},
    v1,
};
use model::{Filter, Key};
use serde_json::{Value, json};

use super::{
    get::{self, Table},
    history,
};
use crate::{
    client::Client,
    edit,
    output::{self, Output},
    standing::Head,
    vouched,
    words::{self, DEFAULT_NAMESPACE, manifest_kinds},
};

mod node;

/// History entries shown.
const ENTRIES: i32 = 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless describe service web
  driftless describe node/n1
  driftless describe service web -o yaml

JSON and YAML are {\"resource\": ..., \"children\": [...], \"history\": [...]}: resources as 'driftless get' prints them, the \
newest entries as 'driftless history' does. Of a node there are \"instances\" too: what is there, whoever owns it.")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// Text is for eyes, YAML and JSON for programs.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let object = client.api.get(&key).await?;
    let object = object.ok_or_else(|| words::missing(&key))?;
    let resource = object.resource().with_context(|| format!("{key} can't be decoded"))?;
    let resource = vouched::shown(client, vec![resource]).await?.remove(0);
    let uid = resource.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
    let (children, _) = get::all(client, Filter { owner_uid: uid, ..Filter::default() }).await?;
    let here = if key.kind() == kinds::node::KIND { Some(node::instances(client, key.name()).await?) } else { None };
    if let Some(format) = args.output.format() {
        let history = history::values(client, &key, ENTRIES).await?;
        return output::print(&manifest::print(&value(&resource, &children, here.as_deref(), history), format));
    }
    let entries = history::entries(client, &key, ENTRIES).await?;
    let mut lines = head(&key, &resource);
    if let Some(here) = &here {
        lines.extend(node::head(client, &resource, here, &entries).await?);
    }
    let mut text = String::new();
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "{:14}{value}", format!("{name}:"));
    }
    bodies(&mut text, &resource);
    text += &conditions(&resource);
    if !children.is_empty() {
        section(&mut text, "Children", &Table { wide: true, namespaces: false }.text(&children));
    }
    if let Some(here) = here.filter(|here| !here.is_empty()) {
        section(&mut text, "Instances", &Table { wide: true, namespaces: true }.text(&here));
    }
    section(&mut text, "History", &history::text(&entries));
    output::print(&text)
}

/// Everything for programs.
fn value(
    resource: &v1::Resource,
    children: &[v1::Resource],
    here: Option<&[v1::Resource]>,
    history: Vec<Value>,
) -> Value {
    let as_got = |resource: &v1::Resource| -> Value {
        let text = manifest_kinds(|kinds| manifest::one(resource, kinds, Format::Json));
        serde_json::from_str(&text).expect("it was written as JSON just now")
    };
    let all = |resources: &[v1::Resource]| -> Vec<Value> { resources.iter().map(as_got).collect() };
    let mut value = json!({ "resource": as_got(resource), "children": all(children), "history": history });
    if let Some(here) = here {
        value["instances"] = json!(all(here));
    }
    value
}

fn section(text: &mut String, title: &str, body: &str) {
    let _ = writeln!(text, "\n{title}:");
    for line in body.lines() {
        let _ = writeln!(text, "  {line}");
    }
}

fn head(key: &Key, resource: &v1::Resource) -> Vec<(&'static str, String)> {
    let m = resource.metadata.clone().unwrap_or_default();
    let head = Head::of(resource);
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(", ")
    };
    let writer = m.last_writer.clone().unwrap_or_default();
    vec![
        ("Name", key.name().to_owned()),
        ("Namespace", key.namespace().to_owned()),
        ("Kind", key.kind().to_owned()),
        ("UID", m.uid.clone()),
        ("Labels", pairs(&m.labels)),
        ("Annotations", pairs(&m.annotations)),
        ("Owner", m.owner.as_ref().map(|o| words::short(&Key::of_owner(o))).unwrap_or_default()),
        ("Created", since(m.created_time.as_ref())),
        ("Deleting", since(m.deletion_time.as_ref())),
        ("Finalizers", m.finalizers.join(", ")),
        ("Generation", format!("{} (observed {})", m.generation, head.observed_generation)),
        ("Revision", format!("{}, by {}", m.revision, writer.actor)),
        ("Field owners", field_owners(resource, &m)),
        ("Shard", m.shard.to_string()),
    ]
}

/// Who says what of the fields that commands set beside manifests.
fn field_owners(resource: &v1::Resource, metadata: &v1::Metadata) -> String {
    let Some(kind) = kinds::kind(&metadata.kind) else { return String::new() };
    let owner = |shared: &kinds::Shared| {
        let path = format!("spec.{}", shared.path);
        let named = edit::is_set(resource, kind.info().spec_type, shared.path).then(|| "apply".to_owned());
        let owner = metadata.field_owners.get(&path).cloned().or(named);
        format!("{path}: {}", owner.unwrap_or_else(|| "nobody (the default)".into()))
    };
    kind.shared().iter().map(owner).collect::<Vec<_>>().join(", ")
}

fn since(time: Option<&prost_types::Timestamp>) -> String {
    time.map(|t| format!("{t} ({} ago)", words::age(Some(t), words::now()))).unwrap_or_default()
}

/// Spec and status as YAML; conditions have their own section.
fn bodies(text: &mut String, resource: &v1::Resource) {
    let kind = resource.metadata.as_ref().map(|m| m.kind.as_str()).unwrap_or_default();
    let Some(info) = kinds::kind(kind).map(|k| k.info()) else { return };
    let parts = [("Spec", &resource.spec, info.spec_type), ("Status", &resource.status, info.status_type)];
    for (title, any, type_name) in parts {
        let body = any.as_ref().map(|any| manifest::body(any, type_name, &["conditions"])).unwrap_or_default();
        if !body.is_empty() {
            section(text, title, &body);
        }
    }
}

fn conditions(resource: &v1::Resource) -> String {
    let now = words::now();
    let rows: Vec<Vec<String>> = Head::of(resource)
        .conditions
        .iter()
        .map(|c| {
            let age = words::age(c.last_transition_time.as_ref(), now);
            vec![c.r#type.clone(), c.status.clone(), age, c.reason.clone(), c.message.clone()]
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        let titles = ["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"].map(str::to_owned);
        section(&mut text, "Conditions", &output::table(&titles, &rows));
    }
    text
}
