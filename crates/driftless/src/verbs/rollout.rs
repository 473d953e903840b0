//! `driftless rollout`: how the replacement of a service's instances goes; pause, resume, undo.

use std::{fmt::Write as _, time::Duration};

use api::v1;
use model::Key;
use prost::Message;
use prost_reflect::Value;

use super::{history, wait};
use crate::{
    client::Client,
    edit,
    exit::Trouble,
    output, standing,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless rollout status web --wait
  driftless rollout pause web
  driftless rollout history web
  driftless rollout undo web --to 142")]
pub struct Args {
    #[command(subcommand)]
    what: What,
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::namespace, global = true)]
    namespace: String,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show how far it is.
    Status {
        service: String,
        /// Wait until it's complete.
        #[arg(long)]
        wait: bool,
        #[arg(long, default_value = "5m", value_parser = words::duration)]
        timeout: Duration,
    },
    /// Replace nothing more until it's resumed. A manifest that leaves spec.rollout.pause out keeps it paused.
    Pause { service: String },
    /// Go on with a paused rollout.
    Resume { service: String },
    /// Declare an earlier template again.
    Undo {
        service: String,
        /// The revision of that declaration, by 'rollout history'; the one before the present where left out.
        #[arg(long, value_name = "REVISION")]
        to: Option<i64>,
    },
    /// Show the templates that were declared.
    History { service: String },
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = |service: &str| words::single(&["service".to_owned(), service.to_owned()], &args.namespace);
    match &args.what {
        What::Status { service, wait, timeout } => status(client, &key(service)?, *wait, *timeout).await,
        What::Pause { service } => pause(client, &key(service)?, true).await,
        What::Resume { service } => pause(client, &key(service)?, false).await,
        What::Undo { service, to } => undo(client, &key(service)?, *to).await,
        What::History { service } => history(client, &key(service)?).await,
    }
}

async fn status(client: &Client, key: &Key, wait: bool, timeout: Duration) -> anyhow::Result<()> {
    let resource = edit::get(client, key).await?;
    if wait {
        wait::until(client, vec![resource], &standing::Goal::ready(), wait::Hold::default(), timeout).await?;
    }
    let resource = edit::get(client, key).await?;
    let status = decode::<v1::ServiceStatus>(resource.status.as_ref())?;
    let mut text = format!(
        "{}: {}, {} updated, {} ready\n",
        words::short(key),
        kinds::count(usize::try_from(status.replicas).unwrap_or(0), "instance"),
        status.updated_replicas,
        status.ready_replicas
    );
    for condition in &status.conditions {
        let _ = writeln!(
            text,
            "  {}: {} ({}): {}",
            condition.r#type, condition.status, condition.reason, condition.message
        );
    }
    output::print(&text)
}

fn decode<M: Message + Default>(any: Option<&prost_types::Any>) -> anyhow::Result<M> {
    Ok(M::decode(any.map_or(&[][..], |any| any.value.as_slice()))?)
}

async fn pause(client: &Client, key: &Key, pause: bool) -> anyhow::Result<()> {
    let path = "rollout.pause";
    edit::spec(client, key, "edit", |spec| match pause {
        true => edit::set(spec, path, Value::Bool(true)),
        false => edit::clear(spec, path),
    })
    .await?;
    output::print(&format!("{} {}\n", words::short(key), if pause { "paused" } else { "resumed" }))
}

/// One declared template.
struct Version {
    revision: i64,
    time: String,
    actor: String,
    hash: String,
    spec: v1::ServiceSpec,
}

/// Each template once, where it was last declared; oldest first.
async fn versions(client: &Client, key: &Key) -> anyhow::Result<Vec<Version>> {
    let wire = v1::ResourceKey::from(key);
    let mut versions: Vec<Version> = Vec::new();
    for entry in history::entries(client, key, history::LIMIT_MAX).await? {
        let declared = entry.touched.iter().find(|t| t.key.as_ref() == Some(&wire) && entry.verb == "apply");
        let Some(resource) = declared.and_then(|touched| touched.after.as_ref()) else { continue };
        let hash = resource.metadata.as_ref().map(|m| m.template_hash.clone()).unwrap_or_default();
        if versions.last().is_some_and(|last| last.hash == hash) {
            continue;
        }
        versions.retain(|version| version.hash != hash);
        versions.push(Version {
            revision: entry.revision,
            time: entry.time.as_ref().map(ToString::to_string).unwrap_or_default(),
            actor: entry.actor.clone(),
            hash,
            spec: decode(resource.spec.as_ref())?,
        });
    }
    Ok(versions)
}

async fn history(client: &Client, key: &Key) -> anyhow::Result<()> {
    let titles = ["REVISION", "TEMPLATE", "VERSION", "TIME", "ACTOR"].map(str::to_owned);
    let row = |v: &Version| {
        vec![v.revision.to_string(), v.hash.clone(), v.spec.version.clone(), v.time.clone(), v.actor.clone()]
    };
    let rows: Vec<Vec<String>> = versions(client, key).await?.iter().map(row).collect();
    output::print(&output::table(&titles, &rows))
}

async fn undo(client: &Client, key: &Key, to: Option<i64>) -> anyhow::Result<()> {
    let now = edit::get(client, key).await?;
    let hash = now.metadata.map(|m| m.template_hash).unwrap_or_default();
    let versions = versions(client, key).await?;
    let chosen = match to {
        Some(revision) => versions.iter().find(|version| version.revision == revision),
        None => versions.iter().rev().find(|version| version.hash != hash),
    };
    let Some(version) = chosen else {
        return Err(Trouble::NotFound(format!("the history of {} has no such template", words::short(key))).into());
    };
    let earlier = prost_reflect::DynamicMessage::decode(
        api::descriptors().get_message_by_name(kinds::service::SPEC).expect("ours"),
        version.spec.encode_to_vec().as_slice(),
    )?;
    edit::spec(client, key, "edit", |spec| {
        for field in ["template", "version"] {
            let value = earlier.get_field_by_name(field).expect("a Service has it").into_owned();
            edit::set(spec, field, value)?;
        }
        Ok(())
    })
    .await?;
    let shown = if version.spec.version.is_empty() { &version.hash } else { &version.spec.version };
    output::print(&format!("{} goes back to {shown} (declared at revision {})\n", words::short(key), version.revision))
}
