//! The pure parts by themselves.

use std::time::Duration;

use api::v1;
use bytes::Bytes;
use kinds::{any, instance};
use model::{Filter, Key, Labels, Object, Revision};
use store::{Change, Group, Head, HeadNote};
use tokio::time::Instant;

use crate::{
    cache::{Cache, Lie},
    confirm::{Confirm, Finding, STALE_AFTER, STALL_MAX},
    record::Record,
    seen,
};

fn object(name: &str, uid: &str, revision: i64) -> Object {
    let metadata = v1::Metadata {
        kind: "Service".into(),
        namespace: "default".into(),
        name: name.into(),
        uid: uid.into(),
        ..Default::default()
    };
    let key = Key::of(&metadata);
    let bytes = Object::encode(v1::Resource { metadata: Some(metadata), ..Default::default() });
    Object { key, revision: Revision(revision), bytes }
}

fn deleted(name: &str, uid: &str, revision: i64) -> Change {
    let key = Key::new("Service", "default", name);
    Change::Deleted { key, uid: uid.into(), revision: Revision(revision), left: false }
}

fn group(from: i64, to: i64, commits: u64, changes: Vec<Change>) -> Group {
    let writes = u32::try_from(changes.len()).unwrap();
    let head = Some(HeadNote { commits, writes });
    Group { from: Revision(from), to: Revision(to), coalesced: false, changes, head }
}

fn cache() -> Cache {
    let mut cache = Cache::new(100);
    cache.install("i", Revision(1), &[object("web", "u1", 1)]);
    cache
}

#[test]
fn a_record_knows_its_facts_without_copying() {
    let spec = v1::InstanceSpec { node: "n1".into(), ..Default::default() };
    let labels = [("app", "web"), ("zone", "a")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let metadata = v1::Metadata {
        kind: "Instance".into(),
        namespace: "default".into(),
        name: "web-0".into(),
        uid: "u".into(),
        labels: labels.into(),
        owner: Some(v1::OwnerReference { uid: "o".into(), kind: "Service".into(), ..Default::default() }),
        shard: 300,
        finalizers: vec!["f".into()],
        root_uid: "r".into(),
        ..Default::default()
    };
    let key = Key::of(&metadata);
    let resource = v1::Resource { metadata: Some(metadata), spec: Some(any(instance::SPEC, &spec)), status: None };
    let object = Object { key, revision: Revision(7), bytes: Object::encode(resource) };
    let record = Record::new(&object);
    assert_eq!((record.uid(), record.owner_uid(), record.root_uid()), ("u", "o", "r"));
    assert_eq!((record.shard, record.node(), record.global), (300, Some("n1"), false));
    assert_eq!((record.deleting, record.finalized), (false, true));
    assert_eq!((record.label("app"), record.label("zone"), record.label("x")), (Some("web"), Some("a"), None));
    assert_eq!(record.bytes.as_ptr(), object.bytes.as_ptr(), "the backend's bytes are shared");
    assert!(size_of::<Record>() <= 136, "{} bytes for each resource", size_of::<Record>());
}

#[test]
fn bytes_that_are_no_resource_have_no_facts() {
    for bytes in [&b"\x0a\xff\xff\xff"[..], b"\xff", b"\x0a\x02\x22\x7f", b""] {
        let key = Key::new("Service", "default", "odd");
        let record = Record::new(&Object { key, revision: Revision(1), bytes: Bytes::copy_from_slice(bytes) });
        assert_eq!((record.uid(), record.shard, record.node()), ("", 0, None));
    }
}

#[test]
fn a_cache_takes_what_follows_on_and_nothing_else() {
    let put = |name, revision| Change::Put(object(name, "u", revision));
    let mut cache = cache();
    cache.apply(group(1, 2, 5, vec![put("a", 2)])).unwrap();
    assert_eq!(cache.apply(group(1, 2, 5, vec![put("a", 2)])), Ok(false), "what was seen is no news");
    let lies = [
        (group(3, 4, 6, vec![put("b", 4)]), Lie::RevisionGap { seen: Revision(2), from: Revision(3) }),
        (group(2, 4, 7, vec![put("b", 4)]), Lie::HeadGap { seen: 5, found: 7 }),
        (Group { changes: vec![], ..group(2, 4, 6, vec![put("b", 4)]) }, Lie::Short { announced: 1, found: 0 }),
    ];
    for (group, lie) in lies {
        assert_eq!(cache.apply(group), Err(lie));
        assert_eq!((cache.revision, cache.len()), (Revision(2), 2), "nothing changed");
    }
    assert_eq!(
        cache.compare_head(Head { revision: Revision(2), commits: 6 }),
        Err(Lie::HeadDiffers { seen: 5, found: 6 })
    );
    cache.apply(group(2, 4, 6, vec![put("b", 4)])).unwrap();
}

#[test]
fn after_a_snapshot_the_commit_counter_is_learnt_from_a_head() {
    let mut cache = cache();
    cache.compare_head(Head { revision: Revision(1), commits: 9 }).unwrap();
    let next = group(1, 3, 11, vec![Change::Put(object("a", "u", 3))]);
    assert_eq!(cache.apply(next), Err(Lie::HeadGap { seen: 9, found: 11 }));
}

#[test]
fn a_relist_tells_what_differed_and_what_is_merely_new() {
    let mut cache = cache();
    let altered = Object { bytes: object("web", "u2", 1).bytes, ..object("web", "u1", 1) };
    let healed = cache.install("i", Revision(5), &[altered.clone(), object("new", "n", 4)]);
    assert_eq!((healed.differed, healed.changes), (vec![altered.key.clone()], 2));
    let healed = cache.install("i", Revision(5), &[altered, object("new", "n", 4)]);
    assert_eq!((healed.differed.len(), healed.changes), (0, 0));
}

#[test]
fn a_delete_and_recreate_shows_both_uids_however_it_is_folded() {
    let mut cache = cache();
    let start = cache.ring.end();
    cache.apply(group(1, 2, 1, vec![deleted("web", "u1", 2)])).unwrap();
    cache.apply(group(2, 3, 2, vec![Change::Put(object("web", "u2", 3))])).unwrap();
    cache.apply(group(3, 4, 3, vec![deleted("web", "u2", 4)])).unwrap();
    cache.apply(group(4, 5, 4, vec![Change::Put(object("web", "u3", 5))])).unwrap();
    let groups = cache.ring.since(start).unwrap();
    let (folded, saved) = seen::coalesced(groups, &Filter::default(), Revision(1));
    let folded = folded.unwrap();
    assert_eq!((folded.from, folded.to, folded.coalesced, saved), (Revision(1), Revision(5), true, 3));
    assert_eq!(folded.changes, [deleted("web", "u1", 2), Change::Put(object("web", "u3", 5))]);
    // The same found by a relist alone.
    let start = cache.ring.end();
    cache.install("i", Revision(9), &[object("web", "u4", 8)]);
    let group = cache.ring.since(start).unwrap().next().unwrap().clone();
    let told = seen::one(&group, &Filter::default(), Revision(5)).unwrap();
    assert_eq!(told.changes, [deleted("web", "u3", 9), Change::Put(object("web", "u4", 8))]);
}

#[test]
fn what_came_and_went_unseen_is_not_told() {
    let mut cache = cache();
    let start = cache.ring.end();
    cache.apply(group(1, 2, 1, vec![Change::Put(object("brief", "b", 2))])).unwrap();
    cache.apply(group(2, 3, 2, vec![deleted("brief", "b", 3)])).unwrap();
    let (folded, _) = seen::coalesced(cache.ring.since(start).unwrap(), &Filter::default(), Revision(1));
    assert_eq!(folded, None);
}

#[test]
fn another_incarnation_makes_everybody_start_over() {
    let mut cache = cache();
    let (place, revision) = (cache.ring.end(), cache.revision);
    cache.install("another", Revision(1), &[]);
    assert!(cache.ring.since(place).is_none());
    assert_eq!((cache.len(), cache.revision), (0, revision));
}

#[tokio::test]
async fn a_server_is_confirmed_by_heads_that_its_cache_has_reached() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let head = |revision| Head { revision: Revision(revision), commits: 0 };
    let mut confirm = Confirm::new(start);
    confirm.head((at(100), Revision(5)), at(110), head(5), Revision(5));
    assert!(!confirm.stale(at(100) + STALE_AFTER) && confirm.stale(at(101) + STALE_AFTER));
    // Ahead of the cache: it counts once it's reached, as of when its read began.
    confirm.head((at(1_000), Revision(5)), at(1_010), head(9), Revision(5));
    assert_eq!(confirm.tick(at(1_010) + STALL_MAX - Duration::from_millis(1), Revision(8)), Finding::Fine);
    assert!(confirm.stale(at(2_200)));
    assert_eq!(confirm.tick(at(1_010) + STALL_MAX, Revision(8)), Finding::Stalled);
    assert_eq!(confirm.tick(at(1_020) + STALL_MAX, Revision(8)), Finding::Fine, "not again at once");
    assert_eq!(confirm.tick(at(1_600), Revision(9)), Finding::Fine);
    assert!(!confirm.stale(at(2_900)));
    // Behind what was seen: somebody restored it.
    confirm.head((at(2_000), Revision(9)), at(2_010), head(8), Revision(9));
    assert!(confirm.rolled_back());
    confirm.head((at(2_100), Revision(9)), at(2_110), head(9), Revision(9));
    assert!(!confirm.rolled_back());
    // By the watch alone, as what was written just before the end of the store that is gone.
    confirm.head((at(2_200), Revision(12)), at(2_210), head(11), Revision(12));
    assert!(confirm.rolled_back());
}

#[test]
fn the_cache_counts_its_bytes() {
    let mut cache = cache();
    let one = object("web", "u1", 1).bytes.len();
    assert_eq!((cache.len(), cache.bytes()), (1, one));
    let longer = object("web", "u1-and-more", 2);
    cache.apply(group(1, 2, 1, vec![Change::Put(longer.clone())])).unwrap();
    assert_eq!((cache.len(), cache.bytes()), (1, longer.bytes.len()));
    cache.apply(group(2, 3, 2, vec![deleted("web", "u1-and-more", 3)])).unwrap();
    assert_eq!((cache.len(), cache.bytes()), (0, 0));
    assert_eq!(cache.digest(0, "Service"), model::Digest::default());
}
