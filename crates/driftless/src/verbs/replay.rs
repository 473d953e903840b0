//! `driftless replay`: a resource as it was at a revision or a time, from the history.

use anyhow::bail;
use api::{manifest, v1};
use model::Key;

use super::history;
use crate::{
    client::Client,
    exit::Trouble,
    output, vouched,
    words::{self, DEFAULT_NAMESPACE, manifest_kinds},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless replay service web --at 142
  driftless replay service web --at 2026-11-29T19:59:53Z -o json")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// A revision that was reached, or a time that has come (RFC 3339).
    #[arg(long, value_name = "REVISION|TIME")]
    at: String,
    /// Both can be declared again.
    #[arg(short, long, default_value = "yaml")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Yaml,
    Json,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let at = At::parse(&args.at)?;
    happened(client, &at).await?;
    let entries = history::entries(client, &key, history::LIMIT_MAX).await?;
    let resource = as_of(&entries, &key, &at)?;
    let format = if args.output == Output::Json { manifest::Format::Json } else { manifest::Format::Yaml };
    output::print(&manifest_kinds(|kinds| manifest::one(&resource, kinds, format)))
}

/// A point in history.
pub enum At {
    Revision(i64),
    Time(prost_types::Timestamp),
}

impl At {
    pub fn parse(text: &str) -> Result<Self, Trouble> {
        if let Ok(revision) = text.parse() {
            return Ok(Self::Revision(revision));
        }
        let time = text.parse().map(Self::Time);
        time.map_err(|_| Trouble::Usage(format!("{text:?} is neither a revision nor a time like 2026-11-29T20:00:00Z")))
    }

    fn includes(&self, entry: &v1::HistoryEntry) -> bool {
        match self {
            Self::Revision(revision) => entry.revision <= *revision,
            Self::Time(time) => entry.time.as_ref().is_some_and(|t| model::Time::from(t) <= model::Time::from(time)),
        }
    }
}

/// Refuses what is still to come, which the history would answer as if it were now.
pub async fn happened(client: &Client, at: &At) -> anyhow::Result<()> {
    let ahead = match at {
        At::Revision(revision) => {
            let newest = client.api.head().await?.revision;
            (*revision > newest.0).then(|| format!("there is no revision {revision} yet: the newest is {newest}"))
        }
        At::Time(time) => {
            let now = vouched::time_of(&*vouched::coordination(client).await?);
            (model::Time::from(time) > now).then(|| format!("{time} is yet to come: it is {now} by the server's clock"))
        }
    };
    ahead.map_or(Ok(()), |words| bail!(Trouble::NotFound(words)))
}

/// What the last entry up to there left of the resource. Each write names what it replaced: where that isn't what the
/// history has before it, there was more, which was folded.
pub fn as_of(entries: &[v1::HistoryEntry], key: &Key, at: &At) -> anyhow::Result<v1::Resource> {
    let wire = v1::ResourceKey::from(key);
    let touched = |entry: &v1::HistoryEntry| {
        let touched = entry.touched.iter().rev().find(|touched| touched.key.as_ref() == Some(&wire))?;
        Some((entry.revision, touched.clone()))
    };
    let name = words::short(key);
    let Some((revision, last)) = entries.iter().rev().filter(|entry| at.includes(entry)).find_map(touched) else {
        let begins = entries.iter().find_map(touched).map(|(revision, _)| revision);
        bail!(Trouble::NotFound(match begins {
            Some(revision) => format!("the history kept of {name} begins at revision {revision}, after that"),
            None => format!("nothing is kept of {name}"),
        }))
    };
    let next = entries.iter().filter(|entry| !at.includes(entry)).find_map(touched);
    if let Some((newer, next)) = next.filter(|(_, next)| next.uid == last.uid && next.replaced_revision != revision) {
        bail!(Trouble::NotFound(format!(
            "{name} changed in counters and times alone between the revisions {revision} and {newer}, which was folded; \
             kept are those two (the newer one replaced revision {})",
            next.replaced_revision
        )));
    }
    match last.after {
        None => bail!(Trouble::NotFound(format!("{name} was removed at revision {revision}"))),
        Some(mut resource) => {
            resource.metadata.get_or_insert_default().revision = revision;
            Ok(resource)
        }
    }
}
