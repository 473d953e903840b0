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
        cache.note_write(&key(n), Revision(n));
    }
    cache.advance(Revision(99));
    assert!(cache.has_own_write(&key(99)) && !cache.has_own_write(&key(100)));
    assert_eq!(cache.read(|inner| inner.last_writes.len()), 1);
}

/// A list is on its way while the watch goes on.
#[test]
fn a_list_brings_nothing_back_that_was_deleted_since() {
    let cache = Cache::default();
    cache.complete(&[object(1, 5), object(2, 6)], &[1], true, Revision(6)).expect("it's the first");
    cache.apply(&[deleted(1, 9)]);
    let changed = cache.replace(&[object(1, 5), object(2, 6), object(3, 7)], Some(&[1]), true, Revision(8));
    assert_eq!((changed.len(), names(&cache)), (0, vec!["s2".to_owned()]), "the next list tells of the third");
    cache.replace(&[object(2, 6), object(3, 7)], Some(&[1]), true, Revision(9));
    assert_eq!(names(&cache), ["s2", "s3"]);
}

#[test]
fn a_list_of_some_shards_says_nothing_of_the_others() {
    let cache = Cache::default();
    cache.complete(&[], &[1], true, Revision(10)).expect("it's the first");
    cache.advance_if_only(&[1, 2], Revision(20));
    assert_eq!(cache.revision(), Revision(20));
    assert!(cache.complete(&[], &[2], false, Revision(15)).is_none(), "what came between would be missed");
    cache.complete(&[], &[2], false, Revision(20)).expect("it's as new");
    cache.advance_if_only(&[1], Revision(30));
    assert_eq!(cache.revision(), Revision(20), "changes of the other shard up to there are still to come");
}
