//! Who vouches for a status: the owner of its shard, by sweeping it. A status that nobody has looked at for two sweeps is
//! shown as Unknown, never as healthy.
//!
//! Derived when it's read, never stored. Pure but for the one read of the coordination state.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use api::v1;
use futures::{Stream, StreamExt, stream};
use kinds::{RECONCILERS, Scope};
use model::{Conditions, Time, fields, shard_claim};
use store::CoordinationStream;

use crate::{client::Client, words};

/// Sweeps that may be missed until nobody vouches any more.
const SWEEPS: u32 = 2;
/// Where an owner never said how often it sweeps.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(30);
/// Longest wait for the coordination state; without it nothing is vouched for.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Between tries to follow it.
const REDIAL: Duration = Duration::from_millis(200);

/// Members and claims, as a server tells them.
#[derive(Clone, Debug, Default)]
pub struct Vouched {
    state: Arc<v1::Coordination>,
}

/// The present state, by whichever server answers.
pub async fn coordination(client: &Client) -> anyhow::Result<Arc<v1::Coordination>> {
    let read = async {
        let mut states = client.api.coordination().await?;
        states.next().await.unwrap_or_else(|| Err(store::Error::Unavailable("the stream ended".into())))
    };
    let answer = tokio::time::timeout(ANSWER_MAX, read).await;
    Ok(answer.map_err(|_| store::Error::Unavailable("members and claims weren't told in time".into()))??)
}

/// The time that its ages count to: the server's own.
pub fn time_of(state: &v1::Coordination) -> Time {
    state.time.as_ref().map_or_else(words::now, Time::from)
}

/// As they should be shown now.
pub async fn shown(client: &Client, resources: Vec<v1::Resource>) -> anyhow::Result<Vec<v1::Resource>> {
    if !resources.iter().any(|r| r.metadata.as_ref().is_some_and(|m| is_swept(&m.kind))) {
        return Ok(resources);
    }
    let vouched = Vouched::read(client).await?;
    Ok(resources.into_iter().map(|resource| vouched.show(resource)).collect())
}

/// Its status is the word of its shard's owner.
fn is_swept(kind: &str) -> bool {
    RECONCILERS.iter().any(|r| r.kind() == kind && r.scope() == Scope::Shard)
}

/// Every newer state, however often the connection breaks.
pub fn follow(client: &Client) -> impl Stream<Item = Vouched> {
    stream::unfold((client, None::<CoordinationStream>), |(client, mut states)| async move {
        loop {
            if let Some(open) = &mut states
                && let Some(Ok(state)) = open.next().await
            {
                return Some((Vouched { state }, (client, states)));
            }
            states = client.api.coordination().await.ok();
            if states.is_none() {
                tokio::time::sleep(REDIAL).await;
            }
        }
    })
}

impl Vouched {
    pub async fn read(client: &Client) -> anyhow::Result<Self> {
        let state = coordination(client).await.context("cannot tell who looks after the shards")?;
        Ok(Self { state })
    }

    /// The server's, when it told.
    pub fn time(&self) -> Time {
        time_of(&self.state)
    }

    /// As it should be shown.
    pub fn show(&self, resource: v1::Resource) -> v1::Resource {
        match self.doubt(&resource) {
            Some(doubt) => unknown(resource, &doubt),
            None => resource,
        }
    }

    /// Why nobody vouches for its status.
    pub fn doubt(&self, resource: &v1::Resource) -> Option<String> {
        let metadata = resource.metadata.as_ref()?;
        if !is_swept(&metadata.kind) {
            return None;
        }
        let name = shard_claim(metadata.shard);
        let claim = self.state.claims.iter().find(|claim| claim.name == name).cloned().unwrap_or_default();
        let now = time_of(&self.state);
        let ago = |time: &prost_types::Timestamp| now.since(Time::from(time));
        let owner = match &claim.unowned_since {
            Some(since) => format!("{name} has no owner for {}", short(ago(since))),
            None => format!("{name} is owned by session {}", claim.owner),
        };
        let interval = claim.sweep_interval.and_then(|i| Duration::try_from(i).ok()).unwrap_or(INTERVAL_DEFAULT);
        match (&claim.last_sweep, &claim.owned_since) {
            (Some(last), _) if ago(last) <= interval * SWEEPS => None,
            (Some(last), _) => Some(format!("nobody has looked at it for {}; {owner}", short(ago(last)))),
            // It was only just taken.
            (None, Some(since)) if ago(since) <= interval * SWEEPS => None,
            (None, _) => Some(format!("nobody is known to have looked at it; {owner}")),
        }
    }
}

fn short(age: Duration) -> String {
    words::age(Some(&Time::default().into()), Time::default().plus(age))
}

/// Every condition Unknown, all else as it was last seen.
fn unknown(mut resource: v1::Resource, doubt: &str) -> v1::Resource {
    let Some(status) = &mut resource.status else { return resource };
    let current = status.value.clone().into();
    let Ok(conditions) = fields::conditions_of(&current) else { return resource };
    let unknown = |c: v1::Condition| model::condition(&c.r#type, None, "NotChecked", doubt);
    let next = v1::ServiceStatus { conditions: conditions.into_iter().map(unknown).collect(), ..Default::default() };
    let next = prost::Message::encode_to_vec(&next).into();
    let now = words::now();
    if let Ok(shown) = fields::merge_status(&current, &next, fields::Fields::NONE, Conditions::AllBut(&[]), now) {
        status.value = shown.into();
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::{Goal, Head};

    fn at(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    fn vouched(claim: v1::Claim) -> Vouched {
        let claim = v1::Claim { name: shard_claim(5), ..claim };
        let state = v1::Coordination { claims: vec![claim], time: at(1_000), ..Default::default() };
        Vouched { state: Arc::new(state) }
    }

    fn ready(kind: &str) -> v1::Resource {
        let condition = model::condition("Ready", Some(true), "AllReady", "3 of 3 ready");
        let status = v1::ServiceStatus { conditions: vec![condition], ready_replicas: 3, ..Default::default() };
        v1::Resource {
            metadata: Some(v1::Metadata { kind: kind.into(), shard: 5, ..Default::default() }),
            status: Some(kinds::any("driftless.v1.ServiceStatus", &status)),
            spec: None,
        }
    }

    fn swept(last: i64, every: i64) -> v1::Claim {
        let sweep_interval = Some(prost_types::Duration { seconds: every, nanos: 0 });
        v1::Claim { last_sweep: at(last), sweep_interval, owned_since: at(1), ..Default::default() }
    }

    #[test]
    fn what_was_swept_within_two_intervals_is_vouched_for() {
        assert_eq!(vouched(swept(980, 10)).doubt(&ready("Service")), None);
        let doubt = vouched(swept(979, 10)).doubt(&ready("Service")).expect("21 s are more than twice 10 s");
        assert!(doubt.contains("for 21s"), "{doubt}");
    }

    #[test]
    fn without_an_owner_it_is_vouched_for_until_two_sweeps_are_missed() {
        let orphan = |last| v1::Claim { owned_since: None, unowned_since: at(last + 1), ..swept(last, 10) };
        assert_eq!(vouched(orphan(990)).doubt(&ready("Service")), None);
        assert!(vouched(orphan(900)).doubt(&ready("Service")).is_some_and(|d| d.contains("has no owner for 99s")));
    }

    #[test]
    fn nobodys_word_is_no_word() {
        assert!(vouched(v1::Claim { unowned_since: at(999), ..Default::default() }).doubt(&ready("Service")).is_some());
        let taken = |since| vouched(v1::Claim { owned_since: at(since), ..Default::default() });
        assert_eq!(taken(990).doubt(&ready("Service")), None, "its owner has only begun");
        assert!(taken(900).doubt(&ready("Service")).is_some());
        assert!(Vouched::default().doubt(&ready("Service")).is_some());
    }

    #[test]
    fn what_no_shard_looks_after_is_left_alone() {
        assert_eq!(Vouched::default().doubt(&ready("Node")), None);
        assert_eq!(Vouched::default().doubt(&ready("Instance")), None);
    }

    #[test]
    fn a_doubted_status_is_unknown_and_says_why() {
        let shown = Vouched::default().show(ready("Service"));
        let head = Head::of(&shown);
        let condition = head.condition("Ready").expect("it had one");
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("Unknown", "NotChecked"));
        assert!(!Goal::ready().is_met(Some(&shown)));
        let kind = kinds::kind("Service").expect("a kind");
        assert_eq!((kind.row(&shown)[0].as_str(), kind.row(&shown)[3].as_str()), ("3/1", "NotChecked"));
    }
}
