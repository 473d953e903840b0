//! A right history passes; each planted fault is found, and called by its name.

use super::*;

fn content(uid: &str, digest: u64, marker: &str) -> Content {
    Content { uid: uid.into(), digest, marker: marker.into() }
}

fn commit(revision: i64, changes: &[(&str, Option<Content>)]) -> Commit {
    let changes: BTreeMap<String, Option<Content>> =
        changes.iter().map(|(k, c)| ((*k).to_owned(), c.clone())).collect();
    Commit { revision, announced: Some(changes.len()), changes, ..Commit::default() }
}

/// a is made (10), claimed (11), changed under the claim (12); b is made (13), a goes (14).
fn commits() -> Vec<Commit> {
    let claim = Commit { revision: 11, claims: vec![("shard-1".into(), 1)], announced: Some(0), ..Commit::default() };
    let step = commit(12, &[("Service/default/a", Some(content("u-a", 2, "w1")))]);
    vec![
        commit(10, &[("Service/default/a", Some(content("u-a", 1, "w1")))]),
        claim,
        Commit { under: vec![("shard-1".into(), 1)], ..step },
        commit(13, &[("Service/default/b", Some(content("u-b", 3, "w2")))]),
        commit(14, &[("Service/default/a", None)]),
    ]
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn operation(asked: u64, answered: u64, what: What) -> Operation {
    Operation { client: "c".into(), asked: at(asked), answered: at(answered), what }
}

fn wrote(asked: u64, answered: u64, marker: &str, outcome: Outcome) -> Operation {
    operation(asked, answered, What::Wrote { marker: marker.into(), outcome })
}

fn got(asked: u64, answered: u64, key: &str, found: Option<(i64, Content)>) -> Operation {
    operation(asked, answered, What::Got { key: key.into(), found })
}

fn operations() -> Vec<Operation> {
    let listed = BTreeMap::from([("Service/default/b".to_owned(), (13, content("u-b", 3, "w2")))]);
    vec![
        wrote(0, 10, "w1", Outcome::Acknowledged(10)),
        got(20, 30, "Service/default/a", Some((12, content("u-a", 2, "w1")))),
        wrote(40, 50, "w2", Outcome::Acknowledged(13)),
        wrote(45, 55, "w3", Outcome::Refused),
        wrote(45, 55, "w4", Outcome::Unknown),
        operation(60, 70, What::Listed { prefix: "Service/".into(), revision: 14, found: listed }),
        got(80, 90, "Service/default/a", None),
    ]
}

fn put(key: &str, revision: i64, content: Content) -> Change {
    Change::Put { key: key.into(), revision, content }
}

fn group(from: i64, to: i64, changes: Vec<Change>) -> Told {
    Told::Group { from, to, coalesced: false, changes }
}

fn told() -> Vec<Told> {
    let gone = Change::Deleted { key: "Service/default/a".into(), uid: "u-a".into() };
    vec![
        Told::Snapshot { revision: 9, all: BTreeMap::new() },
        group(9, 10, vec![put("Service/default/a", 10, content("u-a", 1, "w1"))]),
        Told::Bookmark { revision: 11 },
        group(11, 12, vec![put("Service/default/a", 12, content("u-a", 2, "w1"))]),
        group(12, 13, vec![put("Service/default/b", 13, content("u-b", 3, "w2"))]),
        group(13, 14, vec![gone]),
    ]
}

fn history() -> History {
    let stream = Stream { name: "s".into(), prefix: String::new(), told: told() };
    History { commits: commits(), operations: operations(), streams: vec![stream] }
}

#[track_caller]
fn finds(fault: Fault, plant: impl FnOnce(&mut History)) {
    let mut history = history();
    plant(&mut history);
    let violations = history.check().expect_err("a fault was planted");
    assert!(violations.iter().any(|v| v.fault == fault), "{violations:?}");
}

#[test]
fn a_right_history_is_found_right() {
    let checked = history().check().expect("nothing is wrong");
    let expected = Checked {
        commits: 5,
        fenced: 1,
        claim_changes: 1,
        acknowledged: 2,
        refused: 1,
        unknown: 1,
        reads: 3,
        streams: 1,
        told: 4,
        snapshots: 1,
    };
    assert_eq!(checked, expected);
}

#[test]
fn a_write_under_an_old_epoch_is_found() {
    finds(Fault::OldEpoch, |history| {
        let takeover = Commit { revision: 15, claims: vec![("shard-1".into(), 2)], ..Commit::default() };
        let zombie = commit(16, &[("Service/default/c", Some(content("u-c", 9, "")))]);
        history.commits.push(takeover);
        history.commits.push(Commit { under: vec![("shard-1".into(), 1)], ..zombie });
    });
    finds(Fault::OldEpoch, |history| history.commits[2].under[0].1 = 2);
}

#[test]
fn an_epoch_that_jumps_is_found() {
    finds(Fault::EpochJumped, |history| {
        history.commits.push(Commit { revision: 15, claims: vec![("shard-1".into(), 3)], ..Commit::default() });
    });
}

#[test]
fn a_commit_that_lies_about_its_size_is_found() {
    finds(Fault::WrongCount, |history| history.commits[3].announced = Some(2));
}

#[test]
fn a_lost_write_is_found() {
    finds(Fault::LostWrite, |h| h.operations.push(wrote(100, 110, "w9", Outcome::Acknowledged(20))));
}

#[test]
fn a_refused_write_that_happened_is_found() {
    finds(Fault::GhostWrite, |h| {
        let done = commit(15, &[("Service/default/c", Some(content("u-c", 9, "w3")))]);
        h.commits.push(done);
    });
}

#[test]
fn an_answer_out_of_order_is_found() {
    finds(Fault::OutOfOrder, |h| {
        h.commits.insert(0, commit(5, &[("Service/default/z", Some(content("u-z", 9, "w0")))]));
        h.commits.insert(1, commit(6, &[("Service/default/z", None)]));
        h.operations.push(wrote(100, 110, "w0", Outcome::Acknowledged(5)));
    });
}

#[test]
fn a_stale_read_is_found() {
    // The write of revision 10 was answered, so its absence is old.
    finds(Fault::StaleRead, |h| h.operations[1] = got(20, 30, "Service/default/a", None));
    // Somebody else has seen 14.
    finds(Fault::StaleRead, |h| {
        h.operations.push(got(100, 110, "Service/default/a", Some((12, content("u-a", 2, "w1")))));
    });
    finds(Fault::StaleRead, |h| {
        if let What::Listed { revision, .. } = &mut h.operations[5].what {
            *revision = 12;
        }
    });
}

#[test]
fn a_read_of_what_never_was_is_found() {
    finds(Fault::WrongState, |h| {
        h.operations[1] = got(20, 30, "Service/default/a", Some((12, content("u-a", 7, "w1"))));
    });
    finds(Fault::WrongState, |h| {
        if let What::Listed { found, .. } = &mut h.operations[5].what {
            found.clear();
        }
    });
    // From the future: it was only asked for later.
    finds(Fault::WrongState, |h| {
        h.operations[1] = got(20, 30, "Service/default/b", Some((13, content("u-b", 3, "w2"))));
    });
}

#[test]
fn a_skipped_event_is_found() {
    finds(Fault::SkippedEvent, |h| drop(h.streams[0].told.remove(1)));
    finds(Fault::SkippedEvent, |h| drop(h.streams[0].told.remove(3)));
    finds(Fault::SkippedEvent, |h| {
        let Some(Told::Group { changes, .. }) = h.streams[0].told.last_mut() else { panic!("it is a group") };
        changes.clear();
    });
    // Coalesced, and one key is left out.
    finds(Fault::SkippedEvent, |h| {
        let lagging = vec![put("Service/default/a", 12, content("u-a", 2, "w1"))];
        h.streams[0].told.truncate(1);
        h.streams[0].told.push(Told::Group { from: 9, to: 13, coalesced: true, changes: lagging });
    });
}

#[test]
fn a_repeated_revision_is_found() {
    finds(Fault::RepeatedEvent, |h| {
        let again = h.streams[0].told[3].clone();
        h.streams[0].told.insert(4, again);
    });
    finds(Fault::RepeatedEvent, |h| h.streams[0].told.push(Told::Bookmark { revision: 12 }));
    finds(Fault::RepeatedEvent, |h| {
        let again = put("Service/default/a", 12, content("u-a", 2, "w1"));
        let Told::Group { changes, .. } = &mut h.streams[0].told[4] else { panic!("it is a group") };
        changes.push(again);
    });
}

#[test]
fn a_wrong_event_is_found() {
    finds(Fault::WrongEvent, |h| {
        let Told::Group { changes, .. } = &mut h.streams[0].told[1] else { panic!("it is a group") };
        changes[0] = put("Service/default/a", 10, content("u-a", 8, "w1"));
    });
}

#[test]
fn what_is_coalesced_needs_only_the_end() {
    let mut history = history();
    let changes = vec![put("Service/default/b", 13, content("u-b", 3, "w2"))];
    history.streams[0].told.truncate(1);
    history.streams[0].told.push(Told::Group { from: 9, to: 14, coalesced: true, changes });
    history.check().expect("a came and went in between");
}

#[test]
fn a_resumed_watch_may_begin_with_a_snapshot_but_not_an_old_one() {
    let state = BTreeMap::from([("Service/default/b".to_owned(), (13, content("u-b", 3, "w2")))]);
    let mut right = history();
    right.streams[0].told.push(Told::Snapshot { revision: 14, all: state });
    right.check().expect("it shows what was then");
    finds(Fault::RepeatedEvent, |h| h.streams[0].told.push(Told::Snapshot { revision: 9, all: BTreeMap::new() }));
}
