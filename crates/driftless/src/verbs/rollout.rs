//! `driftless rollout`: how the replacement of a service's instances goes; pause, resume, undo.

use std::{fmt::Write as _, time::Duration};

use api::{manifest, v1};
use model::Key;
use prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage, Value as Field};
use serde_json::{Value, json};

use super::{
    history, replay,
    wait::{self, Waiting},
};
use crate::{
    client::Client,
    edit,
    exit::Trouble,
    output::{self, Output},
    vouched,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless rollout status web --wait
  driftless rollout pause service web
  driftless rollout resume web
  driftless rollout history web
  driftless rollout undo web --to 142")]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name, global = true)]
    namespace: String,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// NAME, service NAME, or service/NAME.
    #[arg(required = true, value_name = "SERVICE")]
    words: Vec<String>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show how far it is, and which version runs. Exits with 7 where it failed or was rolled back.
    Status {
        #[command(flatten)]
        service: Named,
        /// Wait until it's complete, or has failed.
        #[arg(long)]
        wait: bool,
        /// How long to wait; then exit with 5.
        #[arg(long, default_value = "5m", value_parser = words::duration)]
        timeout: Duration,
        /// Text is for eyes, YAML and JSON for programs.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Replace nothing more until it's resumed. A manifest that leaves spec.rollout.pause out keeps it paused.
    Pause {
        #[command(flatten)]
        service: Named,
    },
    /// Go on with a paused rollout.
    Resume {
        #[command(flatten)]
        service: Named,
    },
    /// Declare an earlier template again.
    Undo {
        #[command(flatten)]
        service: Named,
        /// To what was declared at that revision, of 'rollout history' or 'history'; to the template before the present one
        /// where left out.
        #[arg(long, value_name = "REVISION")]
        to: Option<i64>,
    },
    /// Show the templates that were declared, each where it was last.
    History {
        #[command(flatten)]
        service: Named,
        /// Text is for eyes, YAML and JSON for programs.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = |named: &Named| words::one_of_kind(&kinds::service::ServiceKind, &named.words, &args.namespace);
    match &args.what {
        What::Status { service, wait, timeout, output } => {
            status(client, &key(service)?, *wait, *timeout, *output).await
        }
        What::Pause { service } => pause(client, &key(service)?, true).await,
        What::Resume { service } => pause(client, &key(service)?, false).await,
        What::Undo { service, to } => undo(client, &key(service)?, *to).await,
        What::History { service, output } => history(client, &key(service)?, *output).await,
    }
}

async fn status(client: &Client, key: &Key, wait: bool, timeout: Duration, output: Output) -> anyhow::Result<()> {
    let resource = edit::get(client, key).await?;
    let waited = match wait {
        true => wait::until(client, vec![resource], &Waiting::rollout(timeout)).await,
        false => Ok(()),
    };
    let resource = vouched::shown(client, vec![edit::get(client, key).await?]).await?.remove(0);
    output::print(&shown(key, &resource, output)?)?;
    waited?;
    wait::failed(&resource).map_or(Ok(()), |failed| Err(failed.into()))
}

fn shown(key: &Key, resource: &v1::Resource, output: Output) -> anyhow::Result<String> {
    let status = decode::<v1::ServiceStatus>(resource.status.as_ref())?;
    let spec = decode::<v1::ServiceSpec>(resource.spec.as_ref())?;
    let version = kinds::service::running(resource);
    let paused = spec.rollout.is_some_and(|rollout| rollout.pause());
    if let Some(format) = output.format() {
        let condition = |c: &v1::Condition| json!({ "type": c.r#type, "status": c.status, "reason": c.reason, "message": c.message });
        let value = json!({
            "service": key.name(),
            "namespace": key.namespace(),
            "version": version,
            "declaredVersion": spec.version,
            "paused": paused,
            "declaredReplicas": spec.replicas.unwrap_or(1),
            "replicas": status.replicas,
            "updatedReplicas": status.updated_replicas,
            "readyReplicas": status.ready_replicas,
            "failed": kinds::kind(key.kind()).and_then(|kind| kind.failed(resource)),
            "conditions": status.conditions.iter().map(condition).collect::<Vec<_>>(),
        });
        return Ok(manifest::print(&value, format));
    }
    let mut text = format!(
        "{}: {}{}, {} updated, {} ready{}\n",
        words::short(key),
        if version.is_empty() { String::new() } else { format!("version {version}, ") },
        kinds::count(usize::try_from(status.replicas).unwrap_or(0), "instance"),
        status.updated_replicas,
        status.ready_replicas,
        if paused { "; paused, 'driftless rollout resume' goes on" } else { "" },
    );
    for condition in &status.conditions {
        let _ = writeln!(
            text,
            "  {}: {} ({}): {}",
            condition.r#type, condition.status, condition.reason, condition.message
        );
    }
    Ok(text)
}

fn decode<M: Message + Default>(any: Option<&prost_types::Any>) -> anyhow::Result<M> {
    Ok(M::decode(any.map_or(&[][..], |any| any.value.as_slice()))?)
}

async fn pause(client: &Client, key: &Key, pause: bool) -> anyhow::Result<()> {
    let path = "rollout.pause";
    edit::spec(client, key, "edit", |spec| match pause {
        true => edit::set(spec, path, Field::Bool(true)),
        false => edit::clear(spec, path),
    })
    .await?;
    output::print(&format!("{} {}\n", words::short(key), if pause { "paused" } else { "resumed" }))
}

/// One declared template.
#[derive(Clone)]
struct Version {
    revision: i64,
    time: String,
    actor: String,
    hash: String,
    version: String,
    /// The whole spec as it was declared, with fields that this binary doesn't know.
    spec: Vec<u8>,
}

impl Version {
    /// As people call it.
    fn name(&self) -> &str {
        if self.version.is_empty() { &self.hash } else { &self.version }
    }

    /// Puts what it says of the template in the place of what `spec` says.
    fn put_into(&self, spec: &mut DynamicMessage) -> anyhow::Result<()> {
        let earlier = DynamicMessage::decode(spec.descriptor(), self.spec.as_slice())?;
        for field in ["template", "version"] {
            edit::set(spec, field, earlier.get_field_by_name(field).expect("a Service has it").into_owned())?;
        }
        Ok(())
    }
}

/// Every change of template that is kept, oldest first.
fn declared(entries: &[v1::HistoryEntry], key: &Key) -> anyhow::Result<Vec<Version>> {
    let wire = v1::ResourceKey::from(key);
    let mut versions: Vec<Version> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.verb == "apply") {
        let touched = entry.touched.iter().find(|t| t.key.as_ref() == Some(&wire));
        let Some(resource) = touched.and_then(|touched| touched.after.as_ref()) else { continue };
        let hash = template_hash(resource);
        if versions.last().is_some_and(|last| last.hash == hash) {
            continue;
        }
        versions.push(Version {
            revision: entry.revision,
            time: entry.time.as_ref().map(ToString::to_string).unwrap_or_default(),
            actor: entry.actor.clone(),
            hash,
            version: decode::<v1::ServiceSpec>(resource.spec.as_ref())?.version,
            spec: resource.spec.as_ref().map(|spec| spec.value.clone()).unwrap_or_default(),
        });
    }
    Ok(versions)
}

fn template_hash(resource: &v1::Resource) -> String {
    resource.metadata.as_ref().map(|metadata| metadata.template_hash.clone()).unwrap_or_default()
}

/// Each template once, where it was last declared.
fn distinct(versions: Vec<Version>) -> Vec<Version> {
    let mut distinct: Vec<Version> = Vec::new();
    for version in versions {
        distinct.retain(|other| other.hash != version.hash);
        distinct.push(version);
    }
    distinct
}

async fn history(client: &Client, key: &Key, output: Output) -> anyhow::Result<()> {
    let now = edit::get(client, key).await?;
    let versions = distinct(declared(&history::entries(client, key, history::LIMIT_MAX).await?, key)?);
    let state = |version: &Version| match (version.hash == template_hash(&now), wait::failed(&now)) {
        (false, _) => "",
        (true, None) => "declared",
        (true, Some(_)) => "failed",
    };
    if let Some(format) = output.format() {
        let item = |v: &Version| {
            json!({ "revision": v.revision.to_string(), "template": v.hash, "version": v.version, "time": v.time,
                "actor": v.actor, "state": state(v) })
        };
        let items: Vec<Value> = versions.iter().map(item).collect();
        return output::print(&manifest::print(&json!({ "items": items }), format));
    }
    let titles = ["REVISION", "TEMPLATE", "VERSION", "STATE", "TIME", "ACTOR"].map(str::to_owned);
    let row = |v: &Version| {
        let state = state(v).to_owned();
        vec![v.revision.to_string(), v.hash.clone(), v.version.clone(), state, v.time.clone(), v.actor.clone()]
    };
    output::print(&output::table(&titles, &versions.iter().map(row).collect::<Vec<_>>()))
}

/// What to go back to. `now`: the template that is declared.
fn chosen<'v>(versions: &'v [Version], key: &Key, now: &str, to: Option<i64>) -> Result<&'v Version, Trouble> {
    let (found, missing) = match to {
        Some(revision) => {
            let oldest = versions.first().map_or_else(
                || "none is kept".to_owned(),
                |version| format!("the oldest that is kept is of revision {}", version.revision),
            );
            let found = versions.iter().rev().find(|version| version.revision <= revision);
            (found, format!("no declaration of {} up to revision {revision} is kept; {oldest}", words::short(key)))
        }
        None => {
            let found = versions.iter().rev().find(|version| version.hash != now);
            (found, format!("the history of {} has no template but the present one", words::short(key)))
        }
    };
    found.ok_or(Trouble::NotFound(missing))
}

async fn undo(client: &Client, key: &Key, to: Option<i64>) -> anyhow::Result<()> {
    let now = template_hash(&edit::get(client, key).await?);
    if let Some(revision) = to {
        replay::happened(client, &replay::At::Revision(revision)).await?;
    }
    let versions = declared(&history::entries(client, key, history::LIMIT_MAX).await?, key)?;
    let version = chosen(&versions, key, &now, to)?;
    let (name, shown, revision) = (words::short(key), version.name(), version.revision);
    if version.hash == now {
        return output::print(&format!("{name} is declared as {shown} already (since revision {revision})\n"));
    }
    let declared = edit::spec(client, key, "edit", |spec| version.put_into(spec)).await?;
    output::print(&format!("{name} goes back to {shown} (declared at revision {revision})\n"))?;
    if decode::<v1::ServiceSpec>(declared.spec.as_ref())?.rollout.is_some_and(|rollout| rollout.pause()) {
        output::say(&format!("warning: {name} is paused: nothing is replaced until 'driftless rollout resume'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(revision: i64, hash: &str) -> Version {
        let (time, actor, version) = (String::new(), String::new(), String::new());
        Version { revision, time, actor, hash: hash.into(), version, spec: Vec::new() }
    }

    fn web() -> Key {
        Key::new("Service", "default", "web")
    }

    #[test]
    fn going_back_finds_what_was_declared_at_a_revision_even_if_it_was_declared_again() {
        let versions = [version(10, "a"), version(20, "b"), version(30, "a"), version(40, "c")];
        let to = |revision| chosen(&versions, &web(), "c", Some(revision)).map(|found| (found.revision, &*found.hash));
        assert_eq!(to(10).unwrap(), (10, "a"));
        assert_eq!(to(25).unwrap(), (20, "b"), "what was so then, whoever wrote that revision");
        assert_eq!(to(40).unwrap(), (40, "c"), "the present one is found too");
        let missing = to(9).unwrap_err().to_string();
        assert_eq!(
            missing,
            "no declaration of service/web up to revision 9 is kept; the oldest that is kept is of revision 10"
        );
        let before = chosen(&versions, &web(), "c", None).unwrap();
        assert_eq!(before.revision, 30);
        assert!(chosen(&versions[3..], &web(), "c", None).is_err_and(|e| e.to_string().contains("no template but")));
    }

    #[test]
    fn each_template_is_listed_once_where_it_was_last_declared() {
        let versions = distinct(vec![version(10, "a"), version(20, "b"), version(30, "a")]);
        assert_eq!(versions.iter().map(|v| v.revision).collect::<Vec<_>>(), [20, 30]);
    }

    #[test]
    fn going_back_brings_what_a_newer_binary_had_declared_and_touches_nothing_else() {
        let template = v1::InstanceTemplate { command: vec!["old".into()], ..Default::default() };
        let spec =
            v1::ServiceSpec { version: "v1".into(), replicas: Some(2), template: Some(template), ..Default::default() };
        let mut bytes = spec.encode_to_vec();
        // The template once more, with nothing but field 2000: decoders merge the two.
        bytes.extend([0x1a, 5, 0x82, 0x7d, 2, b'h', b'i']);
        let earlier = Version { spec: bytes, ..version(10, "a") };

        let now = v1::ServiceSpec { version: "v2".into(), replicas: Some(7), ..Default::default() };
        let mut declared = DynamicMessage::new(api::descriptors().get_message_by_name(kinds::service::SPEC).unwrap());
        declared.merge(now.encode_to_vec().as_slice()).unwrap();
        earlier.put_into(&mut declared).unwrap();
        let encoded = declared.encode_to_vec();
        let read = v1::ServiceSpec::decode(encoded.as_slice()).unwrap();
        assert_eq!(
            (&*read.version, read.replicas, read.template.unwrap().command),
            ("v1", Some(7), vec!["old".into()])
        );
        assert!(encoded.windows(5).any(|part| part == [0x82, 0x7d, 2, b'h', b'i']), "{encoded:?}");
    }

    /// A service at v1 that was declared as v2.
    fn rolled_back() -> v1::Resource {
        let spec = v1::ServiceSpec { version: "v2".into(), replicas: Some(2), ..Default::default() };
        let good = v1::GoodTemplate { version: "v1".into(), template_hash: "old".into(), ..Default::default() };
        let ready =
            model::condition("Ready", Some(false), "RolledBack", "rolled back from v2 to v1 because it crashed");
        let status = v1::ServiceStatus {
            conditions: vec![ready],
            replicas: 2,
            ready_replicas: 2,
            rolled_back: "new".into(),
            last_good: Some(good),
            ..Default::default()
        };
        v1::Resource {
            metadata: Some(v1::Metadata { kind: "Service".into(), name: "web".into(), ..Default::default() }),
            spec: Some(kinds::any(kinds::service::SPEC, &spec)),
            status: Some(kinds::any(kinds::service::STATUS, &status)),
        }
    }

    #[test]
    fn what_was_rolled_back_is_shown_as_what_runs_and_ends_as_a_failure() {
        let text = shown(&web(), &rolled_back(), Output::Text).unwrap();
        assert!(text.starts_with("service/web: version v1, 2 instances, 0 updated, 2 ready\n"), "{text}");
        assert!(text.contains("Ready: False (RolledBack): rolled back from v2 to v1 because it crashed"), "{text}");
        let json: Value = serde_json::from_str(&shown(&web(), &rolled_back(), Output::Json).unwrap()).unwrap();
        assert_eq!((&json["version"], &json["declaredVersion"]), (&json!("v1"), &json!("v2")));
        let failed = anyhow::Error::from(wait::failed(&rolled_back()).expect("it failed"));
        assert_eq!(crate::exit::code(&failed), 7);
    }
}
