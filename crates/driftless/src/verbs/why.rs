//! `driftless why`: what the controllers decide about a resource right now, down the chain of what it waits for.

use std::fmt::Write as _;

use api::{manifest, v1};
use prost::Message;

use crate::{
    client::Client,
    output,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless why service web
  driftless why instance/web-5f3a9c1b20-0 -o json")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::namespace)]
    namespace: String,
    #[arg(short, long, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let explained = client.api.explain(v1::ExplainRequest { key: Some((&key).into()) }).await?;
    match args.output {
        Output::Text => output::print(&text(&explained.chain)),
        Output::Json => {
            let bytes = explained.encode_to_vec();
            output::print(&manifest::message("driftless.v1.ExplainResponse", &bytes, manifest::Format::Json))
        }
    }
}

fn text(chain: &[v1::Explained]) -> String {
    let mut text = String::new();
    for (depth, one) in chain.iter().enumerate() {
        let indent = if depth == 0 { "" } else { "  " };
        let name = one.key.as_ref().map(|key| words::short(&key.into())).unwrap_or_default();
        let why = one.why.clone().unwrap_or_default();
        let _ = writeln!(text, "{indent}{name}: {} ({}): {}", state(&one.state), why.reason, why.message);
        if let Some(until) = &one.until {
            let _ = writeln!(text, "{indent}    until {until}, unless something changes first");
        }
        if !one.claim.is_empty() {
            let owner = if one.owner.is_empty() { "nobody, which is an alarm" } else { one.owner.as_str() };
            let sweep = one.last_sweep.as_ref().map_or("not yet".to_owned(), ToString::to_string);
            let _ =
                writeln!(text, "{indent}    looked after by {owner} ({}@{}), last sweep {sweep}", one.claim, one.epoch);
        }
    }
    text
}

fn state(state: &str) -> &str {
    match state {
        "do" => "about to act",
        "wait" => "waiting",
        other => other,
    }
}
