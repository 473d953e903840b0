//! `driftless history`: what happened to a resource and everything below it, step by step.

use api::v1;
use model::Key;

use crate::{
    client::Client,
    exit::Trouble,
    output,
    words::{self, DEFAULT_NAMESPACE},
};

/// The most that a server tells at once.
pub const LIMIT_MAX: i32 = 10_000;
/// Names of touched resources shown in a line.
const NAMES: usize = 3;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless history service web
  driftless history service web --limit 100")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// The newest so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=10_000))]
    limit: i32,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let entries = entries(client, &key, args.limit).await?;
    if entries.is_empty() {
        return Err(Trouble::NotFound(format!("nothing is known of {}", words::short(&key))).into());
    }
    output::print(&text(&entries))
}

/// Oldest first.
pub async fn entries(client: &Client, key: &Key, limit: i32) -> anyhow::Result<Vec<v1::HistoryEntry>> {
    let request = v1::HistoryRequest { key: Some(key.into()), limit, ..Default::default() };
    Ok(client.api.entries(request).await?.entries)
}

pub fn text(entries: &[v1::HistoryEntry]) -> String {
    let titles = ["TIME", "REVISION", "ACTOR", "VERB", "WHAT", "WHY"].map(str::to_owned);
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    output::table(&titles, &rows)
}

fn row(entry: &v1::HistoryEntry) -> Vec<String> {
    let why = entry.why.clone().unwrap_or_default();
    let actor = if entry.claim.is_empty() {
        entry.actor.clone()
    } else {
        format!("{} ({}@{})", entry.actor, entry.claim, entry.epoch)
    };
    let time = entry.time.as_ref().map(ToString::to_string).unwrap_or_default();
    let why = if why.message.is_empty() { why.reason } else { why.message };
    vec![time, entry.revision.to_string(), actor, entry.verb.clone(), touched(&entry.touched), why]
}

fn touched(touched: &[v1::Touched]) -> String {
    let names: Vec<String> = touched.iter().filter_map(|t| t.key.as_ref()).map(|k| words::short(&k.into())).collect();
    match names.len() {
        0..=NAMES => names.join(" "),
        n => format!("{} and {} more", names[..NAMES].join(" "), n - NAMES),
    }
}
