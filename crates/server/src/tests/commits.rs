//! Fenced steps: who may write what.

use std::sync::Arc;

use api::v1;
use kinds::{SPEC_BYTES_MAX, any, instance, release, service, typed};
use model::{Fence, Key, Revision, condition};
use prost::Message;
use store::{Api, Error, Expect, Memory, Store, Transaction, Write};

use super::fixtures::*;
use crate::Server;

/// A service and one instance of it, and the fence of their shard.
async fn family(server: &Server) -> (v1::Resource, v1::Resource, Fence) {
    let parent = declare(server, "web").await;
    let fence = shard_fence(server, metadata(&parent).shard).await;
    let create = step(fence.clone(), vec![put(instance_of(&parent, "web-abc-0")), put(parent.clone())]);
    server.commit(create).await.unwrap();
    let child = get(server, &Key::new("Instance", "default", "web-abc-0")).await;
    (get(server, &web()).await, child, fence)
}

fn with_spec(resource: &v1::Resource, change: impl FnOnce(&mut v1::InstanceSpec)) -> Write {
    let mut spec: v1::InstanceSpec = typed("spec", resource.spec.as_ref()).unwrap();
    change(&mut spec);
    put(v1::Resource { spec: Some(any(instance::SPEC, &spec)), ..resource.clone() })
}

fn with_status(resource: &v1::Resource, status: v1::InstanceStatus) -> Write {
    put(v1::Resource { status: Some(any(instance::STATUS, &status)), ..resource.clone() })
}

fn deleting(resource: &v1::Resource) -> Write {
    let mut resource = resource.clone();
    resource.metadata.as_mut().unwrap().deletion_time = Some(prost_types::Timestamp::default());
    put(resource)
}

fn removal(resource: &v1::Resource) -> Write {
    let metadata = metadata(resource);
    Write::Remove { key: Key::of(&metadata), uid: metadata.uid, revision: Revision(metadata.revision) }
}

async fn refused(server: &Server, fence: &Fence, write: Write) -> String {
    let before = server.head().await.unwrap();
    let said = message(server.commit(step(fence.clone(), vec![write])).await);
    assert_eq!(server.head().await.unwrap(), before, "what is refused writes nothing");
    said
}

#[tokio::test]
async fn a_child_shares_its_owners_shard_and_root() {
    let server = start().await;
    let (parent, child, _) = family(&server).await;
    let (parent, child) = (metadata(&parent), metadata(&child));
    assert_eq!((child.shard, &child.root_uid), (parent.shard, &parent.uid));
    assert_ne!(child.uid, parent.uid);
    assert_eq!((child.generation, parent.generation), (1, 1));
    assert_eq!(child.last_writer.unwrap().actor, "controller/a");
    assert_eq!(parent.revision, child.revision, "the step's own record is written too");
}

/// What tells a lost node of an instance that a service gave up on its way out; of all else nothing is made any more.
#[tokio::test]
async fn what_outlives_its_owner_is_made_while_that_goes() {
    let server = start().await;
    let (_, child, fence) = family(&server).await;
    let asked = v1::DeleteRequest { key: Some((&web()).into()), ..Default::default() };
    server.delete(&caller(), asked).await.unwrap();
    let parent = get(&server, &web()).await;
    let said = refused(&server, &fence, put(instance_of(&parent, "web-abc-1"))).await;
    assert_eq!(said, "conflict on Instance/default/web-abc-1: its owner Service/default/web is being deleted");
    let key = Key::new("Release", "default", &metadata(&child).uid);
    let spec = v1::ReleaseSpec { node: "n1".into(), instance_uid: metadata(&child).uid, ..Default::default() };
    let owned =
        v1::Metadata { kind: "Release".into(), name: key.name().into(), ..metadata(&instance_of(&parent, "x")) };
    let release = v1::Resource { metadata: Some(owned), spec: Some(any(release::SPEC, &spec)), status: None };
    let moves = vec![put(release), removal(&child), put(parent.clone())];
    server.commit(step(fence.clone(), moves)).await.unwrap();
    server.commit(step(fence, vec![removal(&get(&server, &web()).await)])).await.unwrap();
    assert_eq!(metadata(&get(&server, &key).await).shard, metadata(&parent).shard, "it stays");
}

#[tokio::test]
async fn a_shard_writes_the_services_status_and_nothing_of_its_spec() {
    let server = start().await;
    let (parent, _, fence) = family(&server).await;
    let status = v1::ServiceStatus {
        replicas: 1,
        conditions: vec![condition("Ready", Some(false), "Progressing", "")],
        ..Default::default()
    };
    let next = v1::Resource { status: Some(any(service::STATUS, &status)), ..parent.clone() };
    server.commit(step(fence.clone(), vec![put(next)])).await.unwrap();
    let stored = get(&server, &web()).await;
    let read: v1::ServiceStatus = typed("status", stored.status.as_ref()).unwrap();
    assert_eq!(read.replicas, 1);
    assert!(read.conditions[0].last_transition_time.is_some(), "the server stamps transitions");
    assert_eq!(metadata(&stored).generation, 1, "a status is no new generation");
    let scaled = v1::Resource { spec: Some(any(service::SPEC, &spec(9))), ..stored };
    let said = refused(&server, &fence, put(scaled)).await;
    assert_eq!(said, "denied: the owner of a shard may not write spec.replicas of Service/default/web");
}

#[tokio::test]
async fn each_domain_keeps_to_its_fields() {
    let server = start().await;
    let (parent, child, shard) = family(&server).await;
    let said = refused(&server, &shard, with_spec(&child, |spec| spec.node = "n1".into())).await;
    assert_eq!(said, "denied: the owner of a shard may not write spec.node of Instance/default/web-abc-0");
    let said =
        refused(&server, &shard, with_status(&child, v1::InstanceStatus { ready: true, ..Default::default() })).await;
    assert_eq!(said, "denied: the owner of a shard may not write status.ready of Instance/default/web-abc-0");
    let leader = claim_as(&server, "leader", "c2").await;
    let denied = [
        (deleting(&child), "ask for the deletion of Instance/default/web-abc-0"),
        (removal(&child), "remove the record of Instance/default/web-abc-0"),
        (with_spec(&child, |spec| spec.slot = 7), "write spec.slot of Instance/default/web-abc-0"),
        (put(instance_of(&parent, "web-abc-1")), "make a resource of Instance/default/web-abc-1"),
    ];
    for (write, what) in denied {
        assert_eq!(refused(&server, &leader, write).await, format!("denied: the leader may not {what}"));
    }
    let ready = condition("Ready", Some(true), "Up", "");
    let foreign = v1::InstanceStatus { conditions: vec![ready], ..Default::default() };
    let said = refused(&server, &leader, with_status(&child, foreign)).await;
    assert!(said.ends_with("may not write status.conditions[Ready] of Instance/default/web-abc-0"), "{said}");
    server.commit(step(leader, vec![with_spec(&child, |spec| spec.node = "n1".into())])).await.unwrap();
    let bound = get(&server, &Key::of(&metadata(&child))).await;
    assert_eq!(metadata(&bound).generation, 2, "its spec changed");
    let fenced = server.commit(step(shard, vec![deleting(&bound)])).await;
    assert!(fenced.is_ok(), "a claim outlives its session until somebody takes it: {fenced:?}");
}

#[tokio::test]
async fn a_deletion_time_is_the_servers_and_stays() {
    let server = start().await;
    let (_, child, fence) = family(&server).await;
    server.commit(step(fence.clone(), vec![deleting(&child)])).await.unwrap();
    let stopping = get(&server, &Key::of(&metadata(&child))).await;
    let time = metadata(&stopping).deletion_time.unwrap();
    assert_eq!(time.seconds, NOW);
    let mut undone = stopping.clone();
    undone.metadata.as_mut().unwrap().deletion_time = None;
    server.commit(step(fence, vec![put(undone)])).await.unwrap();
    assert_eq!(metadata(&get(&server, &Key::of(&metadata(&child))).await).deletion_time, Some(time));
}

#[tokio::test]
async fn what_an_unknown_version_wrote_survives() {
    let server = start().await;
    let (_, child, fence) = family(&server).await;
    // Field 2000 of the spec: the shard's, though this build doesn't know it.
    let unknown = [0x82, 0x7d, 0x02, b'h', b'i'];
    let mut newer = child.clone();
    newer.spec.as_mut().unwrap().value.extend(unknown);
    server.commit(step(fence.clone(), vec![put(newer)])).await.unwrap();
    let stored = get(&server, &Key::of(&metadata(&child))).await;
    assert!(stored.spec.as_ref().unwrap().value.ends_with(&unknown));
    server.commit(step(fence, vec![deleting(&stored)])).await.unwrap();
    assert!(get(&server, &Key::of(&metadata(&child))).await.spec.unwrap().value.ends_with(&unknown));
}

#[tokio::test]
async fn a_foreign_shard_is_refused() {
    let server = start().await;
    let parent = declare(&server, "web").await;
    let own = metadata(&parent).shard;
    let other = (own + 1) % server.cluster().await.unwrap().shards;
    let fence = shard_fence(&server, other).await;
    let said = refused(&server, &fence, put(parent.clone())).await;
    assert_eq!(said, format!("denied: Service/default/web is in shard {own}; the claim is shard {other}'s"));
    let said = refused(&server, &fence, put(instance_of(&parent, "web-abc-0"))).await;
    assert_eq!(said, format!("denied: Instance/default/web-abc-0 is in shard {own}; the claim is shard {other}'s"));
}

#[tokio::test]
async fn a_commit_without_the_right_fence_is_refused() {
    let server = start().await;
    let (parent, _, fence) = family(&server).await;
    let free = |actor: Option<&str>, fence| Transaction {
        actor: actor.and_then(model::Actor::parse),
        fence,
        ..step(Fence::Session { session: String::new(), attach: 0 }, vec![put(parent.clone())])
    };
    for actor in [None, Some("user/me"), Some("controller/a")] {
        assert!(matches!(server.commit(free(actor, None)).await, Err(Error::Denied(_))), "{actor:?}");
    }
    let user = server.commit(free(Some("user/me"), Some(fence.clone()))).await;
    assert!(matches!(user, Err(Error::Denied(_))), "a claim is a controller's");
    let Fence::Claim { claim, epoch, session } = fence else { panic!("a claim was made") };
    let old = Fence::Claim { claim, epoch: model::Epoch(epoch.0 - 1), session };
    let late = server.commit(step(old, vec![put(parent.clone())])).await;
    assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
    assert_eq!(server.counters().commits_fenced.get(), 1);
    let odd = Fence::Claim { claim: "other".into(), epoch: model::Epoch(1), session: "c1".into() };
    let said = message(server.commit(step(odd, vec![put(parent)])).await);
    assert_eq!(said, "fence.claim: \"other\" is neither a shard's nor the leader's");
}

#[tokio::test]
async fn a_create_needs_its_very_owner() {
    let server = start().await;
    let (parent, _, fence) = family(&server).await;
    let child = |change: fn(&mut v1::Metadata)| {
        let mut child = instance_of(&parent, "web-abc-9");
        change(child.metadata.as_mut().unwrap());
        put(child)
    };
    let gone = child(|m| m.owner.as_mut().unwrap().name = "gone".into());
    let said = refused(&server, &fence, gone).await;
    assert_eq!(said, "conflict on Instance/default/web-abc-9: its owner Service/default/gone doesn't exist");
    let said = refused(&server, &fence, child(|m| m.owner.as_mut().unwrap().uid = "older".into())).await;
    assert!(said.contains("not \"older\""), "{said}");
    let said = refused(&server, &fence, child(|m| m.namespace = "elsewhere".into())).await;
    assert!(said.contains("is not in the namespace"), "{said}");
    let said = refused(&server, &fence, child(|m| m.name = "Web".into())).await;
    assert!(said.starts_with("metadata.name: \"Web\": lower-case letters"), "{said}");
    let taken = refused(&server, &fence, put(instance_of(&parent, "web-abc-0"))).await;
    assert!(taken.contains("expected not to exist"), "{taken}");
}

#[tokio::test]
async fn an_older_base_is_a_conflict() {
    let server = start().await;
    let (parent, child, fence) = family(&server).await;
    server.commit(step(fence.clone(), vec![put(parent.clone())])).await.unwrap();
    let late = server.commit(step(fence.clone(), vec![put(parent.clone())])).await;
    assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
    let expects = vec![Expect { key: web(), revision: Revision(metadata(&parent).revision) }];
    let late = server.commit(Transaction { expects, ..step(fence, vec![deleting(&child)]) }).await;
    assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
}

#[tokio::test]
async fn a_full_batch_fits_and_is_told_in_the_history() {
    let server = start().await;
    let (parent, _, fence) = family(&server).await;
    let creates = (0..100).map(|i| put(instance_of(&parent, &format!("web-xyz-{i}"))));
    let revision = server.commit(step(fence, creates.chain([put(parent.clone())]).collect())).await.unwrap();
    let request = v1::HistoryRequest { key: Some((&web()).into()), ..Default::default() };
    let entries = store::Api::entries(server.as_ref(), request).await.unwrap().entries;
    let verbs: Vec<&str> = entries.iter().map(|entry| entry.verb.as_str()).collect();
    assert_eq!(verbs, ["apply", "test", "test"]);
    let last = entries.last().unwrap();
    assert_eq!((last.revision, last.touched.len()), (revision.0, 101));
    assert_eq!(last.claim, format!("shard-{}", metadata(&parent).shard));
    let told = last.touched[0].after.clone().unwrap();
    let mut stored = get(&server, &Key::of(&metadata(&told))).await;
    stored.metadata.as_mut().unwrap().revision = 0;
    assert_eq!(told, stored, "the history tells what was written");
}

#[tokio::test]
async fn a_step_that_touches_many_roots_is_told_for_each_of_them() {
    let server = start().await;
    let names: Vec<String> = (0..100).map(|i| format!("web-{i}")).collect();
    let all = request(names.iter().map(|name| declared(name, &spec(1))));
    let revision = store::Api::apply(server.as_ref(), &caller(), all).await.unwrap().revision;
    declare(&server, "other").await;
    for name in [&names[0], &names[99]] {
        let key = Key::new("Service", "default", name);
        let request = v1::HistoryRequest { key: Some((&key).into()), ..Default::default() };
        let entries = store::Api::entries(server.as_ref(), request).await.unwrap().entries;
        assert_eq!(entries.iter().map(|entry| entry.revision).collect::<Vec<_>>(), [revision]);
    }
}

/// Two texts, since none may be longer than 100 KiB.
fn template(bytes: usize) -> v1::InstanceTemplate {
    v1::InstanceTemplate { command: vec!["x".repeat(bytes / 2), "x".repeat(bytes - bytes / 2)], ..Default::default() }
}

#[tokio::test]
async fn an_instance_of_the_largest_template_can_be_written() {
    let server = start().await;
    let parent = declare(&server, "web").await;
    let fence = shard_fence(&server, metadata(&parent).shard).await;
    let largest = template(SPEC_BYTES_MAX - 10);
    assert!(largest.encoded_len() <= SPEC_BYTES_MAX);
    let child = with_spec(&instance_of(&parent, "web-abc-0"), |spec| {
        (spec.template, spec.version) = (Some(largest), "v".repeat(128));
    });
    server.commit(step(fence, vec![child, put(parent)])).await.unwrap();
}

/// By a version that took more.
#[tokio::test]
async fn what_is_stored_beyond_the_bound_can_still_be_written() {
    let backend = Arc::new(Memory::default());
    let server = over(backend.clone()).await;
    let mut parent = declare(&server, "web").await;
    let spec = v1::ServiceSpec { template: Some(template(SPEC_BYTES_MAX + 10_000)), ..Default::default() };
    parent.spec = Some(any(service::SPEC, &spec));
    backend.commit(Transaction { writes: vec![put(parent)], ..Transaction::default() }).await.unwrap();
    let stored = get(&server, &web()).await;
    let fence = shard_fence(&server, metadata(&stored).shard).await;
    let status = v1::ServiceStatus { replicas: 1, ..Default::default() };
    let next = v1::Resource { status: Some(any(service::STATUS, &status)), ..stored };
    server.commit(step(fence, vec![put(next)])).await.unwrap();
}
