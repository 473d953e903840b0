//! `driftless logs`: what an instance wrote.
//!
//! Whoever follows it goes on behind what he has read, whatever breaks on the way: agents and servers are restarted, and
//! others take over, while the instance runs on.

use std::{io::Write, time::Duration};

use anyhow::Context;
use api::v1;
use futures::{StreamExt, stream};
use kinds::instance;
use model::{Filter, Key, Time};
use prost::Message;
use store::{Class, LogPiece, LogStream};

use crate::{
    client::Client,
    follow::{Follow, Update},
    output::say,
    words::{self, DEFAULT_NAMESPACE},
};

/// Pauses before a log that broke off is looked for again, doubling.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless logs web-3f9a-0
  driftless logs web-3f9a-0 -f --tail 10
  driftless logs web-3f9a-0 --since 10m                 or since a time: 2026-01-31T08:00:00Z
  driftless logs web-3f9a-0 --previous --tail 20        what it wrote before it was last restarted
  driftless logs $(driftless get instances -l app=web -o name | head -1)")]
pub struct Args {
    /// The instance's name, as 'driftless get instances' shows it.
    #[arg(value_name = "INSTANCE")]
    instance: String,
    /// Go on as more is written, until the instance is gone or has ended for good; also over restarts of its agent and of
    /// servers.
    #[arg(short, long)]
    follow: bool,
    /// Of the run before the present or last one; only these two are kept.
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,
    /// Only what was written since, to the second: a time (RFC 3339), or how long ago (10m).
    #[arg(long, value_name = "TIME|DURATION", value_parser = words::since)]
    since: Option<Time>,
    /// Only the last lines.
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, value_parser = words::number(0..=i32::MAX))]
    tail: Option<i32>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let instance = args.instance.rsplit('/').next().unwrap_or_default().to_owned();
    // How long ago, since the node's clock may go differently.
    let since = args.since.map(|since| words::now().since(since));
    let request = v1::LogsRequest {
        namespace: args.namespace,
        instance,
        follow: args.follow,
        tail: args.tail,
        previous: args.previous,
        since: since.and_then(|since| since.try_into().ok()),
        after: String::new(),
    };
    let key = Key::new(instance::KIND, &request.namespace, &request.instance);
    let mut shown = Shown::default();
    match request.follow {
        true => follow(client, &key, request, &mut shown).await?,
        false => shown.show(&mut client.logs(request).await?).await??,
    }
    match shown.nothing {
        true => unstarted(client, &key).await,
        false => Ok(()),
    }
}

async fn follow(client: &Client, key: &Key, request: v1::LogsRequest, shown: &mut Shown) -> anyhow::Result<()> {
    let uid = uid(client, key).await?;
    let mut over = Box::pin(over(client, key));
    let mut pieces = client.logs(request.clone()).await?;
    loop {
        let broken = tokio::select! {
            ended = shown.show(&mut pieces) => match ended? {
                Ok(()) => return Ok(()),
                Err(broken) => broken,
            },
            // Nothing more is written, so what is there by now is all.
            () = &mut over => {
                let rest = v1::LogsRequest { follow: false, after: shown.position.clone(), ..request };
                return Ok(shown.show(&mut client.logs(rest).await?).await??);
            }
        };
        // Only from a position nothing is shown twice, or left out.
        if shown.position.is_empty() || !passes(&broken) {
            return Err(broken.into());
        }
        say(&format!("{key}: waiting for its log to go on: {broken}"));
        let after = v1::LogsRequest { after: shown.position.clone(), ..request.clone() };
        match go_on(client, key, &uid, after).await? {
            Some(again) => pieces = again,
            None => {
                say(&format!("{key} is gone; what it wrote meanwhile can't be read here any more"));
                return Ok(());
            }
        }
        say(&format!("{key}: its log goes on"));
    }
}

/// What of a log was shown.
struct Shown {
    nothing: bool,
    /// How far that was; empty before the first piece.
    position: String,
}

impl Default for Shown {
    fn default() -> Self {
        Self { nothing: true, position: String::new() }
    }
}

impl Shown {
    /// As it comes, until it ends or breaks off. Given up in between, it has shown what it says.
    async fn show(&mut self, pieces: &mut LogStream) -> anyhow::Result<store::Result<()>> {
        let mut out = std::io::stdout();
        while let Some(piece) = pieces.next().await {
            let LogPiece { data, position } = match piece {
                Ok(piece) => piece,
                Err(broken) => return Ok(Err(broken)),
            };
            out.write_all(&data)?;
            out.flush()?;
            self.nothing &= data.is_empty();
            if !position.is_empty() {
                self.position = position;
            }
        }
        Ok(Ok(()))
    }
}

/// Until the instance has ended for good; for ever where it's deleted before.
async fn over(client: &Client, key: &Key) {
    let filter = || Filter { namespace: key.namespace().into(), name: key.name().into(), ..Filter::kind(key.kind()) };
    loop {
        let mut watch = Follow::new(client, filter());
        while let Ok(updates) = watch.next().await {
            let ends = |update: &Update| matches!(update, Update::Put(one) if instance::is_over(&status(one)));
            if updates.iter().any(ends) {
                return;
            }
        }
        // Whoever reads the log is told what is wrong.
        tokio::time::sleep(PAUSE_MAX).await;
    }
}

fn status(resource: &v1::Resource) -> v1::InstanceStatus {
    let bytes = resource.status.as_ref().map_or(&[][..], |status| status.value.as_slice());
    v1::InstanceStatus::decode(bytes).unwrap_or_default()
}

/// Says so where nothing was written because nothing ran.
async fn unstarted(client: &Client, key: &Key) -> anyhow::Result<()> {
    let Some(object) = client.api.get(key).await? else { return Ok(()) };
    let status = status(&object.resource().with_context(|| format!("{key} can't be decoded"))?);
    if let Some(why) = instance::unstarted(&status) {
        let and = if why.is_empty() { String::new() } else { format!(": {why}") };
        say(&format!("{} was not started yet, so it wrote nothing{and}", words::short(key)));
    }
    Ok(())
}

/// Which of those that had or have the name it is. None: there is none.
async fn uid(client: &Client, key: &Key) -> store::Result<Option<String>> {
    let Some(object) = client.api.get(key).await? else { return Ok(None) };
    let resource = object.resource().map_err(|error| store::Error::Corrupt(format!("{key}: {error}")))?;
    Ok(Some(resource.metadata.unwrap_or_default().uid))
}

/// It may be over with the next attempt.
fn passes(error: &store::Error) -> bool {
    matches!(error.class(), Class::Retry | Class::Unknown)
}

/// Once it can be read again. None: the instance is gone.
async fn go_on(
    client: &Client,
    key: &Key,
    before: &Option<String>,
    after: v1::LogsRequest,
) -> anyhow::Result<Option<LogStream>> {
    let mut pause = PAUSE_MIN;
    loop {
        match uid(client, key).await {
            Ok(now) if now.is_none() || now != *before => return Ok(None),
            Ok(_) => {}
            Err(error) if passes(&error) => {}
            Err(error) => return Err(error.into()),
        }
        match client.logs(after.clone()).await {
            // What the agent has against it comes as the first piece.
            Ok(mut pieces) => match pieces.next().await {
                Some(Err(error)) if passes(&error) => {}
                first => return Ok(Some(stream::iter(first).chain(pieces).boxed())),
            },
            Err(error) if passes(&error) || matches!(error, store::Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
