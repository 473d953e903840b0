//! `driftless get`: tables for eyes, JSON and YAML for programs.

use std::collections::BTreeMap;

use anyhow::Context;
use api::{
    manifest::{self, Format},
    v1,
};
use kinds::Kind;
use model::{Filter, Key, Revision};
use store::List;

use super::{
    apply,
    cluster::{self, Part},
};
use crate::{
    alarm,
    client::Client,
    exit::Trouble,
    follow::{Follow, Update},
    output, vouched,
    words::{self, DEFAULT_NAMESPACE, Targets, manifest_kinds},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    Table,
    Wide,
    Yaml,
    Json,
    Name,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless get services
  driftless get service web -o yaml
  driftless get svc,instances -l app=web -o wide
  driftless get instances -w
  driftless get all -A
  driftless get service/web node/n1 -o json
  driftless get shards                       who looks after which shard, and when it was last swept
  driftless get members                      everybody with a session: controllers, agents
  driftless get leader

A service whose shard wasn't swept for two intervals is shown as Unknown (reason NotChecked).

JSON and YAML are a stable interface: the canonical protobuf JSON mapping of the API's messages. One named resource is \
printed as itself, anything else as {\"items\": [...], \"revision\": \"...\"}. With -w, -o json prints one line an event: \
{\"event\": \"put\", \"resource\": {...}} or {\"event\": \"deleted\", \"kind\": ..., \"namespace\": ..., \"name\": ...}. \
Shards are {\"items\": [{\"shard\", \"owner\", \"session\", \"epoch\", \"age\" (seconds), \"queueDepth\", \"lastSweep\", \"unownedSince\"}, ...]}.")]
pub struct Args {
    /// KIND, KIND,KIND, all, KIND NAME..., KIND/NAME..., shards, members, or leader.
    #[arg(required = true, value_name = "KIND [NAME]")]
    words: Vec<String>,
    /// Tables are for eyes, the others for programs; wide tables have more columns, name only names.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Label selector, e.g. 'app=web,tier!=db'.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// Of every namespace.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Go on and show every change.
    #[arg(short, long)]
    watch: bool,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    if let (Some(part), false) = (Part::of(&args.words), args.watch) {
        return cluster::run(client, part, args.output).await;
    }
    let targets = words::targets(&args.words, &args.namespace)?;
    if args.watch {
        return watch(client, &args, targets).await;
    }
    let mut found = match &targets {
        Targets::Keys(keys) => named(client, keys).await?,
        Targets::Kinds(kinds) => listed(client, &args, kinds).await?,
    };
    found.resources = vouched::shown(client, found.resources).await?;
    match (&args.output, &targets) {
        (Output::Json | Output::Yaml, Targets::Keys(keys)) if keys.len() == 1 => {
            output::print(&manifest_kinds(|k| manifest::one(&found.resources[0], k, format(args.output))))
        }
        (Output::Json | Output::Yaml, _) => output::print(&manifest_kinds(|k| {
            manifest::list(&found.resources, found.revision.0, k, format(args.output))
        })),
        (Output::Name, _) => output::print(&names(&found.resources)),
        (Output::Table | Output::Wide, _) if found.resources.is_empty() => {
            output::say(&nothing(&args, &targets));
            Ok(())
        }
        (Output::Table | Output::Wide, _) => {
            let table = Table { wide: args.output == Output::Wide, namespaces: args.all_namespaces };
            output::print(&table.text(&found.resources))?;
            alarm::say(client, &found.resources).await;
            Ok(())
        }
    }
}

pub fn format(output: Output) -> Format {
    if output == Output::Yaml { Format::Yaml } else { Format::Json }
}

fn names(resources: &[v1::Resource]) -> String {
    resources.iter().map(|r| words::short(&apply::key(r)) + "\n").collect()
}

fn nothing(args: &Args, targets: &Targets) -> String {
    let what = match targets {
        Targets::Kinds(kinds) if kinds.len() == 1 => format!("no {}", plural(kinds[0])),
        _ => "nothing".into(),
    };
    let namespaced = match targets {
        Targets::Kinds(kinds) => kinds.iter().all(|k| kinds::kind(k).is_some_and(|k| k.info().namespaced)),
        Targets::Keys(_) => false,
    };
    let place =
        if namespaced && !args.all_namespaces { format!(" in namespace {}", args.namespace) } else { String::new() };
    let with = if args.selector.is_empty() { String::new() } else { format!(" with {}", args.selector) };
    format!("{what} found{place}{with}")
}

fn plural(kind: &str) -> &str {
    kinds::kind(kind).map_or(kind, |k| k.info().plural)
}

struct Found {
    resources: Vec<v1::Resource>,
    revision: Revision,
}

async fn named(client: &Client, keys: &[Key]) -> anyhow::Result<Found> {
    let mut found = Found { resources: Vec::new(), revision: Revision::default() };
    for key in keys {
        let object = client.api.get(key).await?.ok_or_else(|| words::missing(key))?;
        found.revision = found.revision.max(object.revision);
        found.resources.push(object.resource().with_context(|| format!("{key} can't be decoded"))?);
    }
    Ok(found)
}

async fn listed(client: &Client, args: &Args, kinds: &[&'static str]) -> anyhow::Result<Found> {
    let mut found = Found { resources: Vec::new(), revision: Revision::default() };
    for kind in kinds {
        let (resources, revision) = all(client, filter(args, kind)?).await?;
        found.resources.extend(resources);
        found.revision = found.revision.max(revision);
    }
    Ok(found)
}

fn filter(args: &Args, kind: &str) -> anyhow::Result<Filter> {
    let namespaced = kinds::kind(kind).is_some_and(|k| k.info().namespaced);
    let namespace = if namespaced && !args.all_namespaces { args.namespace.clone() } else { String::new() };
    let filter = Filter { namespace, ..Filter::kind(kind) };
    Ok(filter.with_labels(&args.selector).map_err(|e| Trouble::Usage(e.to_string()))?)
}

/// Every page of a list, all of one revision.
pub async fn all(client: &Client, filter: Filter) -> anyhow::Result<(Vec<v1::Resource>, Revision)> {
    let mut list = List { filter, ..List::default() };
    let mut resources = Vec::new();
    loop {
        let page = client.api.list(list.clone()).await?;
        for object in &page.objects {
            resources.push(object.resource().with_context(|| format!("{} can't be decoded", object.key))?);
        }
        list.at = Some(page.revision);
        list.after = page.objects.last().map(|o| o.key.clone());
        if !page.more || list.after.is_none() {
            return Ok((resources, page.revision));
        }
    }
}

/// Shows what there is and every change, until it's interrupted.
async fn watch(client: &Client, args: &Args, targets: Targets) -> anyhow::Result<()> {
    if args.output == Output::Yaml {
        return Err(Trouble::Usage("-w goes with -o table, wide, name and json".into()).into());
    }
    let (filter, keys) = match targets {
        Targets::Kinds(kinds) => {
            let base = filter(args, kinds[0])?;
            (Filter { kinds: kinds.iter().map(|&k| k.to_owned()).collect(), ..base }, None)
        }
        Targets::Keys(keys) => {
            let kinds = keys.iter().map(|k| k.kind().to_owned()).collect();
            (Filter { kinds, ..Filter::default() }, Some(keys))
        }
    };
    let wanted = |key: &Key| keys.as_ref().is_none_or(|keys| keys.contains(key));
    let mut follow = Follow::new(client, filter);
    let mut shown =
        Shown { table: Table { wide: args.output == Output::Wide, namespaces: args.all_namespaces }, titles: None };
    loop {
        for update in follow.next().await? {
            let text = match (&update, args.output) {
                (Update::Put(resource), _) if !wanted(&apply::key(resource)) => continue,
                (Update::Gone(key), _) if !wanted(key) => continue,
                (Update::Complete(_), _) => continue,
                (Update::Put(resource), Output::Json) => put_event(resource)?,
                (Update::Gone(key), Output::Json) => gone_event(key),
                (Update::Put(resource), Output::Name) => names(std::slice::from_ref(resource)),
                (Update::Put(resource), _) => shown.row(resource),
                (Update::Gone(key), _) => format!("{} deleted\n", words::short(key)),
            };
            output::print(&text)?;
        }
    }
}

fn put_event(resource: &v1::Resource) -> anyhow::Result<String> {
    let text = manifest_kinds(|k| manifest::one(resource, k, Format::Json));
    let resource: serde_json::Value = serde_json::from_str(&text).context("what was just written")?;
    Ok(format!("{}\n", serde_json::json!({ "event": "put", "resource": resource })))
}

fn gone_event(key: &Key) -> String {
    let (kind, namespace, name) = (key.kind(), key.namespace(), key.name());
    format!("{}\n", serde_json::json!({ "event": "deleted", "kind": kind, "namespace": namespace, "name": name }))
}

/// Which columns to show.
#[derive(Clone, Copy)]
pub struct Table {
    pub wide: bool,
    pub namespaces: bool,
}

impl Table {
    /// One table for each kind.
    pub fn text(self, resources: &[v1::Resource]) -> String {
        let mut groups: BTreeMap<String, Vec<&v1::Resource>> = BTreeMap::new();
        for resource in resources {
            groups.entry(apply::key(resource).kind().to_owned()).or_default().push(resource);
        }
        let several = groups.len() > 1;
        let texts = groups.iter().map(|(kind, resources)| {
            let Some(kind) = kinds::kind(kind) else {
                return format!("{} of the unknown kind {kind}\n", resources.len());
            };
            let rows: Vec<Vec<String>> = resources.iter().map(|r| self.row(kind, r, several)).collect();
            output::table(&self.titles(kind), &rows)
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    fn titles(self, kind: &dyn Kind) -> Vec<String> {
        let mut titles = vec!["NAME".to_owned()];
        if self.namespaces {
            titles.push("NAMESPACE".into());
        }
        titles.extend(kind.info().columns.iter().filter(|c| self.wide || !c.wide).map(|c| c.title.to_owned()));
        titles.push("AGE".into());
        titles
    }

    fn row(self, kind: &dyn Kind, resource: &v1::Resource, several: bool) -> Vec<String> {
        let key = apply::key(resource);
        let mut row = vec![if several { words::short(&key) } else { key.name().to_owned() }];
        if self.namespaces {
            row.push(key.namespace().to_owned());
        }
        let cells = kind.info().columns.iter().zip(kind.row(resource));
        row.extend(cells.filter(|(column, _)| self.wide || !column.wide).map(|(_, cell)| cell));
        let created = resource.metadata.as_ref().and_then(|m| m.created_time.as_ref());
        row.push(words::age(created, words::now()));
        row
    }
}

/// Rows that come one by one.
struct Shown {
    table: Table,
    /// Kind whose titles stand above.
    titles: Option<String>,
}

impl Shown {
    fn row(&mut self, resource: &v1::Resource) -> String {
        let text = self.table.text(std::slice::from_ref(resource));
        let kind = apply::key(resource).kind().to_owned();
        let is_new = self.titles.as_ref() != Some(&kind);
        self.titles = Some(kind);
        match text.split_once('\n') {
            Some((_, row)) if !is_new => row.to_owned(),
            _ => text,
        }
    }
}
