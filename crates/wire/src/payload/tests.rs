use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use model::{Digest, Key, Time};
use prost_types::Any;
use store::{Bookmark, Change, Group, ShardDigest};

use super::*;

fn object(name: &str, revision: i64) -> Object {
    let metadata = v1::Metadata {
        kind: "Service".into(),
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        labels: BTreeMap::from([("app".into(), "web".into())]),
        ..Default::default()
    };
    let spec = Any { type_url: "type.googleapis.com/driftless.v1.ServiceSpec".into(), value: vec![7; 300] };
    let resource = v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None };
    Object { key: Key::new("Service", "default", name), revision: Revision(revision), bytes: Object::encode(resource) }
}

fn bytes(payload: &impl Payload) -> Bytes {
    let mut buf = BytesMut::new();
    payload.write(&mut buf);
    buf.freeze()
}

fn round_trip<T: Payload>(payload: &T) -> T {
    T::read(&mut bytes(payload)).expect("what was written can be read")
}

fn every_item() -> Vec<WatchItem> {
    let left = Change::Deleted {
        key: Key::new("Service", "default", "c"),
        uid: "uid-c".into(),
        revision: Revision(9),
        left: true,
    };
    let group = Group {
        from: Revision(7),
        to: Revision(9),
        coalesced: true,
        changes: vec![Change::Put(object("a", 8)), left, Change::Put(object("b", i64::MAX))],
        head: None,
    };
    let digest = ShardDigest { shard: 3, kind: "Service".into(), digest: Digest { sum: u128::MAX - 5, count: 2 } };
    let start =
        |partial, time| WatchItem::SnapshotStart { incarnation: "i".into(), revision: Revision(5), time, partial };
    vec![
        start(None, Time(0)),
        start(Some(vec![]), Time(1_700_000_000_000_001)),
        start(Some(vec![1, 2]), Time(1)),
        WatchItem::Snapshot(vec![]),
        WatchItem::Snapshot(vec![object("a", 1), object("b", 300)]),
        WatchItem::SnapshotEnd { revision: Revision(5) },
        WatchItem::Changes(group),
        WatchItem::Changes(Group::default()),
        WatchItem::Bookmark(Bookmark {
            incarnation: "i".into(),
            revision: Revision(6),
            digests: vec![digest],
            time: Time(2),
        }),
        WatchItem::End { reason: "DRAINING".into(), message: "bye".into() },
    ]
}

#[test]
fn every_watch_item_comes_back_as_it_was() {
    for item in every_item() {
        let item = Item(item);
        assert_eq!(round_trip(&item), item);
    }
}

#[test]
fn lists_and_single_objects_come_back_as_they_were() {
    let rows =
        Rows { objects: vec![object("a", 1), object("b", 0)], next_page_token: "1/x".into(), revision: Revision(4) };
    assert_eq!(round_trip(&rows), rows);
    assert_eq!(round_trip(&Rows::default()), Rows::default());
    let one = One(object("a", 77));
    assert_eq!(round_trip(&one), one);
    let state = State(Arc::new(v1::Coordination { revision: 3, shards: 128, ..Default::default() }));
    assert_eq!(round_trip(&state), state);
}

/// A client in another language uses the plain generated messages.
#[test]
fn plain_messages_read_the_same_bytes() {
    for revision in [0, 1, 127, 128, i64::MAX] {
        let object = object("web", revision);
        let plain = v1::GetResponse::decode(bytes(&One(object.clone()))).expect("a GetResponse");
        assert_eq!(plain.resource, Some(object.resource().expect("decodes")));
    }
    for item in every_item() {
        let item = Item(item);
        let plain = v1::WatchResponse::decode(bytes(&item)).expect("a WatchResponse");
        // A plain server puts the revision inside the metadata, not behind it.
        let again = Item::read(&mut Bytes::from(plain.encode_to_vec())).expect("an item");
        assert_eq!(facts(&again.0), facts(&item.0));
    }
}

/// An item with its resources decoded.
fn facts(item: &WatchItem) -> String {
    let decode = |object: &Object| format!("{} {:?}", object.revision, object.resource().expect("decodes"));
    match item {
        WatchItem::Snapshot(objects) => format!("{:?}", objects.iter().map(decode).collect::<Vec<_>>()),
        WatchItem::Changes(group) => {
            let changes = group.changes.iter().map(|change| match change {
                Change::Put(object) => decode(object),
                deleted => format!("{deleted:?}"),
            });
            format!("{} {} {} {:?}", group.from, group.to, group.coalesced, changes.collect::<Vec<_>>())
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn fields_of_a_newer_version_survive() {
    let mut newer = object("web", 5);
    // Field 200, a varint, unknown here.
    newer.bytes = [&newer.bytes[..], &[0xc0, 0x0c, 0x2a]].concat().into();
    assert_eq!(round_trip(&One(newer.clone())).0, newer);
}

#[test]
fn garbage_is_refused_without_panic() {
    let item = bytes(&Item(WatchItem::Snapshot(vec![object("a", 1)])));
    for end in 1..item.len() {
        assert!(Item::read(&mut item.slice(..end)).is_err(), "cut after {end} bytes");
    }
    assert!(Item::read(&mut Bytes::from_static(&[0xff; 32])).is_err());
    assert!(Item::read(&mut Bytes::new()).is_err(), "an item that says nothing");
}
