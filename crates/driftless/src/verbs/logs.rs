//! `driftless logs`: what an instance wrote.

use std::io::Write;

use api::v1;
use futures::StreamExt;
use model::Time;

use crate::{
    client::Client,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless logs web-3f9a-0
  driftless logs web-3f9a-0 -f --tail 10
  driftless logs web-3f9a-0 --since 10m                 or since a time: 2026-01-31T08:00:00Z
  driftless logs web-3f9a-0 --previous --tail 20        what it wrote before it was last restarted
  driftless logs $(driftless get instances -l app=web -o name | head -1)")]
pub struct Args {
    /// The instance's name, as 'driftless get instances' shows it.
    #[arg(value_name = "INSTANCE")]
    instance: String,
    /// Go on as more is written, until the instance is gone.
    #[arg(short, long)]
    follow: bool,
    /// Of the run before the present or last one; only these two are kept.
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,
    /// Only what was written since, to the second: a time (RFC 3339), or how long ago (10m).
    #[arg(long, value_name = "TIME|DURATION", value_parser = words::since)]
    since: Option<Time>,
    /// Only the last lines.
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, value_parser = words::number(0..=i32::MAX))]
    tail: Option<i32>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::namespace)]
    namespace: String,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let instance = args.instance.rsplit('/').next().unwrap_or_default().to_owned();
    // How long ago, since the node's clock may go differently.
    let since = args.since.map(|since| words::now().since(since));
    let request = v1::LogsRequest {
        namespace: args.namespace,
        instance,
        follow: args.follow,
        tail: args.tail,
        previous: args.previous,
        since: since.and_then(|since| since.try_into().ok()),
    };
    let mut chunks = client.logs(request).await?;
    let mut out = std::io::stdout();
    while let Some(chunk) = chunks.next().await {
        out.write_all(&chunk?)?;
        out.flush()?;
    }
    Ok(())
}
