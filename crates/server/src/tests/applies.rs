use api::v1;
use kinds::{any, service};
use model::Revision;
use store::{Api, Error, Store};

use super::fixtures::*;
use crate::Server;

#[tokio::test]
async fn a_declaration_becomes_a_resource() {
    let server = start().await;
    let traced = store::Caller { traceparent: "00-trace".into(), ..caller() };
    let response = server.apply(&traced, request([declared("web", &spec(3))])).await.unwrap();
    assert_eq!(response.results[0].outcome(), v1::Outcome::Created);
    let stored = get(&server, &web()).await;
    assert_eq!(response.results[0].resource.as_ref(), Some(&stored));
    let metadata = metadata(&stored);
    assert_eq!(
        (metadata.namespace.as_str(), metadata.generation, metadata.revision),
        ("default", 1, response.revision)
    );
    assert_eq!(metadata.root_uid, metadata.uid);
    assert_eq!(metadata.shard, model::shard_of(&metadata.uid, server.cluster().await.unwrap().shards));
    assert_eq!(metadata.traceparent, "00-trace");
    assert_eq!(metadata.last_writer.unwrap().actor, "user/root@host");
    assert_eq!(metadata.template_hash.len(), 10);
    assert!(response.results[0].warnings[0].contains("readiness"));
}

#[tokio::test]
async fn an_unchanged_declaration_writes_nothing() {
    let server = start().await;
    let first = declare(&server, "web").await;
    let again = server.apply(&caller(), request([declared("web", &spec(1))])).await.unwrap();
    assert_eq!(again.results[0].outcome(), v1::Outcome::Unchanged);
    assert_eq!(again.revision, metadata(&first).revision);
    assert_eq!(server.head().await.unwrap().revision, Revision(again.revision));
}

#[tokio::test]
async fn the_order_of_map_entries_is_no_change() {
    let server = start().await;
    let mut spec = spec(1);
    let env = [("A", "1"), ("B", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    spec.template.as_mut().unwrap().env = env.into();
    server.apply(&caller(), request([declared("web", &spec)])).await.unwrap();
    let mut other = declared("web", &spec);
    let bytes = &mut other.spec.as_mut().unwrap().value;
    let (a, b) = (b"\n\x01A\x12\x011", b"\n\x01B\x12\x012");
    let at = |bytes: &[u8], entry: &[u8]| bytes.windows(entry.len()).position(|w| w == entry).unwrap();
    let (first, second) = (at(bytes, a), at(bytes, b));
    bytes[first..first + 6].copy_from_slice(b);
    bytes[second..second + 6].copy_from_slice(a);
    assert_ne!(other.spec, Some(any(service::SPEC, &spec)));
    let again = server.apply(&caller(), request([other])).await.unwrap();
    assert_eq!(again.results[0].outcome(), v1::Outcome::Unchanged);
}

/// Everything that is wrong with a request.
async fn wrongs(server: &Server, request: v1::ApplyRequest) -> Vec<String> {
    let head = server.head().await.unwrap();
    let refused = server.apply(&caller(), request).await;
    assert_eq!(server.head().await.unwrap(), head, "what is refused writes nothing");
    match refused {
        Err(Error::Invalid(violations)) => violations.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?} should be Invalid"),
    }
}

fn changed(change: impl FnOnce(&mut v1::Metadata)) -> v1::Resource {
    let mut resource = declared("web", &spec(1));
    change(resource.metadata.as_mut().unwrap());
    resource
}

#[tokio::test]
async fn each_bad_declaration_is_told_what_is_wrong_with_it() {
    let server = start().await;
    let no_spec = v1::Resource { spec: None, ..declared("web", &spec(1)) };
    let other_spec =
        v1::Resource { spec: Some(any(kinds::node::SPEC, &v1::NodeSpec::default())), ..declared("web", &spec(1)) };
    let owner = |name: &str| v1::OwnerReference { kind: "Service".into(), name: name.into(), ..Default::default() };
    let cases = [
        (changed(|m| m.kind.clear()), "metadata.kind: missing: say what it is, e.g. kind: Service"),
        (changed(|m| m.kind = "Servise".into()), "metadata.kind: unknown kind \"Servise\"; did you mean Service?"),
        (changed(|m| m.kind = "services".into()), "metadata.kind: unknown kind \"services\"; did you mean Service?"),
        (
            changed(|m| m.kind = "Instance".into()),
            "metadata.kind: Instance resources are not declared; they are made by controllers, from what is declared",
        ),
        (changed(|m| m.name.clear()), "metadata.name: missing"),
        (
            changed(|m| m.name = "Web_1".into()),
            "metadata.name: \"Web_1\": lower-case letters, digits and '-', starting and ending with a letter or digit",
        ),
        (changed(|m| m.name = "a".repeat(47)), "metadata.name: has 47 characters; at most 46"),
        (
            changed(|m| m.namespace = "-x".into()),
            "metadata.namespace: \"-x\": lower-case letters, digits and '-', starting and ending with a letter or digit",
        ),
        (
            changed(|m| drop(m.labels.insert("a b".into(), "c".into()))),
            "metadata.labels[\"a b\"]: key \"a b\": at most 63 letters, digits, '-', '_' and '.', starting and ending \
             with a letter or digit",
        ),
        (
            changed(|m| drop(m.labels.insert("Host_/app".into(), "c".into()))),
            "metadata.labels[\"Host_/app\"]: prefix \"Host_\": a host name, such as example.com",
        ),
        (
            changed(|m| drop(m.annotations.insert("note".into(), "x".repeat(70_000)))),
            "metadata.annotations: 70004 bytes; at most 65536",
        ),
        (
            changed(|m| m.owner = Some(v1::OwnerReference { kind: "Shop".into(), ..owner("x") })),
            "metadata.owner.kind: unknown kind \"Shop\"",
        ),
        (no_spec, "spec: missing: say what should exist"),
        (other_spec, "spec: is a \"type.googleapis.com/driftless.v1.NodeSpec\"; must be a driftless.v1.ServiceSpec"),
        (declared("web", &spec(-1)), "spec.replicas: is -1; must be from 0 to 10000"),
    ];
    for (resource, expected) in cases {
        assert_eq!(wrongs(&server, request([resource])).await, [format!("declarations[0].{expected}")]);
    }
}

#[tokio::test]
async fn every_violation_of_every_declaration_is_told_and_nothing_is_applied() {
    let server = start().await;
    let bad = changed(|m| (m.name, m.namespace) = ("B".into(), "C".into()));
    let twice = declared("good", &spec(2));
    let told = wrongs(&server, request([declared("good", &spec(1)), bad, twice])).await;
    let fields: Vec<&str> = told.iter().filter_map(|violation| violation.split(": ").next()).collect();
    let expected =
        ["declarations[1].metadata.namespace", "declarations[1].metadata.name", "declarations[2].metadata.name"];
    assert_eq!(fields, expected);
    assert!(told[2].ends_with("Service/default/good is declared twice"), "{}", told[2]);
}

#[tokio::test]
async fn bounds_are_said_to_be_bounds() {
    let server = start().await;
    let many = request((0..101).map(|n| declared(&format!("r{n}"), &spec(1))));
    let said = message(server.apply(&caller(), many).await);
    assert!(said.contains("101 declarations in one Apply; at most 100 commit together"), "{said}");
    let mut large = spec(1);
    large.template.as_mut().unwrap().command = vec!["x".repeat(60_000); 5];
    let told = wrongs(&server, request([declared("web", &large)])).await;
    assert_eq!(told.len(), 1);
    assert!(told[0].ends_with("bytes; at most 122880"), "{}", told[0]);
    let other = v1::ApplyRequest { field_manager: "me".into(), ..Default::default() };
    assert_eq!(wrongs(&server, other).await, ["field_manager: \"me\": must be \"apply\", \"scale\" or \"edit\""]);
}

#[tokio::test]
async fn a_declaration_may_say_what_it_expects() {
    let server = start().await;
    let expecting = |revision, replicas| v1::ApplyRequest {
        declarations: vec![v1::Declaration {
            resource: Some(declared("web", &spec(replicas))),
            expected_revision: Some(revision),
        }],
        ..Default::default()
    };
    let said = message(server.apply(&caller(), expecting(7, 1)).await);
    assert_eq!(said, "conflict on Service/default/web: expected at revision 7, but it doesn't exist");
    let revision = server.apply(&caller(), expecting(0, 1)).await.unwrap().revision;
    let said = message(server.apply(&caller(), expecting(0, 1)).await);
    assert!(said.contains("expected not to exist"), "{said}");
    let next = server.apply(&caller(), expecting(revision, 2)).await.unwrap().revision;
    let said = message(server.apply(&caller(), expecting(revision, 3)).await);
    assert!(said.ends_with(&format!("expected at revision {revision}, but it is at {next}")), "{said}");
}

#[tokio::test]
async fn a_dry_run_answers_as_if_done_and_writes_nothing() {
    let server = start().await;
    let dry = |replicas| v1::ApplyRequest { dry_run: true, ..request([declared("web", &spec(replicas))]) };
    let head = server.head().await.unwrap();
    let made = server.apply(&caller(), dry(1)).await.unwrap();
    assert_eq!(made.results[0].outcome(), v1::Outcome::Created);
    assert_eq!(server.head().await.unwrap(), head);
    let stored = declare(&server, "web").await;
    let updated = server.apply(&caller(), dry(5)).await.unwrap();
    assert_eq!(updated.results[0].outcome(), v1::Outcome::Updated);
    assert_eq!(metadata(updated.results[0].resource.as_ref().unwrap()).generation, 2);
    assert_eq!(get(&server, &web()).await, stored);
    assert_eq!(server.apply(&caller(), dry(1)).await.unwrap().results[0].outcome(), v1::Outcome::Unchanged);
}

#[tokio::test]
async fn labels_change_without_a_new_generation() {
    let server = start().await;
    declare(&server, "web").await;
    let labelled = changed(|m| drop(m.labels.insert("app".into(), "web".into())));
    let response = server.apply(&caller(), request([labelled])).await.unwrap();
    assert_eq!(response.results[0].outcome(), v1::Outcome::Updated);
    let stored = metadata(&get(&server, &web()).await);
    assert_eq!((stored.generation, stored.labels["app"].as_str()), (1, "web"));
}

#[tokio::test]
async fn a_manifest_without_replicas_keeps_what_was_scaled() {
    let server = start().await;
    let without = || v1::ServiceSpec { replicas: None, ..spec(0) };
    let apply = async |spec: &v1::ServiceSpec, manager: &str| {
        let request = v1::ApplyRequest { field_manager: manager.into(), ..request([declared("web", spec)]) };
        let response = server.apply(&caller(), request).await?;
        let resource = response.results[0].resource.clone().unwrap();
        let stored: v1::ServiceSpec = kinds::typed("spec", resource.spec.as_ref()).unwrap();
        store::Result::Ok((response.results[0].outcome(), stored.replicas, metadata(&resource).field_owners))
    };
    let none = std::collections::BTreeMap::new();
    let scaled = [("spec.replicas".to_owned(), "scale".to_owned())].into();
    apply(&without(), "apply").await.unwrap();
    assert_eq!(apply(&spec(5), "scale").await.unwrap(), (v1::Outcome::Updated, Some(5), scaled));
    let (outcome, replicas, owners) = apply(&without(), "").await.unwrap();
    assert_eq!((outcome, replicas, owners.len()), (v1::Outcome::Unchanged, Some(5), 1));
    let other = v1::ServiceSpec { version: "v2".into(), ..without() };
    assert_eq!(apply(&other, "apply").await.unwrap().1, Some(5), "another change keeps it too");
    let said = message(apply(&spec(7), "scale").await);
    assert!(said.contains("\"scale\" declares spec.replicas alone, but spec.version differs too"), "{said}");
    let taken = v1::ServiceSpec { replicas: Some(5), ..other.clone() };
    assert_eq!(
        apply(&taken, "apply").await.unwrap(),
        (v1::Outcome::Updated, Some(5), none),
        "a manifest takes it over"
    );
    assert_eq!(apply(&other, "apply").await.unwrap().1, None, "and then may leave it out");
}

#[tokio::test]
async fn a_manifest_that_does_not_name_pause_keeps_what_was_paused_and_says_so() {
    let server = start().await;
    let rollout = |pause| Some(v1::Rollout { max_surge: Some(2), pause, ..Default::default() });
    let apply = async |spec: v1::ServiceSpec, manager: &str| {
        let request = v1::ApplyRequest { field_manager: manager.into(), ..request([declared("web", &spec)]) };
        let applied = server.apply(&caller(), request).await.unwrap().results.remove(0);
        let resource = applied.resource.clone().unwrap();
        let stored: v1::ServiceSpec = kinds::typed("spec", resource.spec.as_ref()).unwrap();
        let told = applied.warnings.iter().any(|warning| warning.starts_with("still paused by 'rollout pause'"));
        (applied.outcome(), stored, metadata(&resource).field_owners, told)
    };
    let paused = || v1::ServiceSpec { rollout: rollout(Some(true)), ..spec(1) };
    let without = |version: &str| v1::ServiceSpec { version: version.into(), ..spec(1) };
    apply(spec(1), "apply").await;
    let (_, _, owners, told) = apply(paused(), "edit").await;
    assert_eq!((owners["spec.rollout.pause"].as_str(), told), ("rollout pause", false));
    // Whether or not the manifest speaks of the rollout at all, and whatever else it changes.
    for surge in [None, Some(3)] {
        let other = v1::Rollout { max_surge: surge, ..Default::default() };
        let other = surge.map(|_| other);
        let (outcome, stored, _, told) = apply(v1::ServiceSpec { rollout: other, ..without("v2") }, "apply").await;
        let kept = stored.rollout.unwrap();
        assert_eq!((outcome, kept.pause, kept.max_surge), (v1::Outcome::Updated, Some(true), surge));
        assert!(told && stored.version == "v2");
    }
    let named = v1::ServiceSpec { rollout: rollout(Some(false)), ..without("v2") };
    let (_, stored, owners, told) = apply(named, "apply").await;
    assert_eq!(
        (stored.rollout.unwrap().pause, owners.len(), told),
        (Some(false), 0, false),
        "a manifest takes it over"
    );
    let (_, stored, ..) = apply(without("v2"), "apply").await;
    assert_eq!(stored.rollout, None, "and then may leave it out");
    // What is declared paused by a manifest goes on when that says nothing of it any more.
    apply(paused(), "apply").await;
    assert_eq!(apply(without("v2"), "apply").await.1.rollout, None);
    // Resumed is not paused, so there is nothing to keep.
    apply(v1::ServiceSpec { rollout: rollout(Some(true)), ..without("v2") }, "edit").await;
    let (_, _, owners, _) = apply(v1::ServiceSpec { rollout: rollout(None), ..without("v2") }, "edit").await;
    assert_eq!(owners.len(), 0);
}

#[tokio::test]
async fn a_config_that_nobody_declared_is_warned_of() {
    let server = start().await;
    let mut spec = spec(1);
    spec.template.as_mut().unwrap().env_from = vec![v1::EnvFrom { config: "paint".into(), ..Default::default() }];
    let config = v1::Resource {
        metadata: Some(v1::Metadata { kind: "Config".into(), name: "paint".into(), ..Default::default() }),
        spec: Some(any(kinds::config::SPEC, &v1::ConfigSpec::default())),
        status: None,
    };
    let warned = async |resources: Vec<v1::Resource>| {
        let applied = server.apply(&caller(), request(resources)).await.unwrap();
        let all = applied.results.into_iter().flat_map(|result| result.warnings);
        all.filter(|warning| warning.contains("Config/default/paint, which doesn't exist")).count()
    };
    assert_eq!(warned(vec![declared("web", &spec)]).await, 1);
    assert_eq!(warned(vec![declared("web", &spec), config]).await, 0, "declared together, in whatever order");
    assert_eq!(warned(vec![declared("web", &spec)]).await, 0);
}

#[tokio::test]
async fn a_declared_owner_must_exist_and_is_fixed() {
    let server = start().await;
    let owned = |by: &str| {
        changed(|m| {
            m.name = "child".into();
            m.owner = Some(v1::OwnerReference { kind: "Service".into(), name: by.into(), ..Default::default() });
        })
    };
    let said = message(server.apply(&caller(), request([owned("web")])).await);
    assert_eq!(said, "conflict on Service/default/child: its owner Service/default/web doesn't exist");
    let parent = metadata(&declare(&server, "web").await);
    server.apply(&caller(), request([owned("web")])).await.unwrap();
    let child = metadata(&get(&server, &model::Key::new("Service", "default", "child")).await);
    assert_eq!((child.shard, child.root_uid, child.owner.unwrap().uid), (parent.shard, parent.uid.clone(), parent.uid));
    declare(&server, "other").await;
    let told = wrongs(&server, request([owned("other")])).await;
    assert_eq!(told, ["metadata.owner: the owner of Service/default/child is fixed at create"]);
}

#[tokio::test]
async fn users_say_what_a_node_should_be_once_it_is_there() {
    let server = start().await;
    let node = |cordon| v1::Resource {
        metadata: Some(v1::Metadata { kind: "Node".into(), name: "n1".into(), ..Default::default() }),
        spec: Some(any(kinds::node::SPEC, &v1::NodeSpec { cordon, ..Default::default() })),
        status: None,
    };
    let said = message(server.apply(&caller(), request([node(true)])).await);
    assert_eq!(said, "metadata.kind: Node resources are not declared; they are made by an agent that registers");
    let attach = open_session(&server, "a1", "agent", "n1").await;
    let labels: std::collections::BTreeMap<_, _> = [("zone".to_owned(), "a".to_owned())].into();
    let hello = v1::NodeHello { node: "n1".into(), session: "a1".into(), attach, status: None, labels: labels.clone() };
    let agent = store::Caller::new(model::Actor::new("agent", "n1"));
    server.register_node(&agent, hello).await.unwrap();
    server.apply(&caller(), request([node(true)])).await.unwrap();
    let stored = get(&server, &model::Key::new("Node", "", "n1")).await;
    assert_eq!((metadata(&stored).labels, metadata(&stored).generation), (labels, 2));
}

#[tokio::test]
async fn applies_of_many_at_once_all_come_through() {
    let server = start().await;
    let applies = (0..100).map(|n| {
        let server = server.clone();
        // Ten names, so that they meet.
        tokio::spawn(async move {
            let request = request([declared(&format!("r{}", n % 10), &spec(n))]);
            server.apply(&caller(), request).await
        })
    });
    for done in futures::future::join_all(applies).await {
        done.unwrap().unwrap();
    }
    for n in 0..10 {
        let key = model::Key::new("Service", "default", &format!("r{n}"));
        assert_eq!(metadata(&get(&server, &key).await).generation, 10, "each was applied on top of the others");
    }
}
