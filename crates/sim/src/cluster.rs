//! The cluster's parts, how to kill and start them, and how to wait for what they bring about.

use std::{sync::Arc, time::Duration};

use agent::{
    Agent, Clock,
    driver::sim::{Config as SimConfig, Sim},
};
use api::v1;
use controller::Controller;
use futures::StreamExt;
use kinds::{instance, service as service_kind};
use model::{Actor, Key, Object, fields};
use prost::Message;
use server::Server;
use store::{Api, Caller, List, Store, WatchItem, WatchOptions};
use tokio::{sync::watch, task::JoinHandle};

use crate::TurnedStamps;

/// A controller or agent that runs; dropping it kills it in the middle of whatever it does.
pub struct Role {
    task: JoinHandle<()>,
    shutdown: watch::Sender<bool>,
    stats: Option<Arc<controller::Stats>>,
}

impl Role {
    /// Asks it to end, and waits until it has.
    pub async fn stop(mut self) {
        self.shutdown.send_replace(true);
        // A panic in there is the test's failure.
        (&mut self.task).await.expect("the role panicked");
    }

    /// A controller's counters.
    pub fn stats(&self) -> &controller::Stats {
        self.stats.as_deref().expect("only controllers count")
    }

    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub struct Cluster {
    pub server: Arc<Server>,
    pub machines: Vec<Arc<Sim>>,
}

impl Cluster {
    /// A server over that backend, and machines that nobody has an agent on yet.
    pub async fn new(backend: Arc<dyn Store>, machines: usize) -> Self {
        Self::with_retention(backend, machines, server::Retention::default()).await
    }

    /// The same, with bounds on the history of its own.
    pub async fn with_retention(backend: Arc<dyn Store>, machines: usize, retention: server::Retention) -> Self {
        let mut config = server::Config::new("s1");
        config.retention = retention;
        config.stamps = Arc::new(TurnedStamps::default());
        let server = Server::start(config, backend).await.expect("the backend answers");
        server.ready().await;
        let machines = (0..machines).map(|_| Arc::new(Sim::new(SimConfig::default(), Clock::start()))).collect();
        Self { server: Arc::new(server), machines }
    }

    pub fn api(&self) -> Arc<dyn Api> {
        self.server.clone()
    }

    /// A controller that reaches the server through `store`.
    pub fn controller(&self, config: controller::Config, store: Arc<dyn Store>) -> Role {
        let (shutdown, told) = watch::channel(false);
        let controller = Controller::new(config, store);
        let stats = Some(controller.stats());
        let task = tokio::spawn(async move {
            controller.run(told).await.expect("a controller ends without an error");
        });
        Role { task, shutdown, stats }
    }

    /// The agent of machine `n`, whose node is called `n<n>`.
    pub fn agent(&self, n: usize) -> Role {
        let (shutdown, mut told) = watch::channel(false);
        let agent = Agent::new(agent::Config::new(&format!("n{n}")), self.machines[n].clone(), self.api());
        let task = tokio::spawn(async move {
            let asked = async { _ = told.wait_for(|asked| *asked).await };
            agent.run(asked).await.expect("a sim driver can always tell what is there");
        });
        Role { task, shutdown, stats: None }
    }

    pub async fn apply(&self, resources: Vec<v1::Resource>) -> v1::ApplyResponse {
        let declarations = resources
            .into_iter()
            .map(|resource| v1::Declaration { resource: Some(resource), expected_revision: None })
            .collect();
        let request = v1::ApplyRequest { declarations, ..Default::default() };
        self.server.apply(&user(), request).await.expect("admitted")
    }

    pub async fn delete(&self, key: &Key) {
        let request = v1::DeleteRequest { key: Some(key.into()), ..Default::default() };
        self.server.delete(&user(), request).await.expect("deleted");
    }

    pub async fn all(&self, kind: &str) -> Vec<v1::Resource> {
        let list = List { filter: model::Filter::kind(kind), ..List::default() };
        let page = self.server.list(list).await.expect("the server answers");
        page.objects.iter().map(|object| object.resource().expect("stored by a server")).collect()
    }

    /// Waits until every service is as declared and nothing else is left, by the watch.
    pub async fn settled(&self) {
        until_settled(self.server.as_ref()).await;
    }
}

fn user() -> Caller {
    Caller::new(Actor::new("user", "test"))
}

/// A service of that template, by the environment variable `V`.
pub fn service(name: &str, replicas: i32, version: &str) -> v1::Resource {
    let template = v1::InstanceTemplate { command: vec!["true".into()], ..Default::default() };
    let spec = v1::ServiceSpec {
        replicas: Some(replicas),
        version: version.into(),
        template: Some(template),
        ..Default::default()
    };
    v1::Resource {
        metadata: Some(v1::Metadata { kind: service_kind::KIND.into(), name: name.into(), ..Default::default() }),
        spec: Some(kinds::any(service_kind::SPEC, &spec)),
        status: None,
    }
}

/// Longest wait for a cluster that should settle, in simulated time.
const SETTLED_WITHIN: Duration = Duration::from_secs(600);

/// Returns when every service is Ready at its generation and no instance is left over.
pub async fn until_settled(store: &dyn Store) {
    let look = async {
        let mut watch = store.watch(WatchOptions::default()).await.expect("the server answers");
        let mut world = std::collections::BTreeMap::<Key, Object>::new();
        let mut complete = false;
        while let Some(item) = watch.next().await {
            match item.expect("the server's watch does not fail") {
                WatchItem::Snapshot(objects) => world.extend(objects.into_iter().map(|o| (o.key.clone(), o))),
                WatchItem::SnapshotEnd { .. } => complete = true,
                WatchItem::Changes(group) => {
                    for change in group.changes {
                        match change {
                            store::Change::Put(object) => _ = world.insert(object.key.clone(), object),
                            store::Change::Deleted { key, .. } => _ = world.remove(&key),
                        }
                    }
                }
                _ => {}
            }
            if complete && is_settled(world.values()) {
                return;
            }
        }
        panic!("the watch ended");
    };
    tokio::time::timeout(SETTLED_WITHIN, look).await.expect("settles in time");
}

fn is_settled<'a>(objects: impl Iterator<Item = &'a Object>) -> bool {
    let mut declared = 0;
    let mut instances = 0;
    for object in objects {
        let resource = object.resource().expect("stored by a server");
        if resource.metadata.as_ref().is_some_and(|m| m.deletion_time.is_some()) {
            return false;
        }
        match object.key.kind() {
            service_kind::KIND => {
                let spec = v1::ServiceSpec::decode(resource.spec.unwrap_or_default().value.as_slice());
                declared += spec.expect("admitted").replicas.unwrap_or(1);
                let status = resource.status.unwrap_or_default().value;
                let current = fields::observed_generation(&status) == resource.metadata.unwrap_or_default().generation;
                let conditions = fields::conditions_of(&status.into()).expect("written by a controller");
                let ready = conditions.iter().any(|c| c.r#type == service_kind::READY && c.status == "True");
                if !(current && ready) {
                    return false;
                }
            }
            instance::KIND => instances += 1,
            _ => {}
        }
    }
    declared == instances
}
