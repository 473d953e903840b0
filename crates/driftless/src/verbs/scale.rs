//! `driftless scale`: changes the number of instances and nothing else.

use anyhow::{Context, bail};
use api::v1;
use model::Key;
use prost_reflect::{DynamicMessage, Value};

use crate::{
    client::Client,
    exit::Trouble,
    output,
    words::{self, DEFAULT_NAMESPACE},
};

/// Attempts while others write the same resource.
const ATTEMPTS: usize = 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless scale service web --replicas 10
  driftless scale service/web --replicas 0

A manifest that leaves replicas out keeps what was scaled; one that names it sets it at the next apply.")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    replicas: i32,
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match attempt(client, &key, args.replicas).await {
            Err(error) if matches!(error.downcast_ref(), Some(store::Error::Conflict { .. })) => last = Some(error),
            result => return result,
        }
    }
    Err(last.expect("there was an attempt")).with_context(|| format!("{ATTEMPTS} attempts"))
}

async fn attempt(client: &Client, key: &Key, replicas: i32) -> anyhow::Result<()> {
    let object = client.api.get(key).await?;
    let object = object.ok_or_else(|| Trouble::NotFound(format!("{} not found", words::short(key))))?;
    let mut resource = object.resource().with_context(|| format!("{key} can't be decoded"))?;
    let before = set_replicas(key, &mut resource, replicas)?;
    let declaration = v1::Declaration { resource: Some(resource), expected_revision: Some(object.revision.0) };
    let request =
        v1::ApplyRequest { declarations: vec![declaration], field_manager: "scale".into(), ..Default::default() };
    client.api.apply(&client.caller, request).await?;
    output::print(&format!("{} scaled from {before} to {replicas}\n", words::short(key)))
}

/// Through the descriptor, so that fields which this binary doesn't know stay. Returns what it was.
fn set_replicas(key: &Key, resource: &mut v1::Resource, replicas: i32) -> anyhow::Result<i32> {
    let Some(spec) = &mut resource.spec else { bail!("{key} has no spec") };
    let kind = kinds::kind(key.kind()).with_context(|| format!("kind {} is unknown here", key.kind()))?;
    let descriptor = api::descriptors().get_message_by_name(kind.info().spec_type).context("the kind's message")?;
    let Some(field) = descriptor.get_field_by_name("replicas") else {
        return Err(Trouble::Usage(format!("{} have no replicas", kind.info().plural)).into());
    };
    let mut message = DynamicMessage::decode(descriptor, spec.value.as_slice()).context("the spec can't be decoded")?;
    let before = message.has_field(&field).then(|| message.get_field(&field).as_i32()).flatten().unwrap_or(1);
    message.set_field(&field, Value::I32(replicas));
    spec.value = prost::Message::encode_to_vec(&message);
    Ok(before)
}
