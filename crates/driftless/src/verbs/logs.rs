//! `driftless logs`: what an instance wrote.

use std::io::Write;

use api::v1;
use futures::StreamExt;

use crate::{
    client::Client,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless logs web-3f9a-0
  driftless logs web-3f9a-0 -f --tail 10
  driftless logs $(driftless get instances -l app=web -o name | head -1)")]
pub struct Args {
    /// The instance's name, as 'driftless get instances' shows it.
    #[arg(value_name = "INSTANCE")]
    instance: String,
    /// Go on as more is written.
    #[arg(short, long)]
    follow: bool,
    /// Only the last lines.
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, value_parser = words::number(0..=i32::MAX))]
    tail: Option<i32>,
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::namespace)]
    namespace: String,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let instance = args.instance.rsplit('/').next().unwrap_or_default().to_owned();
    let request = v1::LogsRequest { namespace: args.namespace, instance, follow: args.follow, tail: args.tail };
    let mut chunks = client.logs(request).await?;
    let mut out = std::io::stdout();
    while let Some(chunk) = chunks.next().await {
        out.write_all(&chunk?)?;
        out.flush()?;
    }
    Ok(())
}
