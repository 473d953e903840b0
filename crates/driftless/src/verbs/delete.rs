//! `driftless delete`: asks for deletion, and waits until everything below is gone too.

use std::time::Duration;

use api::v1;
use model::Key;

use super::{apply, wait};
use crate::{
    client::Client,
    exit::Trouble,
    output,
    standing::Goal,
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless delete service web
  driftless delete service/web service/api --no-wait
  driftless delete -f examples/web.yaml

Deleting what doesn't exist is no failure.")]
pub struct Args {
    /// KIND NAME..., or KIND/NAME...
    #[arg(value_name = "KIND NAME")]
    words: Vec<String>,
    /// Delete what a manifest declares.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", conflicts_with = "words")]
    files: Vec<String>,
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::namespace)]
    namespace: String,
    /// Instances go at once, whatever their service's disruption budget says; else deleting one asks for its eviction.
    #[arg(long)]
    now: bool,
    /// Return as soon as deletion is asked for.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait until it's gone; then exit with 5.
    #[arg(long, default_value = "60s", value_parser = words::duration)]
    timeout: Duration,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let keys = match args.files.as_slice() {
        [] => words::keys(&args.words, &args.namespace)?,
        files => apply::read(files, &args.namespace)?.iter().map(|d| apply::key(&d.resource)).collect(),
    };
    if keys.is_empty() {
        return Err(Trouble::Usage("say what to delete: KIND NAME, or -f FILE".into()).into());
    }
    let mut going = Vec::new();
    for key in &keys {
        match ask(client, key, args.now).await? {
            Some(resource) => going.push(resource),
            None => output::print(&format!("{} does not exist\n", words::short(key)))?,
        }
    }
    if args.no_wait {
        let names = going.iter().map(|r| format!("{} is being deleted\n", words::short(&apply::key(r))));
        return output::print(&names.collect::<String>());
    }
    wait::until(client, going, &Goal::Deleted, wait::Hold::default(), args.timeout).await
}

/// The resource as it is on its way out; none where it's gone already.
async fn ask(client: &Client, key: &Key, now: bool) -> anyhow::Result<Option<v1::Resource>> {
    let before = client.api.get(key).await?.and_then(|object| object.resource().ok());
    let Some(before) = before else { return Ok(None) };
    let uid = before.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
    let request = v1::DeleteRequest { key: Some(key.into()), uid, now, ..Default::default() };
    match client.api.delete(&client.caller, request).await {
        Ok(response) => Ok(Some(response.resource.unwrap_or(before))),
        Err(store::Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
