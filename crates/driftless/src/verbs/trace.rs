//! `driftless trace`: how the last change of a resource became so, step by step, from the history alone.

use std::time::Duration;

use api::v1;
use model::{Actor, Time};
use telemetry::trace::Context;

use super::history::{self, LIMIT_MAX};
use crate::{
    client::Client,
    exit::Trouble,
    output,
    telemetry::Tracing,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless trace service web
  driftless trace service/web --trace-ui 'http://127.0.0.1:16686/trace/{trace}'

Needs no tracing backend: it's read from the history. Where one is set up and the trace was sampled, the trace's id leads
to all of its spans; 'driftless apply --trace' has a change sampled in any case.")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
}

pub async fn run(client: &Client, args: Args, tracing: &Tracing) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let entries = history::entries(client, &key, LIMIT_MAX).await?;
    let change = last_change(&entries);
    let Some(first) = change.first() else {
        return Err(Trouble::NotFound(format!("nothing is known of {}", words::short(&key))).into());
    };
    let mut text = format!("{} of {} at {}\n", first.verb, words::short(&key), first.time.unwrap_or_default());
    text += &match Context::parse(&first.traceparent) {
        None => "it carries no trace\n".to_owned(),
        Some(context) => {
            let id = context.trace_id();
            let sampled = if context.sampled { "sampled" } else { "not sampled: there are no spans of it" };
            let link = tracing.link(&id).filter(|_| context.sampled).map(|link| link + "\n").unwrap_or_default();
            format!("trace {id} ({sampled})\n{link}")
        }
    };
    output::print(&(text + "\n" + &timeline(change)))
}

/// From the newest entry on that a user, and nobody else, made.
fn last_change(entries: &[v1::HistoryEntry]) -> &[v1::HistoryEntry] {
    let is_users = |entry: &v1::HistoryEntry| Actor::parse(&entry.actor).is_some_and(|actor| actor.role() == "user");
    let from = entries.iter().rposition(is_users).unwrap_or(0);
    &entries[from..]
}

fn timeline(change: &[v1::HistoryEntry]) -> String {
    let titles = ["AFTER", "ACTOR", "VERB", "WHAT", "WHY"].map(str::to_owned);
    let began = change.first().map(time).unwrap_or_default();
    let row = |entry: &v1::HistoryEntry| {
        let [_, _, actor, verb, what, why] = history::row(entry);
        vec![after(time(entry).since(began)), actor, verb, what, why]
    };
    output::table(&titles, &change.iter().map(row).collect::<Vec<_>>())
}

fn time(entry: &v1::HistoryEntry) -> Time {
    entry.time.as_ref().map(Time::from).unwrap_or_default()
}

/// "+0.0ms", "+12.3ms", "+4.20s".
fn after(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 1.0 => format!("+{:.1}ms", seconds * 1e3),
        seconds => format!("+{seconds:.2}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(actor: &str, verb: &str, millis: i64) -> v1::HistoryEntry {
        let time = Some(Time::from_millis(millis).into());
        v1::HistoryEntry { actor: actor.into(), verb: verb.into(), time, ..Default::default() }
    }

    #[test]
    fn a_timeline_begins_with_the_last_that_a_user_did() {
        let entries = [
            entry("user/a@b", "apply", 1_000),
            entry("controller/c1", "create", 1_003),
            entry("user/a@b", "scale", 5_000),
            entry("controller/c1", "create", 5_002),
            entry("agent/n1", "report", 7_500),
        ];
        let change = last_change(&entries);
        assert_eq!(change.iter().map(|entry| entry.verb.as_str()).collect::<Vec<_>>(), ["scale", "create", "report"]);
        let shown = timeline(change);
        let after: Vec<&str> = shown.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(after, ["+0.0ms", "+2.0ms", "+2.50s"]);
        assert!(last_change(&[]).is_empty());
    }
}
