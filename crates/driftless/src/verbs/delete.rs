//! `driftless delete`: asks for deletion, and waits until everything below is gone too.

use std::time::Duration;

use api::v1;
use model::Key;

use super::{
    apply, users,
    wait::{self, Waiting},
};
use crate::{
    client::Client,
    edit,
    exit::Trouble,
    output,
    standing::Goal,
    words::{self, DEFAULT_NAMESPACE},
};

/// Users that are named.
const NAMES: usize = 5;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless delete service web
  driftless delete service/web service/api --no-wait
  driftless delete -f examples/web.yaml
  driftless delete node n1    of a machine that is gone; else 'driftless drain n1' first
  driftless delete config paint --force
  driftless delete service web --drop-finalizer backup    'driftless why' says what holds a deletion

Deleting what doesn't exist is no failure. A Config that services use is not deleted (exit 4), unless they are deleted by \
the same command, or by --force.")]
pub struct Args {
    /// KIND NAME..., or KIND/NAME...
    #[arg(value_name = "KIND NAME")]
    words: Vec<String>,
    /// Delete what a manifest declares.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", conflicts_with = "words")]
    files: Vec<String>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// Instances go at once, whatever their service's disruption budget says; else deleting one asks for its eviction. A
    /// node goes although its agent is there: what it runs is replaced at once; else that is refused.
    #[arg(long)]
    now: bool,
    /// Delete what others use, too: a Config that services take their environment from. What they run keeps running, but they
    /// start and replace nothing until it's declared again.
    #[arg(long)]
    force: bool,
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
    for key in &keys {
        // A courtesy to whoever types this: a service whose Config is gone waits for another.
        let all = users::of(client, key).await?;
        let users: Vec<Key> = all.iter().map(apply::key).filter(|user| !keys.contains(user)).collect();
        match (users.is_empty(), args.force) {
            (true, _) => {}
            (false, true) => output::say(&format!("warning: {}", used_by(key, &users))),
            (false, false) => {
                return Err(Trouble::InUse(used_by(key, &users) + "; --force deletes it all the same").into());
            }
        }
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
    let waited = wait::until(client, going, &Waiting::new(Goal::Deleted, args.timeout)).await;
    waited.map_err(|error| match error.downcast::<Trouble>() {
        // Only the waiting has come to its end.
        Ok(Trouble::TimedOut(words)) => Trouble::TimedOut(format!("{words}; the request stays in force")).into(),
        Ok(other) => other.into(),
        Err(error) => error,
    })
}

fn used_by(key: &Key, users: &[Key]) -> String {
    let names: Vec<String> = users.iter().take(NAMES).map(words::short).collect();
    let more = users.len().checked_sub(NAMES).filter(|more| *more > 0).map(|more| format!(" and {more} more"));
    let (key, names) = (words::short(key), names.join(", "));
    format!("{key} is used by {names}{}, which can start nothing without it", more.unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_something_is_named_but_not_without_end() {
        let key = |kind: &str, name: &str| Key::new(kind, "default", name);
        let services: Vec<Key> = (0..7).map(|n| key("Service", &format!("s{n}"))).collect();
        let told = |n: usize| used_by(&key("Config", "paint"), &services[..n]);
        assert_eq!(told(1), "config/paint is used by service/s0, which can start nothing without it");
        assert!(told(5).contains("service/s4, which"), "{}", told(5));
        assert!(told(7).contains("service/s4 and 2 more, which"), "{}", told(7));
    }
}
