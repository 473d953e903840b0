use api::v1;
use kinds::{any, config, instance, typed};
use model::{Key, Revision};
use store::{Api, Error, Store};

use super::fixtures::*;
use crate::Server;

fn asked(key: &Key) -> v1::DeleteRequest {
    v1::DeleteRequest { key: Some(key.into()), ..Default::default() }
}

async fn delete(server: &Server, request: v1::DeleteRequest) -> store::Result<v1::DeleteResponse> {
    server.delete(&caller(), request).await
}

/// A service and one instance of it.
async fn family(server: &Server) -> (v1::Resource, Key) {
    let parent = declare(server, "web").await;
    let fence = shard_fence(server, metadata(&parent).shard).await;
    server.commit(step(fence, vec![put(instance_of(&parent, "web-abc-0")), put(parent.clone())])).await.unwrap();
    (parent, Key::new("Instance", "default", "web-abc-0"))
}

#[tokio::test]
async fn what_has_children_is_asked_to_go_once() {
    let server = start().await;
    declare(&server, "web").await;
    let short = v1::DeleteRequest {
        key: Some(v1::ResourceKey { kind: "Service".into(), name: "web".into(), ..Default::default() }),
        ..Default::default()
    };
    let first = delete(&server, short.clone()).await.unwrap();
    assert_eq!(metadata(first.resource.as_ref().unwrap()).deletion_time.unwrap().seconds, NOW);
    assert_eq!(first.resource, Some(get(&server, &web()).await));
    assert_eq!(delete(&server, short).await.unwrap(), first, "again changes nothing");
    let late = server.apply(&caller(), request([declared("web", &spec(2))])).await;
    assert_eq!(late.unwrap_err(), Error::BeingDeleted(web()));
}

#[tokio::test]
async fn what_has_none_is_removed() {
    let server = start().await;
    let key = Key::new("Config", "default", "env");
    let metadata = v1::Metadata { kind: "Config".into(), name: "env".into(), ..Default::default() };
    let spec = any(config::SPEC, &v1::ConfigSpec::default());
    let resource = v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None };
    server.apply(&caller(), request([resource])).await.unwrap();
    assert_eq!(delete(&server, asked(&key)).await.unwrap().resource, None);
    assert_eq!(server.get(&key).await.unwrap(), None);
    assert_eq!(delete(&server, asked(&key)).await.unwrap_err(), Error::NotFound(key));
}

#[tokio::test]
async fn preconditions_are_compared() {
    let server = start().await;
    let metadata = metadata(&declare(&server, "web").await);
    let said = message(delete(&server, v1::DeleteRequest { uid: "older".into(), ..asked(&web()) }).await);
    assert!(said.contains("expected uid \"older\""), "{said}");
    let said = message(delete(&server, v1::DeleteRequest { revision: 1_000, ..asked(&web()) }).await);
    assert!(said.contains("expected at revision 1000"), "{said}");
    let right = v1::DeleteRequest { uid: metadata.uid, revision: metadata.revision, ..asked(&web()) };
    delete(&server, right).await.unwrap();
}

#[tokio::test]
async fn an_instance_is_asked_to_go_within_the_budget_or_at_once() {
    let server = start().await;
    let (_, key) = family(&server).await;
    let response = delete(&server, asked(&key)).await.unwrap();
    let status: v1::InstanceStatus = typed("status", response.resource.as_ref().unwrap().status.as_ref()).unwrap();
    assert_eq!(status.evict.as_ref().unwrap().requested_by, "user/root@host");
    assert_eq!(metadata(response.resource.as_ref().unwrap()).deletion_time, None);
    assert_eq!(delete(&server, asked(&key)).await.unwrap(), response, "again changes nothing");
    let now = delete(&server, v1::DeleteRequest { now: true, ..asked(&key) }).await.unwrap();
    assert!(metadata(now.resource.as_ref().unwrap()).deletion_time.is_some());
}

#[tokio::test]
async fn what_a_drain_asked_to_go_goes_for_a_user_too_who_does_not_take_it_back_with_the_drain() {
    let server = start().await;
    let (_, key) = family(&server).await;
    let evict = v1::Eviction { requested_by: kinds::node::drain_of("n1"), ..Default::default() };
    let status = any(instance::STATUS, &v1::InstanceStatus { evict: Some(evict), ..Default::default() });
    let uid = metadata(&get(&server, &key).await).uid;
    let said = v1::UpdateStatusRequest { key: Some((&key).into()), uid, status: Some(status), revision: 0 };
    server.update_status(&caller(), said).await.unwrap();
    let response = delete(&server, asked(&key)).await.unwrap();
    let status: v1::InstanceStatus = typed("status", response.resource.as_ref().unwrap().status.as_ref()).unwrap();
    assert_eq!(status.evict.unwrap().requested_by, "user/root@host");
}

#[tokio::test]
async fn what_is_not_a_users_to_delete_stays() {
    let server = start().await;
    let said = message(delete(&server, asked(&Key::new("Placement", "", "default"))).await);
    assert_eq!(said, "denied: a user may not ask for the deletion of Placement/default");
    let said = message(delete(&server, asked(&Key::new("Servise", "", "web"))).await);
    assert_eq!(said, "kind: unknown kind \"Servise\"");
}

#[tokio::test]
async fn a_users_part_of_a_status_can_be_said_by_hand_and_nothing_else() {
    let server = start().await;
    let (parent, key) = family(&server).await;
    let say = |key: &Key, uid: String, status| v1::UpdateStatusRequest {
        key: Some(key.into()),
        uid,
        status: Some(status),
        revision: 0,
    };
    let ready = any(kinds::service::STATUS, &v1::ServiceStatus { replicas: 9, ..Default::default() });
    let said = message(server.update_status(&caller(), say(&web(), metadata(&parent).uid, ready)).await);
    assert!(said.starts_with("denied: nothing in the status of a Service is a user's"), "{said}");
    let child = metadata(&get(&server, &key).await);
    let evict = v1::Eviction { requested_by: "me".into(), ..Default::default() };
    let evict = any(instance::STATUS, &v1::InstanceStatus { evict: Some(evict), ..Default::default() });
    let response = server.update_status(&caller(), say(&key, child.uid.clone(), evict.clone())).await.unwrap();
    let revision = metadata(response.resource.as_ref().unwrap()).revision;
    assert_eq!(Revision(revision), server.head().await.unwrap().revision);
    server.update_status(&caller(), say(&key, child.uid.clone(), evict)).await.unwrap();
    assert_eq!(Revision(revision), server.head().await.unwrap().revision, "the same again writes nothing");
    let phase = any(instance::STATUS, &v1::InstanceStatus { phase: "Running".into(), ..Default::default() });
    let said = message(server.update_status(&caller(), say(&key, child.uid, phase)).await);
    assert_eq!(said, "denied: a user may not write status.phase of Instance/default/web-abc-0");
}

fn held(finalizers: &[&str], replicas: i32) -> v1::Resource {
    let mut resource = declared("web", &spec(replicas));
    resource.metadata.get_or_insert_default().finalizers = finalizers.iter().map(|f| (*f).to_owned()).collect();
    resource
}

#[tokio::test]
async fn finalizers_are_put_there_by_who_names_them_and_only_taken_off_once_it_goes() {
    let server = start().await;
    let finalizers = async || metadata(&get(&server, &web()).await).finalizers;
    let edit = async |resource| {
        let request = v1::ApplyRequest { field_manager: "edit".into(), ..request([resource]) };
        server.apply(&caller(), request).await
    };
    server.apply(&caller(), request([held(&["backup", "example.com/dns"], 1)])).await.unwrap();
    server.apply(&caller(), request([held(&[], 2)])).await.unwrap();
    assert_eq!(finalizers().await, ["backup", "example.com/dns"], "not every manifest speaks of them");
    let said = message(server.apply(&caller(), request([held(&["a b", "c", "c"], 2)])).await);
    assert!(said.contains("metadata.finalizers[0]") && said.contains("\"c\" is there twice"), "{said}");

    delete(&server, asked(&web())).await.unwrap();
    for (refused, why) in [(held(&["backup"], 3), "the spec"), (held(&["backup", "new"], 2), "one more")] {
        assert_eq!(edit(refused).await.unwrap_err(), Error::BeingDeleted(web()), "{why} is no way out");
    }
    let applied = server.apply(&caller(), request([held(&["backup"], 2)])).await;
    assert_eq!(applied.unwrap_err(), Error::BeingDeleted(web()), "a manifest declares; it ends nothing");
    edit(held(&["backup"], 2)).await.unwrap();
    assert_eq!(finalizers().await, ["backup"]);
    edit(held(&[], 2)).await.unwrap();
    assert!(finalizers().await.is_empty());
}
