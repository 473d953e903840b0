//! `driftless scale`: changes the number of instances and nothing else.

use kinds::service::REPLICAS_MAX;
use model::Key;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use crate::{
    client::Client,
    edit,
    exit::Trouble,
    output,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless scale service web --replicas 10
  driftless scale service/web --replicas 0

A manifest that leaves replicas out keeps what was scaled; one that names it sets it at the next apply.")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    /// How many instances there should be.
    #[arg(long, allow_negative_numbers = true, value_parser = words::number(0..=REPLICAS_MAX))]
    replicas: i32,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let mut before = 1;
    edit::spec(client, &key, "scale", |spec| {
        before = replicas(&key, spec)?;
        edit::set(spec, "replicas", Value::I32(args.replicas))
    })
    .await?;
    output::print(&format!("{} scaled from {before} to {}\n", words::short(&key), args.replicas))
}

fn replicas(key: &Key, spec: &DynamicMessage) -> anyhow::Result<i32> {
    let Some(field) = spec.descriptor().get_field_by_name("replicas") else {
        return Err(Trouble::Usage(format!("a {} has no replicas", key.kind())).into());
    };
    Ok(spec.has_field(&field).then(|| spec.get_field(&field).as_i32()).flatten().unwrap_or(1))
}
