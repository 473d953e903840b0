//! `driftless trace`: how the last change of a resource became so, step by step, from the history alone.

use std::time::Duration;

use api::{manifest, v1};
use model::{Actor, Key, Time, fields};
use serde_json::{Value, json};
use telemetry::trace::Context;

use super::history::{self, LIMIT_MAX};
use crate::{
    client::Client,
    exit::Trouble,
    output::{self, Output},
    receiver::Tracing,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless trace service web
  driftless trace service web -o json
  driftless trace service/web --trace-ui 'http://127.0.0.1:16686/trace/{trace}'

Needs no tracing backend: it's read from the history. Where one is set up and the trace was sampled, the trace's id leads \
to all of its spans; 'driftless apply --trace' has a change sampled in any case.")]
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

pub async fn run(client: &Client, args: Args, tracing: &Tracing) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let entries = history::entries(client, &key, LIMIT_MAX).await?;
    let steps = last_change(&entries);
    let Some(first) = steps.first() else {
        return Err(Trouble::NotFound(format!("nothing is known of {}", words::short(&key))).into());
    };
    let context = Context::parse(&first.traceparent);
    let link = context.filter(|context| context.sampled).and_then(|context| tracing.link(&context.trace_id()));
    let change = Change { key: &key, first, steps, context, link };
    output::print(&match args.output.format() {
        None => change.text(),
        Some(format) => manifest::print(&change.json(), format),
    })
}

/// What a user did, and what followed.
struct Change<'a> {
    key: &'a Key,
    first: &'a v1::HistoryEntry,
    steps: &'a [v1::HistoryEntry],
    context: Option<Context>,
    link: Option<String>,
}

/// What became of it so far.
#[derive(Clone, Debug, PartialEq)]
enum End {
    /// When it first was; and why it isn't now, where something came after it.
    Ready(Duration, Option<String>),
    Gone(Duration),
    /// Why not.
    NotYet(String),
    /// Of its kind nobody says.
    Unsaid,
}

impl Change<'_> {
    fn after(&self, entry: &v1::HistoryEntry) -> Duration {
        time(entry).since(time(self.first))
    }

    /// By what the steps left of the resource itself.
    fn end(&self) -> End {
        let mut end = End::Unsaid;
        for entry in self.steps {
            let own = |touched: &&v1::Touched| touched.key.as_ref().is_some_and(|key| Key::from(key) == *self.key);
            let Some(touched) = entry.touched.iter().find(own) else { continue };
            let Some(after) = &touched.after else { return End::Gone(self.after(entry)) };
            let Some(ready) = ready(after) else { continue };
            end = match (ready, end) {
                (ready, End::Ready(first, _)) => End::Ready(first, ready.err()),
                (Ok(()), _) => End::Ready(self.after(entry), None),
                (Err(why), _) => End::NotYet(why),
            };
        }
        end
    }

    fn text(&self) -> String {
        let mut lines = vec![format!(
            "{} of {} at {}",
            self.first.verb,
            words::short(self.key),
            self.first.time.unwrap_or_default()
        )];
        lines.push(match self.context {
            None => "it carries no trace".into(),
            Some(context) => {
                let sampled = if context.sampled { "sampled" } else { "not sampled: there are no spans of it" };
                format!("trace {} ({sampled})", context.trace_id())
            }
        });
        lines.extend(self.link.clone());
        lines.extend(match self.end() {
            End::Ready(after, None) => Some(format!("Ready after {}", span(after))),
            End::Ready(after, Some(why)) => Some(format!("Ready after {}; not any more: {why}", span(after))),
            End::Gone(after) => Some(format!("gone after {}", span(after))),
            End::NotYet(why) => Some(format!("not Ready yet: {why}")),
            End::Unsaid => None,
        });
        lines.join("\n") + "\n\n" + &self.timeline()
    }

    fn timeline(&self) -> String {
        let titles = ["AFTER", "ACTOR", "VERB", "WHAT", "WHY"].map(str::to_owned);
        let row = |entry: &v1::HistoryEntry| {
            let [_, _, actor, verb, _, why] = history::row(entry);
            vec![format!("+{}", span(self.after(entry))), actor, verb, self.what(entry), why]
        };
        output::table(&titles, &self.steps.iter().map(row).collect::<Vec<_>>())
    }

    /// In a few words: which resource it's about is said above.
    fn what(&self, entry: &v1::HistoryEntry) -> String {
        let keys = entry.touched.iter().filter_map(|touched| touched.key.as_ref()).map(Key::from);
        let (own, others): (Vec<Key>, Vec<Key>) = keys.partition(|key| key == self.key);
        match others.as_slice() {
            [] => own.first().map(words::short).unwrap_or_default(),
            [one] => words::short(one),
            [first, more @ ..] => format!("{} and {} more", words::short(first), more.len()),
        }
    }

    fn json(&self) -> Value {
        let (ready, gone, why) = match self.end() {
            End::Ready(after, why) => (Some(after.as_secs_f64()), None, why),
            End::Gone(after) => (None, Some(after.as_secs_f64()), None),
            End::NotYet(why) => (None, None, Some(why)),
            End::Unsaid => (None, None, None),
        };
        json!({
            "resource": words::short(self.key),
            "verb": self.first.verb,
            "actor": self.first.actor,
            "time": self.first.time.unwrap_or_default().to_string(),
            "traceId": self.context.map(Context::trace_id),
            "sampled": self.context.is_some_and(|context| context.sampled),
            "link": self.link,
            "readyAfterSeconds": ready,
            "goneAfterSeconds": gone,
            "notReady": why,
            "steps": self.steps.iter().map(|entry| self.step(entry)).collect::<Vec<_>>(),
        })
    }

    fn step(&self, entry: &v1::HistoryEntry) -> Value {
        let why = entry.why.clone().unwrap_or_default();
        let touched = entry.touched.iter().filter_map(|touched| touched.key.as_ref());
        json!({
            "afterSeconds": self.after(entry).as_secs_f64(),
            "revision": entry.revision.to_string(),
            "actor": entry.actor,
            "claim": entry.claim,
            "epoch": entry.epoch.to_string(),
            "verb": entry.verb,
            "touched": touched.map(|key| words::short(&key.into())).collect::<Vec<_>>(),
            "reason": why.reason,
            "message": why.message,
            "traceId": Context::parse(&entry.traceparent).map(Context::trace_id),
        })
    }
}

/// Whether the resource says that it's what was declared, and if not why; None where it says nothing of that.
fn ready(resource: &v1::Resource) -> Option<Result<(), String>> {
    let status = resource.status.as_ref()?.value.clone().into();
    let conditions = fields::conditions_of(&status).ok()?;
    let ready = conditions.into_iter().find(|condition| condition.r#type == "Ready")?;
    if fields::observed_generation(&status) != resource.metadata.as_ref()?.generation {
        return Some(Err("nobody has looked at it yet".into()));
    }
    Some(if ready.status == "True" { Ok(()) } else { Err(ready.message) })
}

/// From the newest entry on that a user, and nobody else, made.
fn last_change(entries: &[v1::HistoryEntry]) -> &[v1::HistoryEntry] {
    let is_users = |entry: &v1::HistoryEntry| Actor::parse(&entry.actor).is_some_and(|actor| actor.role() == "user");
    let from = entries.iter().rposition(is_users).unwrap_or(0);
    &entries[from..]
}

fn time(entry: &v1::HistoryEntry) -> Time {
    entry.time.as_ref().map(Time::from).unwrap_or_default()
}

/// "0.0ms", "12.3ms", "4.20s".
fn span(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.1}ms", seconds * 1e3),
        seconds => format!("{seconds:.2}s"),
    }
}

#[cfg(test)]
mod tests;
