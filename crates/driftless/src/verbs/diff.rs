//! `driftless diff`: what changed in a resource between two points of its history.

use std::fmt::Write as _;

use api::{manifest, v1};
use serde_json::{Value, json};

use super::{
    history,
    replay::{self, At},
};
use crate::{
    client::Client,
    edit,
    output::{self, Output},
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless diff service web --from 142
  driftless diff service web --from 142 --to 150")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// A revision, or a time (RFC 3339).
    #[arg(long, value_name = "REVISION|TIME")]
    from: String,
    /// A revision, or a time; now where left out.
    #[arg(long, value_name = "REVISION|TIME")]
    to: Option<String>,
    /// Text is for eyes, YAML and JSON for programs.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let (from, to) = (At::parse(&args.from)?, args.to.as_deref().map(At::parse).transpose()?);
    for at in [Some(&from), to.as_ref()].into_iter().flatten() {
        replay::happened(client, at).await?;
    }
    let entries = history::entries(client, &key, history::LIMIT_MAX).await?;
    let before = replay::as_of(&entries, &key, &from)?;
    let after = match &to {
        Some(to) => replay::as_of(&entries, &key, to)?,
        None => edit::get(client, &key).await?,
    };
    let changes = changes(key.kind(), &before, &after);
    if let Some(format) = args.output.format() {
        let change = |c: &v1::FieldChange| json!({ "path": c.path, "before": c.before, "after": c.after });
        let changes: Vec<Value> = changes.iter().map(change).collect();
        return output::print(&manifest::print(&json!({ "changes": changes }), format));
    }
    if changes.is_empty() {
        output::say(&format!("{} is the same at both", words::short(&key)));
    }
    let mut text = String::new();
    for change in changes {
        let or = |value: &str| if value.is_empty() { "(unset)".to_owned() } else { value.to_owned() };
        let _ = writeln!(text, "{}: {} -> {}", change.path, or(&change.before), or(&change.after));
    }
    output::print(&text)
}

pub fn changes(kind: &str, before: &v1::Resource, after: &v1::Resource) -> Vec<v1::FieldChange> {
    let Some(info) = kinds::kind(kind).map(|kind| kind.info()) else { return Vec::new() };
    let mut changes = manifest::changes("spec", info.spec_type, before.spec.as_ref(), after.spec.as_ref());
    changes.extend(manifest::changes("status", info.status_type, before.status.as_ref(), after.status.as_ref()));
    changes
}
