//! When absence means something.

use model::{Key, Object, Revision, Time};
use store::{Change, Group, WatchItem};

use super::world::instance;
use crate::{
    assigned::{Changed, View},
    driver::Id,
};

fn object(name: &str) -> Object {
    let resource = instance(name, Default::default());
    Object { key: Key::new("Instance", "default", name), revision: Revision(1), bytes: Object::encode(resource) }
}

fn id(name: &str) -> Id {
    Id { uid: format!("uid-of-{name}").into(), key: object(name).key }
}

fn start() -> WatchItem {
    WatchItem::SnapshotStart { incarnation: "a".into(), revision: Revision(1), time: Time::default(), partial: None }
}

fn snapshot(view: &mut View, names: &[&str]) -> Changed {
    view.apply(start());
    view.apply(WatchItem::Snapshot(names.iter().map(|name| object(name)).collect()));
    view.apply(WatchItem::SnapshotEnd { revision: Revision(1) })
}

fn names(view: &View) -> Vec<&str> {
    view.records.instances.values().map(|assigned| assigned.id.key.name()).collect()
}

fn change(change: Change) -> WatchItem {
    WatchItem::Changes(Group { changes: vec![change], ..Group::default() })
}

#[test]
fn a_snapshot_counts_only_at_its_end() {
    let mut view = View::default();
    assert!(snapshot(&mut view, &["a", "b"]).complete);
    assert_eq!(names(&view), ["a", "b"]);
    view.apply(start());
    view.apply(WatchItem::Snapshot(vec![object("a")]));
    assert_eq!(names(&view), ["a", "b"], "half a snapshot says nothing");
    view.broken();
    assert!(!view.apply(WatchItem::SnapshotEnd { revision: Revision(2) }).complete, "nor does an end without a start");
    assert_eq!(names(&view), ["a", "b"]);
    snapshot(&mut view, &[]);
    assert_eq!(names(&view), Vec::<&str>::new());
}

#[test]
fn only_the_last_whole_snapshot_of_the_present_store_names_anything() {
    let mut view = View::default();
    view.apply(start());
    assert!(!view.is_current() && !view.names(&id("a")), "nothing is known yet");
    snapshot(&mut view, &["a"]);
    let again = Id { uid: "another".into(), ..id("a") };
    assert!(view.is_current() && view.names(&id("a")) && !view.names(&id("b")) && !view.names(&again));
    view.apply(start());
    assert!(view.is_current() && view.names(&id("a")), "the same store says it anew");
    let other = "b".into();
    view.apply(WatchItem::SnapshotStart {
        incarnation: other,
        revision: Revision(1),
        time: Time::default(),
        partial: None,
    });
    assert!(!view.is_current());
}

#[test]
fn changes_name_whom_they_are_about() {
    let mut view = View::default();
    snapshot(&mut view, &["a"]);
    let changed = view.apply(change(Change::Put(object("b"))));
    assert_eq!(changed.uids, ["uid-of-b".into()].into());
    let key = object("a").key;
    let gone = Change::Deleted { key, uid: "uid-of-a".into(), revision: Revision(3), left: false };
    assert_eq!(view.apply(change(gone)).uids, ["uid-of-a".into()].into());
    assert_eq!(names(&view), ["b"]);
    assert!(view.absent(&id("a")));
}

#[test]
fn a_record_that_cannot_be_read_is_not_absent() {
    let mut view = View::default();
    let mut resource = instance("a", Default::default());
    resource.spec.as_mut().unwrap().value = vec![0xff];
    let broken = Object { bytes: Object::encode(resource), ..object("a") };
    view.apply(start());
    view.apply(WatchItem::Snapshot(vec![broken]));
    view.apply(WatchItem::SnapshotEnd { revision: Revision(1) });
    assert!(names(&view).is_empty() && !view.absent(&id("a")));
    view.apply(change(Change::Put(object("a"))));
    assert_eq!(names(&view), ["a"]);
}

/// Not even its uid.
#[test]
fn a_record_of_which_nothing_can_be_read_is_not_absent() {
    let mut view = View::default();
    let broken = Object { bytes: vec![0xff].into(), ..object("a") };
    view.apply(start());
    view.apply(WatchItem::Snapshot(vec![broken]));
    view.apply(WatchItem::SnapshotEnd { revision: Revision(1) });
    assert!(names(&view).is_empty() && !view.absent(&id("a")) && view.absent(&id("b")));
    let gone = Change::Deleted { key: object("a").key, uid: "uid-of-a".into(), revision: Revision(3), left: false };
    view.apply(change(gone));
    assert!(view.absent(&id("a")));
}
