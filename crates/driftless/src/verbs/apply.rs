//! `driftless apply`: declares what is in files. Everything is read and admitted before anything is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use api::{
    brief,
    manifest::{self, Document},
    v1,
};
use model::{Filter, Key, Revision};

use super::{
    get, plan,
    users::{self, Used},
    wait::{self, Failure, Waiting},
};
use crate::{
    client::Client,
    exit::Trouble,
    output,
    words::{self, DEFAULT_NAMESPACE, manifest_kinds},
};

/// Resources in one transaction of the server.
const BATCH_MAX: usize = 100;
/// Warnings about the children of one resource, and children named in each.
const CAVEATS_MAX: usize = 5;
const CHILDREN_TOLD: usize = 3;
/// Files read from one folder.
const FILES_MAX: usize = 1_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless apply -f examples/web.yaml --wait
  driftless apply -f manifests/              every .yaml, .yml and .json in the folder
  cat web.yaml | driftless apply -f - --dry-run
  driftless get service web -o yaml | sed 's/replicas: 3/replicas: 5/' | driftless apply -f -

What 'driftless get -o yaml' prints can be applied again. What servers stamp there (uid, revision, status, ...) is left out; \
in a manifest that has no uid, a status is refused.")]
pub struct Args {
    /// A file (YAML with one or several documents, or JSON), a folder of them, or - for standard input.
    #[arg(short = 'f', long = "filename", required_unless_present = "plan", value_name = "FILE|DIR|-")]
    files: Vec<String>,
    /// A plan that 'driftless plan --out' kept: applied as it is, unless something it was made on has moved (exit 4).
    #[arg(conflicts_with_all = ["files", "dry_run", "expected_revision"], value_name = "PLAN")]
    plan: Option<PathBuf>,
    /// Namespace of resources that name none.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// Have the server check everything, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only if the one resource declared is at this revision (0: doesn't exist yet); else exit with 4.
    #[arg(long, value_name = "REVISION")]
    expected_revision: Option<i64>,
    /// Wait until everything declared is ready, and so is what uses a Config that changed. A rollout that missed its
    /// progress deadline, or was rolled back, ends the wait with 7.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    #[command(flatten)]
    hold: wait::Hold,
    /// How long to wait; then exit with 5.
    #[arg(long, default_value = "60s", value_parser = words::duration)]
    timeout: Duration,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let applied = match &args.plan {
        Some(plan) => planned(client, plan).await?,
        None => declared(client, &args).await?,
    };
    if !args.wait {
        return Ok(());
    }
    let (acting, others): (Vec<v1::Applied>, Vec<v1::Applied>) =
        applied.into_iter().partition(|one| kinds::RECONCILERS.iter().any(|r| r.kind() == key_of(one).kind()));
    // What a service was judged before a Config of its changed is no judgement of now.
    let changed = others.iter().filter(|one| one.outcome() != v1::Outcome::Unchanged).filter_map(|one| {
        let metadata = one.resource.as_ref()?.metadata.as_ref()?;
        Some(Revision(metadata.revision))
    });
    let failure = Failure::Ends(changed.max().unwrap_or(Revision::ZERO));
    let used = others.iter().filter_map(|one| one.resource.as_ref()).map(Used::of).collect();
    let waiting = Waiting { hold: args.hold, failure, used, ..Waiting::rollout(args.timeout) };
    let mut awaited: Vec<v1::Resource> = acting.into_iter().filter_map(|one| one.resource).collect();
    for change in others.iter().filter(|one| one.outcome() != v1::Outcome::Unchanged) {
        let known: BTreeSet<Key> = awaited.iter().map(key).collect();
        let users = users::of(client, &key_of(change)).await?;
        awaited.extend(users.into_iter().filter(|user| !known.contains(&key(user))));
    }
    let waited_for = awaited.clone();
    wait::until(client, awaited, &waiting).await?;
    for resource in &waited_for {
        // What was waited for is true all the same.
        if let Err(error) = tell_caveats(client, resource).await {
            output::say(&format!("warning: whether anything is lacking couldn't be asked: {error:#}"));
            break;
        }
    }
    Ok(())
}

/// What its children lack though it's ready, each word of it once.
async fn tell_caveats(client: &Client, resource: &v1::Resource) -> anyhow::Result<()> {
    let owner_uid = resource.metadata.as_ref().map(|metadata| metadata.uid.clone()).unwrap_or_default();
    let (children, _) = get::all(client, Filter { owner_uid, ..Filter::default() }).await?;
    let caveats = caveats(&children);
    let name = words::short(&key(resource));
    for (words, children) in caveats.iter().take(CAVEATS_MAX) {
        output::say(&format!("warning: {name}: {}: {words}", kinds::some_of(children, CHILDREN_TOLD)));
    }
    if caveats.len() > CAVEATS_MAX {
        output::say(&format!("warning: {name}: and {} more of the kind", caveats.len() - CAVEATS_MAX));
    }
    Ok(())
}

/// Whom each of them is about, of those that stay.
fn caveats(children: &[v1::Resource]) -> BTreeMap<String, Vec<&str>> {
    let mut caveats: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for child in children {
        let Some(metadata) = child.metadata.as_ref().filter(|m| m.deletion_time.is_none()) else { continue };
        let Some(kind) = kinds::kind(&metadata.kind) else { continue };
        let Some(words) = kind.caveat(child) else { continue };
        let place = kind.node(child).map(|node| format!("on {node}: ")).unwrap_or_default();
        caveats.entry(format!("{place}{words}")).or_default().push(&metadata.name);
    }
    caveats
}

async fn declared(client: &Client, args: &Args) -> anyhow::Result<Vec<v1::Applied>> {
    let documents = read(&args.files, &args.namespace)?;
    tell_left_out(&documents);
    if args.expected_revision.is_some() && documents.len() > 1 {
        return Err(Trouble::Usage("--expected-revision goes with one resource".into()).into());
    }
    let expected = args.expected_revision;
    let batches: Vec<&[Document]> = documents.chunks(BATCH_MAX).collect();
    if batches.len() > 1 {
        // What one transaction can't hold is at least refused before the first is written.
        let n = documents.len();
        output::say(&format!("{n} documents are applied in {} transactions of up to {BATCH_MAX}", batches.len()));
        for batch in &batches {
            declare(client, batch, expected, true).await?;
        }
    }
    let mut applied = Vec::new();
    for batch in batches {
        let results = match (declare(client, batch, expected, args.dry_run).await, applied.len()) {
            (Err(error), done @ 1..) => Err(error.context(format!("after {done} of {} documents", documents.len()))),
            (results, _) => results,
        }?;
        applied.extend(tell(results, args.dry_run)?);
    }
    Ok(applied)
}

async fn planned(client: &Client, path: &Path) -> anyhow::Result<Vec<v1::Applied>> {
    let name = path.display();
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let Some(encoded) = bytes.strip_prefix(plan::FILE_HEADER) else {
        anyhow::bail!("{name} is no plan; 'driftless plan --out FILE' makes one (-f applies manifests)");
    };
    let request =
        <v1::ApplyRequest as prost::Message>::decode(encoded).with_context(|| format!("{name} is damaged"))?;
    tell(client.api.apply(&client.caller, request).await?.results, false)
}

/// Everything in the files, or everything that is wrong with them.
pub fn read(files: &[String], namespace: &str) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    for file in files {
        for (source, text) in texts(file)? {
            match manifest_kinds(|kinds| manifest::read(&source, &text, kinds)) {
                Ok(found) => documents.extend(found),
                Err(found) => problems.extend(found.0),
            }
        }
    }
    place(&mut documents, namespace);
    problems.extend(duplicates(&documents));
    if !problems.is_empty() {
        return Err(manifest::Problems(problems).into());
    }
    if documents.is_empty() {
        anyhow::bail!("no resources in {}", files.join(", "));
    }
    Ok(documents)
}

/// What was printed with its status is declared without.
pub fn tell_left_out(documents: &[Document]) {
    let names: Vec<String> =
        documents.iter().filter(|d| d.has_status).map(|d| words::short(&key(&d.resource))).collect();
    if let Some((first, others)) = names.split_first() {
        let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        output::say(&format!("warning: the status of {first}{more} is left out: it is reported, never declared"));
    }
}

/// Named files with their text.
fn texts(file: &str) -> anyhow::Result<Vec<(String, String)>> {
    if file == "-" {
        return Ok(vec![("standard input".into(), text(std::io::stdin().lock(), "standard input")?)]);
    }
    let path = Path::new(file);
    let meta = fs::metadata(path).with_context(|| format!("cannot read {file}"))?;
    let paths = if meta.is_dir() { folder(path)? } else { vec![path.to_owned()] };
    let open = |path: PathBuf| {
        let name = path.display().to_string();
        let file = fs::File::open(&path).with_context(|| format!("cannot read {name}"))?;
        let text = text(file, &name)?;
        Ok((name, text))
    };
    paths.into_iter().map(open).collect()
}

/// One byte more than a manifest may have, so that an endless input ends here and is refused there.
fn text(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let most = manifest::FILE_BYTES_MAX as u64 + 1;
    from.take(most).read_to_end(&mut bytes).with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 == most {
        anyhow::bail!("{name} is larger than {} bytes, the most that a manifest may have: split it", most - 1);
    }
    String::from_utf8(bytes).with_context(|| format!("{name} is not a text (UTF-8)"))
}

fn folder(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let name = path.display();
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {name}"))? {
        let file = entry.with_context(|| format!("cannot read {name}"))?.path();
        let is_manifest = file.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|m| e == *m));
        if is_manifest && file.is_file() {
            files.push(file);
        }
    }
    if files.len() > FILES_MAX {
        anyhow::bail!("{name} holds {} manifests; at most {FILES_MAX} are read at once", files.len());
    }
    files.sort();
    Ok(files)
}

fn place(documents: &mut [Document], namespace: &str) {
    for document in documents {
        let metadata = document.resource.metadata.get_or_insert_default();
        let namespaced = kinds::kind(&metadata.kind).is_some_and(|k| k.info().namespaced);
        if namespaced && metadata.namespace.is_empty() {
            metadata.namespace = namespace.to_owned();
        }
    }
}

fn duplicates(documents: &[Document]) -> Vec<manifest::Problem> {
    let mut seen: BTreeMap<Key, &Document> = BTreeMap::new();
    let mut problems = Vec::new();
    for document in documents {
        let key = key(&document.resource);
        if let Some(first) = seen.get(&key) {
            problems.push(manifest::Problem {
                source: document.source.clone(),
                place: document.place,
                field: "metadata.name".into(),
                message: format!("{} is declared twice; first in {}:{}", key, first.source, first.place.line),
            });
        }
        seen.entry(key).or_insert(document);
    }
    problems
}

pub fn key(resource: &v1::Resource) -> Key {
    resource.metadata.as_ref().map_or_else(|| Key::new("", "", ""), Key::of)
}

fn key_of(applied: &v1::Applied) -> Key {
    applied.resource.as_ref().map_or_else(|| Key::new("", "", ""), key)
}

async fn declare(
    client: &Client,
    documents: &[Document],
    expected: Option<i64>,
    dry_run: bool,
) -> anyhow::Result<Vec<v1::Applied>> {
    let declare = |d: &Document| v1::Declaration { resource: Some(d.resource.clone()), expected_revision: expected };
    let declarations = documents.iter().map(declare).collect();
    let request = v1::ApplyRequest { declarations, dry_run, field_manager: "apply".into(), pins: None };
    let response = client.api.apply(&client.caller, request).await.map_err(|error| placed(error, documents))?;
    Ok(response.results)
}

/// What a server refused of these documents is told with where it stands.
pub fn placed(error: store::Error, documents: &[Document]) -> anyhow::Error {
    match error {
        store::Error::Invalid(violations) => located(&violations, documents).into(),
        error => error.into(),
    }
}

/// What the server refused, with where it stands: "declarations[2].resource.spec.replicas" is of the third document.
fn located(violations: &[model::Violation], documents: &[Document]) -> manifest::Problems {
    let problem = |violation: &model::Violation| {
        let indexed = violation.field.strip_prefix("declarations[").and_then(|rest| rest.split_once(']'));
        let (index, field) = match indexed {
            Some((index, field)) => (index.parse().unwrap_or(0), field.trim_start_matches('.')),
            None => (0, violation.field.as_str()),
        };
        let field = field.trim_start_matches("resource.");
        let document = documents.get(index).or(documents.first());
        let name = document.map(|d| words::short(&key(&d.resource))).unwrap_or_default();
        manifest::Problem {
            source: document.map(|d| d.source.clone()).unwrap_or_default(),
            place: document.map_or(manifest::Place::UNKNOWN, |d| d.place_of(field)),
            field: field.to_owned(),
            message: format!("{} ({})", violation.message, brief(&name)),
        }
    };
    manifest::Problems(violations.iter().map(problem).collect())
}

fn tell(results: Vec<v1::Applied>, dry_run: bool) -> anyhow::Result<Vec<v1::Applied>> {
    let mut lines = String::new();
    for result in &results {
        let name = words::short(&key_of(result));
        for warning in &result.warnings {
            output::say(&format!("warning: {name}: {warning}"));
        }
        let what = match result.outcome() {
            v1::Outcome::Created => "created",
            v1::Outcome::Updated => "updated",
            v1::Outcome::Unchanged => "unchanged",
            v1::Outcome::Unspecified => "applied",
        };
        lines += &format!("{name} {what}{}\n", if dry_run { " (dry run)" } else { "" });
    }
    output::print(&lines)?;
    Ok(results)
}
