use api::v1;
use kinds::{any, service};
use model::Revision;
use store::{Api, Store};

use super::fixtures::*;

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
