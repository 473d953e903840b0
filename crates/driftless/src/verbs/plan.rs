//! `driftless plan`: what an apply would change, and every step that would follow. Writes nothing.

use std::fmt::Write as _;

use anyhow::Context;
use api::{manifest, v1};
use prost::Message;

use super::apply;
use crate::{
    client::Client,
    exit::Trouble,
    output::{self, Output},
    words::{self, DEFAULT_NAMESPACE},
};

/// The first line of a plan file; what follows is an encoded `ApplyRequest`.
pub const FILE_HEADER: &[u8] = b"driftless plan 1\n";
/// Steps shown before the rest is only counted; JSON has them all.
const STEPS_SHOWN: usize = 40;
/// Names shown of one step.
const NAMES_SHOWN: usize = 4;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless plan -f web.yaml
  driftless plan -f web.yaml --out web.plan && driftless apply web.plan
  driftless plan -f web.yaml -o json

Exits with 0 where nothing would change, and with 10 where something would.")]
pub struct Args {
    /// A file (YAML with one or several documents, or JSON), a folder of them, or - for standard input.
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE|DIR|-")]
    files: Vec<String>,
    /// Namespace of resources that name none.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// Keep the plan: 'driftless apply FILE' applies it, unless something it was made on has moved.
    #[arg(long, value_name = "FILE")]
    out: Option<std::path::PathBuf>,
    /// Text is for eyes, YAML and JSON for programs.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let documents = apply::read(&args.files, &args.namespace)?;
    apply::tell_left_out(&documents);
    let declarations: Vec<v1::Declaration> = documents
        .iter()
        .map(|d| v1::Declaration { resource: Some(d.resource.clone()), expected_revision: None })
        .collect();
    let request = v1::PlanRequest { declarations: declarations.clone(), field_manager: "apply".into() };
    let plan = client.api.plan(&client.caller, request).await.map_err(|error| apply::placed(error, &documents))?;
    if let Some(path) = &args.out {
        let request = v1::ApplyRequest { declarations, pins: plan.pins.clone(), ..Default::default() };
        let bytes = [FILE_HEADER, &request.encode_to_vec()].concat();
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output::print(&match args.output.format() {
        None => text(&plan),
        Some(format) => whole(&plan, format),
    })?;
    let unchanged = |c: &v1::PlannedChange| c.applied.as_ref().is_some_and(|a| a.outcome() == v1::Outcome::Unchanged);
    if plan.changes.iter().all(unchanged) && plan.steps.is_empty() { Ok(()) } else { Err(Trouble::Changes.into()) }
}

fn name(key: Option<&v1::ResourceKey>) -> String {
    key.map(|key| words::short(&key.into())).unwrap_or_default()
}

fn text(plan: &v1::PlanResponse) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        let applied = change.applied.clone().unwrap_or_default();
        let key = applied.resource.as_ref().map(|r| words::short(&apply::key(r))).unwrap_or_default();
        let (sign, what) = match applied.outcome() {
            v1::Outcome::Created => ("+", "would be created"),
            v1::Outcome::Updated => ("~", "would be updated"),
            v1::Outcome::Unchanged | v1::Outcome::Unspecified => ("=", "is so already"),
        };
        let _ = writeln!(text, "{sign} {key} {what}");
        for field in change.fields.iter().filter(|_| applied.outcome() == v1::Outcome::Updated) {
            let or = |value: &str| if value.is_empty() { "(unset)".to_owned() } else { value.to_owned() };
            let _ = writeln!(text, "    {}: {} -> {}", field.path, or(&field.before), or(&field.after));
        }
        for warning in &applied.warnings {
            let _ = writeln!(text, "    warning: {warning}");
        }
    }
    let _ = writeln!(text, "\nSteps: {}", plan.steps.len());
    for (n, step) in plan.steps.iter().take(STEPS_SHOWN).enumerate() {
        let why = step.why.clone().unwrap_or_default();
        let _ = writeln!(text, "{:4}  {:7} {}  ({})", n + 1, step.verb, moves(&step.moves), why.message);
    }
    if plan.steps.len() > STEPS_SHOWN {
        let _ = writeln!(text, "      ... and {} more; -o json or yaml shows them all", plan.steps.len() - STEPS_SHOWN);
    }
    for service in &plan.services {
        let _ = writeln!(
            text,
            "\n{}: creates {}, stops {}; at most {} exist at a time, at least {} are ready",
            name(service.key.as_ref()),
            service.created,
            service.stopped,
            service.live_peak,
            service.ready_least
        );
    }
    for one in &plan.unsettled {
        let why = one.why.clone().unwrap_or_default();
        let _ = writeln!(text, "{} would end in {}: {}", name(one.key.as_ref()), one.state, why.message);
    }
    if !plan.settled {
        let _ = writeln!(text, "It did not come to rest within the bound on steps.");
    }
    text
}

fn moves(moves: &[v1::PlannedMove]) -> String {
    let one = |m: &v1::PlannedMove| match m.node.as_str() {
        "" => m.key.clone().unwrap_or_default().name,
        node => format!("{} to {node}", m.key.clone().unwrap_or_default().name),
    };
    let names: Vec<String> = moves.iter().take(NAMES_SHOWN).map(one).collect();
    match moves.len() {
        0..=NAMES_SHOWN => names.join(", "),
        n => format!("{} and {} more", names.join(", "), n - NAMES_SHOWN),
    }
}

/// Whole resources are left out: the fields that change say what matters, and `--out` keeps the rest.
fn whole(plan: &v1::PlanResponse, format: manifest::Format) -> String {
    let mut plan = plan.clone();
    for change in &mut plan.changes {
        change.before = None;
        if let Some(resource) = change.applied.as_mut().and_then(|applied| applied.resource.as_mut()) {
            (resource.spec, resource.status) = (None, None);
        }
    }
    manifest::message("driftless.v1.PlanResponse", &plan.encode_to_vec(), format)
}
