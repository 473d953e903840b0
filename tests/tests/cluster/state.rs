//! Members and claims, followed; and what can be read from resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::v1;
use futures::StreamExt;
use kinds::{instance, service};
use model::{Key, LEADER, fields, shard_claim};
use prost::Message;
use store::Store;
use tokio::{sync::watch, task::JoinHandle};
use wire::Remote;

/// At which moment which claims had no living owner.
type Gaps = Arc<Mutex<Vec<(Instant, BTreeSet<String>)>>>;

pub struct Coordination {
    state: watch::Receiver<Arc<v1::Coordination>>,
    gaps: Gaps,
    task: JoinHandle<()>,
}

impl Drop for Coordination {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All claims of a cluster.
pub fn claims(state: &v1::Coordination) -> impl Iterator<Item = String> {
    (0..state.shards).map(shard_claim).chain([LEADER.to_owned()])
}

pub fn claim(state: &v1::Coordination, name: &str) -> v1::Claim {
    state.claims.iter().find(|claim| claim.name == name).cloned().unwrap_or_default()
}

/// The name of its living owner.
pub fn owner(state: &v1::Coordination, name: &str) -> Option<String> {
    let claim = state.claims.iter().find(|claim| claim.name == name)?;
    Some(state.members.iter().find(|member| member.session == claim.owner)?.name.clone())
}

/// By controller, what it owns of the shards.
pub fn shares(state: &v1::Coordination) -> BTreeMap<String, usize> {
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    for member in state.members.iter().filter(|member| member.role == "controller") {
        shares.entry(member.name.clone()).or_default();
    }
    for name in (0..state.shards).map(shard_claim) {
        if let Some(owner) = owner(state, &name) {
            *shares.entry(owner).or_default() += 1;
        }
    }
    shares
}

/// The sessions of the controllers of that name.
pub fn sessions(state: &v1::Coordination, name: &str) -> BTreeSet<String> {
    let ours = state.members.iter().filter(|member| member.role == "controller" && member.name == name);
    ours.map(|member| member.session.clone()).collect()
}

/// So many controllers, each with its share, and nothing left to move.
pub fn settled(state: &v1::Coordination, controllers: usize) -> Option<BTreeMap<String, usize>> {
    let shares = shares(state);
    let total = usize::try_from(state.shards).expect("a number of shards");
    let (cap, floor) = (controller::ring::cap(total, controllers), controller::ring::floor(total, controllers));
    let owned = claims(state).all(|name| owner(state, &name).is_some());
    let even = shares.len() == controllers && shares.values().all(|share| (floor..=cap).contains(share));
    (owned && even).then_some(shares)
}

impl Coordination {
    pub fn follow(remote: Arc<Remote>) -> Self {
        let (sender, state) = watch::channel(Arc::default());
        let gaps = Gaps::default();
        let task = tokio::spawn(run(remote, sender, gaps.clone()));
        Self { state, gaps, task }
    }

    pub fn now(&self) -> Arc<v1::Coordination> {
        self.state.borrow().clone()
    }

    #[track_caller]
    pub fn until<'a, T: 'a>(
        &'a self,
        what: &'a str,
        within: Duration,
        mut wanted: impl FnMut(&v1::Coordination) -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        let mut state = self.state.clone();
        async move {
            let deadline = tokio::time::Instant::now() + within;
            loop {
                if let Some(found) = wanted(&state.borrow_and_update()) {
                    return found;
                }
                let changed = tokio::time::timeout_at(deadline, state.changed()).await;
                assert!(changed.is_ok(), "{what}: not within {within:?}; shares {:?}", shares(&state.borrow()));
            }
        }
    }

    /// For each claim that was seen without a living owner since then, how long it was the longest.
    pub fn unowned_since(&self, from: Instant) -> BTreeMap<String, Duration> {
        let gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut since: BTreeMap<&String, Instant> = BTreeMap::new();
        let mut longest: BTreeMap<String, Duration> = BTreeMap::new();
        let mut end = |name: &String, took: Duration| {
            let known = longest.entry(name.clone()).or_default();
            *known = (*known).max(took);
        };
        for (at, unowned) in gaps.iter().filter(|(at, _)| *at >= from) {
            since.retain(|name, began| {
                let goes_on = unowned.contains(*name);
                if !goes_on {
                    end(name, at.duration_since(*began));
                }
                goes_on
            });
            for name in unowned {
                since.entry(name).or_insert(*at);
            }
        }
        for (name, began) in since {
            end(name, began.elapsed());
        }
        longest
    }
}

async fn run(remote: Arc<Remote>, sender: watch::Sender<Arc<v1::Coordination>>, gaps: Gaps) {
    loop {
        if let Ok(mut states) = remote.coordination().await {
            while let Some(Ok(state)) = states.next().await {
                let unowned = claims(&state).filter(|name| owner(&state, name).is_none()).collect();
                gaps.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), unowned));
                sender.send_replace(state);
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn service_spec(resource: &v1::Resource) -> v1::ServiceSpec {
    let bytes = resource.spec.as_ref().map_or(&[][..], |any| any.value.as_slice());
    v1::ServiceSpec::decode(bytes).expect("a service's spec")
}

pub fn instance_spec(resource: &v1::Resource) -> v1::InstanceSpec {
    let bytes = resource.spec.as_ref().map_or(&[][..], |any| any.value.as_slice());
    v1::InstanceSpec::decode(bytes).expect("an instance's spec")
}

pub fn actor(resource: &v1::Resource) -> &str {
    resource.metadata.as_ref().and_then(|m| m.last_writer.as_ref()).map_or("", |writer| writer.actor.as_str())
}

/// Ready, as declared now.
pub fn is_ready(resource: &v1::Resource) -> bool {
    let metadata = resource.metadata.as_ref();
    let status = resource.status.clone().unwrap_or_default().value;
    let current = metadata.is_some_and(|m| m.generation == fields::observed_generation(&status));
    let conditions = fields::conditions_of(&status.into()).expect("a status");
    current && conditions.iter().any(|c| c.r#type == service::READY && c.status == "True")
}

/// Every service is Ready, and there are exactly the instances that are declared.
pub fn converged(world: &BTreeMap<Key, v1::Resource>) -> Option<usize> {
    let of = |kind: &'static str| world.iter().filter(move |(key, _)| key.kind() == kind).map(|(_, r)| r);
    let declared: i32 = of(service::KIND).map(|s| service_spec(s).replicas.unwrap_or(1)).sum();
    let instances = of(instance::KIND).count();
    let ready = of(service::KIND).all(is_ready) && of(service::KIND).count() > 0;
    (ready && usize::try_from(declared) == Ok(instances)).then_some(instances)
}

/// The shard that a service is in.
pub fn shard_of(world: &BTreeMap<Key, v1::Resource>, key: &Key) -> Option<String> {
    Some(shard_claim(world.get(key)?.metadata.as_ref()?.shard))
}
