use api::v1;

use super::*;

fn key(n: i64) -> Key {
    Key::new("Service", "default", &format!("s{n}"))
}

/// Of shard 1.
fn object(n: i64, revision: i64) -> Object {
    let key = key(n);
    let metadata = v1::Metadata {
        kind: key.kind().into(),
        namespace: key.namespace().into(),
        name: key.name().into(),
        uid: format!("u{n}"),
        revision,
        shard: 1,
        ..Default::default()
    };
    let bytes = Object::encode(v1::Resource { metadata: Some(metadata), ..Default::default() });
    Object { key, revision: Revision(revision), bytes }
}

fn listed<'a>(objects: &'a [Object], shards: &'a [u32], global: bool, revision: i64) -> Listed<'a> {
    Listed { incarnation: "", objects, shards, global, revision: Revision(revision) }
}

fn deleted(n: i64, revision: i64) -> Change {
    Change::Deleted { key: key(n), uid: format!("u{n}"), revision: Revision(revision), left: false }
}

fn names(cache: &Cache) -> Vec<String> {
    cache.world(|world| world.items().map(|item| item.key.name().to_owned()).collect())
}

#[test]
fn own_writes_are_remembered_only_until_they_came_back() {
    let cache = Cache::default();
    for n in 1..=100 {
        cache.note_write("", &key(n), Revision(n));
    }
    cache.advance(Revision(99));
    assert!(cache.has_own_write(&key(99)) && !cache.has_own_write(&key(100)));
    assert_eq!(cache.read(|inner| inner.last_writes.len()), 1);
}

/// A list is on its way while the watch goes on.
#[test]
fn a_list_brings_nothing_back_that_was_deleted_since() {
    let cache = Cache::default();
    cache.complete(&listed(&[object(1, 5), object(2, 6)], &[1], true, 6)).expect("it's the first");
    cache.apply(&[deleted(1, 9)]);
    let late = [object(1, 5), object(2, 6), object(3, 7)];
    let changed = cache.replace(&listed(&late, &[1], true, 8)).expect("it's of the same store");
    assert_eq!((changed.len(), names(&cache)), (0, vec!["s2".to_owned()]), "the next list tells of the third");
    cache.replace(&listed(&[object(2, 6), object(3, 7)], &[1], true, 9)).expect("it's of the same store");
    assert_eq!(names(&cache), ["s2", "s3"]);
}

#[test]
fn a_list_of_some_shards_says_nothing_of_the_others() {
    let cache = Cache::default();
    cache.complete(&listed(&[], &[1], true, 10)).expect("it's the first");
    cache.advance_if_only("", &[1, 2], Revision(20));
    assert_eq!(cache.revision(), Revision(20));
    assert!(cache.complete(&listed(&[], &[2], false, 15)).is_none(), "what came between would be missed");
    cache.complete(&listed(&[], &[2], false, 20)).expect("it's as new");
    cache.advance_if_only("", &[1], Revision(30));
    assert_eq!(cache.revision(), Revision(20), "changes of the other shard up to there are still to come");
}

/// A list, or the answer to a write, may still be on its way when the store has become another one.
#[test]
fn what_a_store_said_is_nothing_to_the_next_one() {
    let cache = Cache::default();
    cache.begin("first");
    cache
        .complete(&Listed { incarnation: "first", ..listed(&[object(1, 5)], &[1], true, 90) })
        .expect("it's the first");
    cache.begin("second");
    assert_eq!((cache.revision(), names(&cache), cache.covers(1)), (Revision::ZERO, Vec::<String>::new(), false));
    assert!(cache.replace(&Listed { incarnation: "first", ..listed(&[object(1, 5)], &[1], true, 90) }).is_none());
    cache.advance_if_only("first", &[1], Revision(90));
    cache.note_write("first", &key(2), Revision(91));
    assert_eq!((cache.revision(), names(&cache)), (Revision::ZERO, Vec::new()));
    assert!(cache.has_own_write(&key(2)), "it would be waited for in vain");
}

#[tokio::test(start_paused = true)]
async fn a_word_that_was_late_hardly_sets_the_clock_back() {
    let cache = Cache::default();
    let at = Time::from_millis;
    cache.set_clock(at(100_000));
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(cache.now(), Some(at(105_000)));
    // It was sent before the watch stood still.
    cache.set_clock(at(100_500));
    assert_eq!(cache.now(), Some(at(104_990)));
    cache.set_clock(at(105_000));
    assert_eq!(cache.now(), Some(at(105_000)));
    cache.set_clock(at(104_995));
    assert_eq!(cache.now(), Some(at(104_995)), "it follows what differs by little");
    cache.set_clock(at(40_000));
    assert_eq!(cache.now(), Some(at(40_000)), "the servers' clock was set back");
}
