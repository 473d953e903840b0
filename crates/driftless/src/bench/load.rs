//! What is declared for measuring, and a client that declares it and sees it through.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use api::v1;
use futures::{StreamExt, TryStreamExt, stream};
use kinds::service;
use model::{Filter, Key};
use prost::Message;
use store::List;

use crate::{
    client::{Client, Servers},
    follow::{Follow, Update},
    standing::Goal,
    words::DEFAULT_NAMESPACE,
};

/// Longest wait for anything that is measured.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Declarations in one Apply: as many as one transaction takes.
pub const BATCH: usize = 100;
/// Calls under way at the same time.
const CALLS_MAX: usize = 32;

/// A service without a health check. Under the `process` driver it really sleeps.
pub fn sleeper(name: &str, replicas: i32) -> v1::Resource {
    let template = v1::InstanceTemplate {
        command: vec!["sleep".into(), "1000".into()],
        stop_grace: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..Default::default()
    };
    let spec = v1::ServiceSpec { replicas: Some(replicas), template: Some(template), ..Default::default() };
    v1::Resource {
        metadata: Some(v1::Metadata {
            kind: service::KIND.into(),
            namespace: DEFAULT_NAMESPACE.into(),
            name: name.into(),
            ..Default::default()
        }),
        spec: Some(kinds::any(service::SPEC, &spec)),
        status: None,
    }
}

pub fn keys<'a>(resources: impl IntoIterator<Item = &'a v1::Resource>) -> BTreeSet<Key> {
    resources.into_iter().filter_map(|r| r.metadata.as_ref()).map(Key::of).collect()
}

/// Declares all of them, in batches, several at a time.
pub async fn apply(client: &Client, resources: &[v1::Resource]) -> anyhow::Result<()> {
    let one = |batch: &[v1::Resource]| {
        let declarations = batch.iter().map(|r| v1::Declaration { resource: Some(r.clone()), expected_revision: None });
        let request = v1::ApplyRequest { declarations: declarations.collect(), ..Default::default() };
        async move { client.api.apply(&client.caller, request).await.map(drop) }
    };
    let calls = stream::iter(resources.chunks(BATCH).map(one));
    Ok(calls.buffer_unordered(CALLS_MAX).try_collect().await?)
}

pub async fn delete(client: &Client, keys: &BTreeSet<Key>) -> anyhow::Result<()> {
    let one = |key: &Key| {
        let request = v1::DeleteRequest { key: Some(key.into()), ..Default::default() };
        async move { client.api.delete(&client.caller, request).await.map(drop) }
    };
    Ok(stream::iter(keys.iter().map(one)).buffer_unordered(CALLS_MAX).try_collect().await?)
}

/// One client with one open watch on all services.
pub struct Watching<'a> {
    client: &'a Client,
    follow: Follow<'a>,
    wait_max: Duration,
}

impl<'a> Watching<'a> {
    pub async fn new(client: &'a Client) -> anyhow::Result<Self> {
        let mut watching =
            Self { client, follow: Follow::new(client, Filter::kind(service::KIND)), wait_max: WAIT_MAX };
        watching.until(|update| matches!(update, Update::Complete(_))).await?;
        Ok(watching)
    }

    pub fn patient(self, wait_max: Duration) -> Self {
        Self { wait_max, ..self }
    }

    async fn until(&mut self, mut enough: impl FnMut(&Update) -> bool) -> anyhow::Result<Instant> {
        let seen = async {
            loop {
                let updates = self.follow.next().await?;
                let now = Instant::now();
                // All of them are looked at: `enough` counts.
                if updates.iter().filter(|update| enough(update)).count() > 0 {
                    return anyhow::Ok(now);
                }
            }
        };
        let seen = tokio::time::timeout(self.wait_max, seen).await;
        seen.map_err(|_| anyhow::anyhow!("what was waited for didn't come within {:?}", self.wait_max))?
    }

    /// When the last of them was seen so.
    async fn until_all(&mut self, mut waiting: BTreeSet<Key>, goal: &Goal) -> anyhow::Result<Instant> {
        if waiting.is_empty() {
            return Ok(Instant::now());
        }
        self.until(|update| {
            match update {
                Update::Put(resource) if goal.is_met(Some(resource)) && is_whole(resource) => {
                    waiting.remove(&Key::of(resource.metadata.as_ref().unwrap_or(&v1::Metadata::default())))
                }
                Update::Gone(key) if goal.is_met(None) => waiting.remove(key),
                _ => false,
            };
            waiting.is_empty()
        })
        .await
    }

    /// From right before the first Apply until all of them were seen Ready, at the declared generation.
    pub async fn run_up(&mut self, resources: &[v1::Resource]) -> anyhow::Result<Duration> {
        let (start, client, goal) = (Instant::now(), self.client, Goal::ready());
        let (_, ready) = tokio::try_join!(apply(client, resources), self.until_all(keys(resources), &goal))?;
        Ok(ready - start)
    }

    /// From the first Delete until the last is gone.
    pub async fn run_down(&mut self, resources: &[v1::Resource]) -> anyhow::Result<Duration> {
        let (start, client, keys) = (Instant::now(), self.client, keys(resources));
        let (_, gone) = tokio::try_join!(delete(client, &keys), self.until_all(keys.clone(), &Goal::Deleted))?;
        Ok(gone - start)
    }
}

/// That many instances are said to be ready as are declared: Ready isn't taken at its word.
fn is_whole(resource: &v1::Resource) -> bool {
    let declared = typed::<v1::ServiceSpec>(resource.spec.as_ref());
    let seen = typed::<v1::ServiceStatus>(resource.status.as_ref());
    matches!((declared, seen), (Ok(spec), Ok(status)) if status.ready_replicas == spec.replicas.unwrap_or(1))
}

pub fn typed<M: Message + Default>(message: Option<&prost_types::Any>) -> anyhow::Result<M> {
    kinds::typed("", message).map_err(|violation| anyhow::anyhow!(violation.message))
}

/// Deletes every service and waits until all is gone: what really runs would outlive its cluster.
pub async fn clean(client: &Client) -> anyhow::Result<()> {
    let mut watching = Watching::new(client).await?;
    let list = List { filter: Filter::kind(service::KIND), ..List::default() };
    let left: BTreeSet<Key> = client.api.list(list).await?.objects.into_iter().map(|object| object.key).collect();
    tokio::try_join!(delete(client, &left), watching.until_all(left.clone(), &Goal::Deleted))?;
    Ok(())
}

/// A client of the server at that address.
pub fn client(address: &str) -> anyhow::Result<Client> {
    Client::new(&Servers { addresses: vec![address.to_owned()] })
}
