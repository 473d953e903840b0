use std::time::Duration;

use model::{Epoch, Revision};

use super::*;
use crate::{
    ClaimChange, LogEntry, Prepared, SessionOpen, Transaction,
    conformance::{put, resource},
};

fn state() -> State {
    State::new(Cluster::random())
}

fn creating(name: &str) -> Prepared {
    let log = vec![LogEntry {
        root_uid: "root".into(),
        step_id: "step".into(),
        bytes: name.to_owned().into(),
        slot: String::new(),
    }];
    let writes = vec![put(resource(name), Revision::ZERO)];
    Prepared::new(Transaction { writes, log, ..Transaction::default() })
}

fn session(id: &str) -> SessionOpen {
    let (role, name, server) = (String::new(), String::new(), String::new());
    SessionOpen {
        session: id.into(),
        role,
        name,
        server,
        server_address: String::new(),
        ttl: Duration::from_secs(5),
        machine_id: String::new(),
    }
}

#[test]
fn what_is_staged_shows_only_once_it_is_published() {
    let (mut state, now) = (state(), Instant::now());
    let mut staged = Staged::on(&state);
    let mut draft = Draft::new(&state, &mut staged);
    assert_eq!(draft.open_session(session("a"), now), Ok(1));
    assert_eq!(draft.commit(creating("web")), Ok(Revision(1)));
    assert_eq!((state.head(), state.coordination().members.len()), (Head::default(), 0));
    state.publish(staged);
    assert_eq!(state.head(), Head { revision: Revision(1), commits: 1 });
    assert_eq!((state.objects.len(), state.coordination().members.len()), (1, 1));
}

#[test]
fn operations_of_one_group_see_each_other() {
    let (state, now) = (state(), Instant::now());
    let mut staged = Staged::on(&state);
    let mut draft = Draft::new(&state, &mut staged);
    draft.commit(creating("web")).unwrap();
    assert!(matches!(draft.commit(creating("web")), Err(Error::Conflict { .. })));
    draft.open_session(session("a"), now).unwrap();
    let (expected_owner, owner) = (String::new(), "a".into());
    let take = ClaimChange {
        name: "leader".into(),
        expected_owner,
        expected_epoch: Epoch(0),
        owner,
        owner_must_be_dead: true,
    };
    assert_eq!(draft.change_claim(take.clone()).map(|claim| claim.epoch), Ok(1));
    assert!(draft.end_session("a", None));
    assert!(draft.open_session(session("a"), now).is_err());
    assert!(draft.change_claim(take).is_err());
    assert_eq!((staged.log.len(), staged.groups.len(), staged.head.revision), (1, 2, Revision(2)));
}

#[test]
fn a_session_that_beat_meanwhile_does_not_expire() {
    let (mut state, now) = (state(), Instant::now());
    let mut staged = Staged::on(&state);
    Draft::new(&state, &mut staged).open_session(session("a"), now).unwrap();
    state.publish(staged);
    let (_, deadline) = state.sessions().overdue(now + Duration::from_secs(5)).remove(0);
    state.beat("a", now + Duration::from_secs(1), None).unwrap();
    let mut staged = Staged::on(&state);
    assert!(!Draft::new(&state, &mut staged).expire("a", deadline));
    assert!(Draft::new(&state, &mut staged).expire("a", deadline + Duration::from_secs(1)));
}

#[test]
fn a_beat_during_an_attachment_is_not_lost() {
    let (mut state, now) = (state(), Instant::now());
    let mut staged = Staged::on(&state);
    Draft::new(&state, &mut staged).open_session(session("a"), now).unwrap();
    state.publish(staged);
    let mut staged = Staged::on(&state);
    assert_eq!(Draft::new(&state, &mut staged).open_session(session("a"), now), Ok(2));
    let report = v1::MemberReport { ready: true, ..Default::default() };
    state.beat("a", now + Duration::from_secs(3), Some(report.clone())).unwrap();
    state.publish(staged);
    assert_eq!(state.coordination().members[0].report, Some(report));
    assert_eq!(state.sessions().next_deadline(), Some(now + Duration::from_secs(8)));
}

#[test]
fn the_ring_is_bounded_by_count() {
    let mut state = state();
    for n in 0..5000 {
        let mut staged = Staged::on(&state);
        Draft::new(&state, &mut staged).commit(creating(&format!("web-{n}"))).unwrap();
        state.publish(staged);
    }
    assert!(state.ring().since(Revision(5000 - 4097), 1).is_none());
    let oldest = state.ring().since(Revision(5000 - 4096), 1).unwrap();
    assert_eq!(oldest[0].revision, Revision(5000 - 4095));
}

#[test]
fn bounds_are_those_of_the_smallest_backend() {
    let entry = LogEntry { root_uid: String::new(), step_id: String::new(), bytes: "said".into(), slot: String::new() };
    let of = |entries: usize| Prepared::new(Transaction { log: vec![entry.clone(); entries], ..Default::default() });
    assert_eq!(of(crate::PUTS_MAX - 1).check(), Ok(()));
    assert!(matches!(of(crate::PUTS_MAX).check(), Err(Error::TooLarge(_))));
}

#[test]
fn facts_are_read_without_the_rest() {
    let web = resource("web");
    let known = Known::decode(&model::Object::encode(web.clone())).unwrap();
    assert_eq!(known, Known::of(web.metadata.as_ref().unwrap()));
    assert_eq!((known.uid.as_str(), known.shard), ("uid-web", 7));
}
