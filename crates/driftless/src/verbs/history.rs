//! `driftless history`: what happened to a resource and everything below it, or to all there is, step by step.

use std::collections::BTreeMap;

use api::{manifest, v1};
use model::{Filter, Key, Time};
use prost::Message;
use serde_json::{Value, json};

use super::diff;
use crate::{
    client::Client,
    exit::Trouble,
    follow::Follow,
    output::{self, Output},
    words::{self, DEFAULT_NAMESPACE},
};

/// The most that a server tells at once.
pub const LIMIT_MAX: i32 = 10_000;
/// Names of touched resources shown in a line.
const NAMES: usize = 3;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless history
  driftless history service web --limit 100
  driftless history service web --since 10m -o json
  driftless history -f

Without a name: everything. A change that differs from earlier ones in counters and times alone (a crash loop's) takes \
their place: it is told with how many they were, and since which revision.")]
pub struct Args {
    /// KIND NAME, or KIND/NAME; everything where left out.
    #[arg(value_name = "KIND NAME")]
    words: Vec<String>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// The newest so many.
    #[arg(long, default_value_t = 50, allow_negative_numbers = true, value_parser = words::number(1..=LIMIT_MAX))]
    limit: i32,
    /// Only what happened since: a time (RFC 3339), or how long ago (10m).
    #[arg(long, value_name = "TIME|DURATION", value_parser = words::since)]
    since: Option<Time>,
    /// Go on with what happens.
    #[arg(short, long)]
    follow: bool,
    /// JSON and YAML tell fields before and after, too; followed, JSON is one entry a line.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = match args.words.as_slice() {
        [] => None,
        named => Some(words::single(named, &args.namespace)?),
    };
    let mut teller = Teller { client, args: &args, key, before: BTreeMap::new(), last: 0, time: Time::default() };
    if args.follow {
        return teller.follow().await;
    }
    let entries = teller.read().await?;
    match (&teller.key, entries.is_empty()) {
        (Some(key), true) if args.since.is_none() => {
            Err(Trouble::NotFound(format!("nothing is known of {}", words::short(key))).into())
        }
        _ => teller.print(&entries),
    }
}

/// Oldest first.
pub async fn entries(client: &Client, key: &Key, limit: i32) -> anyhow::Result<Vec<v1::HistoryEntry>> {
    let request = v1::HistoryRequest { key: Some(key.into()), limit, ..Default::default() };
    Ok(client.api.entries(request).await?.entries)
}

/// The newest so many, oldest first, as `-o json` tells them.
pub async fn values(client: &Client, key: &Key, limit: i32) -> anyhow::Result<Vec<Value>> {
    let args = Args {
        words: Vec::new(),
        namespace: key.namespace().to_owned(),
        limit,
        since: None,
        follow: false,
        output: Output::Json,
    };
    let key = Some(key.clone());
    let mut teller = Teller { client, args: &args, key, before: BTreeMap::new(), last: 0, time: Time::default() };
    Ok(teller.read().await?.iter().map(json).collect())
}

/// An entry, and what each of the resources that it touched was before, where that is known.
struct Told {
    entry: v1::HistoryEntry,
    before: Vec<Option<v1::Resource>>,
}

struct Teller<'a> {
    client: &'a Client,
    args: &'a Args,
    key: Option<Key>,
    /// What the entries so far left: by uid, at which revision.
    before: BTreeMap<String, (i64, v1::Resource)>,
    last: i64,
    /// Of the newest entry so far.
    time: Time,
}

impl Teller<'_> {
    /// The newest entries after those that were read before. More are read than are shown, for what was before.
    async fn read(&mut self) -> anyhow::Result<Vec<Told>> {
        let request = v1::HistoryRequest {
            key: self.key.as_ref().map(Into::into),
            limit: LIMIT_MAX,
            after_revision: self.last,
            ..Default::default()
        };
        let entries = self.client.api.entries(request).await?.entries;
        self.last = entries.last().map_or(self.last, |entry| entry.revision.max(self.last));
        let mut told: Vec<Told> = entries.into_iter().map(|entry| self.told(entry)).collect();
        if let Some(since) = self.args.since {
            told.retain(|told| told.entry.time.as_ref().is_some_and(|time| Time::from(time) >= since));
        }
        Ok(told.split_off(told.len().saturating_sub(self.args.limit as usize)))
    }

    fn told(&mut self, mut entry: v1::HistoryEntry) -> Told {
        entry.time = entry.time.map(|time| in_order(&mut self.time, time));
        let before = |touched: &v1::Touched| {
            let known = match &touched.after {
                Some(after) => self.before.insert(touched.uid.clone(), (entry.revision, after.clone())),
                None => self.before.remove(&touched.uid),
            };
            known.filter(|(revision, _)| *revision == touched.replaced_revision).map(|(_, resource)| resource)
        };
        let before = entry.touched.iter().map(before).collect();
        Told { entry, before }
    }

    /// What is new is read whenever a watch says that something changed, so nothing is asked for while all is quiet.
    async fn follow(&mut self) -> anyhow::Result<()> {
        // Of everything, since what happens below a resource is a part of its history.
        let mut follow = Follow::new(self.client, Filter::default());
        loop {
            follow.next().await?;
            let entries = self.read().await?;
            self.print(&entries)?;
        }
    }

    fn print(&self, told: &[Told]) -> anyhow::Result<()> {
        let text = match (self.args.output, self.args.follow) {
            (Output::Json, true) => told.iter().map(|told| format!("{}\n", json(told))).collect(),
            (Output::Yaml, true) => told
                .iter()
                .map(|told| format!("---\n{}", manifest::print(&json(told), manifest::Format::Yaml)))
                .collect(),
            (Output::Json | Output::Yaml, false) => {
                let entries: Vec<Value> = told.iter().map(json).collect();
                let format = self.args.output.format().unwrap_or(manifest::Format::Json);
                manifest::print(&json!({ "entries": entries }), format)
            }
            (Output::Text, false) => text(told.iter().map(|told| &told.entry)),
            (Output::Text, true) => told.iter().map(|told| row(&told.entry).join("  ") + "\n").collect(),
        };
        output::print(&text)
    }
}

/// A server stamps a change before the store gives it its revision, so those of changes that were under way together may
/// differ by microseconds from the order of their revisions, which is the true one.
fn in_order(newest: &mut Time, time: prost_types::Timestamp) -> prost_types::Timestamp {
    *newest = Time::from(&time).max(*newest);
    (*newest).into()
}

/// Whole resources are left out; `replay` shows them.
fn json(told: &Told) -> Value {
    let mut entry = told.entry.clone();
    let fields: Vec<Value> = entry.touched.iter().zip(&told.before).map(fields).collect();
    entry.touched.iter_mut().for_each(|touched| touched.after = None);
    let text = manifest::message("driftless.v1.HistoryEntry", &entry.encode_to_vec(), manifest::Format::Json);
    let mut value: Value = serde_json::from_str(&text).unwrap_or_default();
    // W3C: version, trace id, parent id, flags.
    if let Some(trace) = entry.traceparent.split('-').nth(1) {
        value["traceId"] = trace.into();
    }
    for (n, fields) in fields.into_iter().enumerate() {
        value["touched"][n]["fields"] = fields;
    }
    value
}

/// Null where it isn't kept what was before.
fn fields((touched, before): (&v1::Touched, &Option<v1::Resource>)) -> Value {
    let kind = touched.key.as_ref().map(|key| key.kind.as_str()).unwrap_or_default();
    if before.is_none() && touched.replaced_revision != 0 {
        return Value::Null;
    }
    let (before, after) = (before.clone().unwrap_or_default(), touched.after.clone().unwrap_or_default());
    let change = |c: v1::FieldChange| json!({ "path": c.path, "before": c.before, "after": c.after });
    diff::changes(kind, &before, &after).into_iter().map(change).collect()
}

pub fn text<'e>(entries: impl IntoIterator<Item = &'e v1::HistoryEntry>) -> String {
    let titles = ["TIME", "REVISION", "ACTOR", "VERB", "WHAT", "WHY"].map(str::to_owned);
    let rows: Vec<Vec<String>> = entries.into_iter().map(|entry| row(entry).to_vec()).collect();
    output::table(&titles, &rows)
}

pub fn row(entry: &v1::HistoryEntry) -> [String; 6] {
    let why = entry.why.clone().unwrap_or_default();
    let actor = if entry.claim.is_empty() {
        entry.actor.clone()
    } else {
        format!("{} ({}@{})", entry.actor, entry.claim, entry.epoch)
    };
    let time = entry.time.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut why = if why.message.is_empty() { why.reason } else { why.message };
    if entry.folded > 1 {
        why += &format!(" (the newest of {} alike since {})", entry.folded, entry.folded_since);
    }
    [time, entry.revision.to_string(), actor, entry.verb.clone(), touched(&entry.touched), why]
}

fn touched(touched: &[v1::Touched]) -> String {
    let names: Vec<String> = touched.iter().filter_map(|t| t.key.as_ref()).map(|k| words::short(&k.into())).collect();
    match names.len() {
        0..=NAMES => names.join(" "),
        n => format!("{} and {} more", names[..NAMES].join(" "), n - NAMES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_never_run_backwards_against_revisions() {
        let mut newest = Time::default();
        let mut told = |micros| Time::from(&in_order(&mut newest, Time(micros).into())).0;
        assert_eq!([told(5), told(3), told(7)], [5, 5, 7]);
    }
}
