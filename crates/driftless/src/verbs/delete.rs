//! `driftless delete`: asks for deletion, and waits until everything below is gone too.

use std::time::Duration;

use api::v1;
use model::Key;

use super::{apply, wait};
use crate::{
    client::Client,
    edit,
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
  driftless delete service web --drop-finalizer backup    'driftless why service web' says what holds a deletion

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
    /// Take this finalizer off, as if whoever put it there were done: the record may go then.
    #[arg(long = "drop-finalizer", value_name = "FINALIZER")]
    drop_finalizers: Vec<String>,
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
    for key in keys.iter().filter(|_| !args.drop_finalizers.is_empty()) {
        drop_finalizers(client, key, &args.drop_finalizers).await?;
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

async fn drop_finalizers(client: &Client, key: &Key, finalizers: &[String]) -> anyhow::Result<()> {
    let dropped = edit::resource(client, key, "edit", |resource| {
        let kept = resource.metadata.get_or_insert_default();
        for finalizer in finalizers {
            let at = kept.finalizers.iter().position(|one| one == finalizer);
            let at =
                at.ok_or_else(|| Trouble::NotFound(format!("{} has no finalizer {finalizer}", words::short(key))))?;
            kept.finalizers.remove(at);
        }
        Ok(())
    });
    dropped.await?;
    output::print(&format!("{} freed of {}\n", words::short(key), finalizers.join(", ")))
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
