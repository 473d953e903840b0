//! Every call of the API arrives as it was sent, and its answer comes back.

use std::sync::Arc;

use api::v1;
use futures::StreamExt;
use model::{Actor, Epoch, Fence, Filter, Key, Revision};
use store::{
    Api, Caller, ClaimChange, Error, HistoryQuery, List, Note, Store, Transaction, Write,
    conformance::{create, put, resource},
};

use crate::{
    double::Double,
    setup::{Server, one, session, soon},
};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn user() -> Caller {
    Caller { actor: Actor::new("user", "root@host"), traceparent: TRACE.into() }
}

#[tokio::test]
async fn declarations_deletions_and_statuses() {
    let (double, _server, remote) = one().await;
    let declaration = v1::Declaration { resource: Some(resource("web")), expected_revision: None };
    let applied =
        remote.apply(&user(), v1::ApplyRequest { declarations: vec![declaration], ..Default::default() }).await;
    assert_eq!(applied.unwrap().results[0].resource, Some(resource("web")));

    let deleted = remote.delete(&user(), v1::DeleteRequest { revision: 9, ..Default::default() }).await;
    assert_eq!(deleted.unwrap().revision, 9);

    let status = resource("web").spec;
    let request = v1::UpdateStatusRequest { status: status.clone(), ..Default::default() };
    assert_eq!(remote.update_status(&user(), request).await.unwrap().resource.unwrap().status, status);

    let heard = ["apply", "delete", "update_status"].map(|what| format!("user/root@host {TRACE} {what:?}"));
    assert_eq!(double.heard(), heard);
}

#[tokio::test]
async fn a_commit_says_who_and_why() {
    let (double, _server, remote) = one().await;
    let note = Note {
        verb: "create".into(),
        why: v1::Why { reason: "UnderReplicated".into(), message: String::new() },
        traceparent: TRACE.into(),
    };
    let transaction = Transaction {
        actor: Some(Actor::new("controller", "b")),
        step_id: "step".into(),
        writes: vec![put(resource("web"), Revision::ZERO)],
        note: Some(note),
        ..Default::default()
    };
    let revision = remote.commit(transaction).await.unwrap();
    assert_eq!(double.heard(), [format!("controller/b {TRACE} {:?}", "commit step create UnderReplicated")]);
    assert_eq!(remote.head().await.unwrap(), double.head().await.unwrap());
    assert_eq!(remote.head().await.unwrap().revision, revision);

    let removal = Write::Remove { key: Key::new("Service", "default", "web"), uid: "uid-web".into(), revision };
    remote.commit(Transaction { writes: vec![removal], ..Default::default() }).await.unwrap();
    assert!(double.heard()[0].starts_with("controller/a "), "without an actor the client's own is meant");
}

#[tokio::test]
async fn reads() {
    let (double, _server, remote) = one().await;
    assert_eq!(remote.cluster().await, double.cluster().await);
    let web = Key::new("Service", "default", "web");
    assert_eq!(remote.get(&web).await, Ok(None));
    for name in ["a", "b", "c", "web"] {
        create(&double.memory, name).await;
    }
    assert_eq!(remote.get(&web).await, double.get(&web).await);

    let first = remote.list(List { limit: 3, ..Default::default() }).await.unwrap();
    assert_eq!((first.objects.len(), first.more), (3, true));
    let after = first.objects.last().map(|o| o.key.clone());
    let rest = List { after, at: Some(first.revision), ..Default::default() };
    let page = remote.list(rest.clone()).await.unwrap();
    assert_eq!((page.objects, page.more), (vec![double.get(&web).await.unwrap().unwrap()], false));
    assert_eq!(page.revision, first.revision);
    create(&double.memory, "later").await;
    assert_eq!(remote.list(rest).await.unwrap_err(), Error::Compacted(first.revision.0));

    let filter = Filter::default().with_labels("app in (a,b),app!=b").unwrap();
    let filtered = remote.list(List { filter, ..Default::default() }).await.unwrap();
    assert_eq!(filtered.objects.len(), 1);
}

#[tokio::test]
async fn a_page_is_cut_to_what_clients_accept() {
    let (double, _server, remote) = one().await;
    for name in ["a", "b", "c", "d", "e"] {
        let mut big = resource(name);
        big.spec.get_or_insert_default().value = vec![7; 900 * 1024];
        double
            .memory
            .commit(Transaction { writes: vec![put(big, Revision::ZERO)], ..Default::default() })
            .await
            .unwrap();
    }
    let page = remote.list(List::default()).await.unwrap();
    assert_eq!((page.objects.len(), page.more), (2, true));
}

#[tokio::test]
async fn history() {
    let (_double, _server, remote) = one().await;
    let entries = remote.entries(v1::HistoryRequest { root_uid: "r".into(), ..Default::default() }).await.unwrap();
    assert_eq!(entries.entries.len(), 2);
    let query = HistoryQuery { root_uid: Some("r".into()), after: Revision(3), up_to: None, limit: 10 };
    let records = remote.history(query).await.unwrap();
    let [record] = records.as_slice() else { panic!("one of them is newer") };
    assert_eq!((record.revision, record.entry.root_uid.as_str()), (Revision(5), "r"));
    assert_eq!(record.entry.step_id, "step-5");
    assert!(matches!(remote.trim_history(Revision(9)).await, Err(Error::Denied(_))));
}

#[tokio::test]
async fn claims_and_members() {
    let (double, _server, remote) = one().await;
    let mut states = remote.coordination().await.unwrap();
    remote.open_session(session("a", "controller", "one")).await.unwrap();
    let change = ClaimChange {
        name: "leader".into(),
        expected_owner: String::new(),
        expected_epoch: Epoch(0),
        owner: "a".into(),
        owner_must_be_dead: true,
    };
    let claim = remote.change_claim(change.clone()).await.unwrap();
    assert_eq!((claim.owner.as_str(), claim.epoch), ("a", 1));
    assert_eq!(remote.change_claim(change.clone()).await, double.change_claim(change).await);

    let seen = soon(async {
        loop {
            let state = states.next().await.unwrap().unwrap();
            if !state.claims.is_empty() {
                return state;
            }
        }
    });
    let state = seen.await;
    assert_eq!((state.members[0].name.as_str(), state.members[0].server.as_str()), ("one", "s1"));

    let fence = Fence::Claim { claim: "leader".into(), epoch: Epoch(1), session: "a".into() };
    let writes = vec![put(resource("web"), Revision::ZERO)];
    remote
        .commit(Transaction { fence: Some(fence.clone()), writes: writes.clone(), ..Default::default() })
        .await
        .unwrap();
    let stale = Fence::Claim { claim: "leader".into(), epoch: Epoch(0), session: "a".into() };
    let late = remote.commit(Transaction { fence: Some(stale), writes, ..Default::default() }).await;
    assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
}

#[tokio::test]
async fn errors_arrive_as_they_were() {
    let (double, _server, remote) = one().await;
    let key = Key::new("Service", "default", "web");
    let errors = [
        Error::Conflict { key: key.clone(), message: "at 7, not at 5".into() },
        Error::ClaimConflict { claim: "leader".into(), message: "at epoch 7".into() },
        Error::Fenced("leader is at epoch 7".into()),
        Error::NotFound(key.clone()),
        Error::Invalid(vec![model::Violation::new("spec.replicas", "is negative"), model::Violation::new("", "ä")]),
        Error::Denied("users don't create instances".into()),
        Error::BeingDeleted(key.clone()),
        Error::InUse { key, message: "6 instances run there".into() },
        Error::TooLarge("121 puts".into()),
        Error::WrongIncarnation("x".into()),
        Error::SessionEnded("a".into()),
        Error::Compacted(3),
        Error::Unavailable("no quorum".into()),
        Error::OutcomeUnknown("the connection broke".into()),
        Error::Corrupt("Service/default/web: unexpected end".into()),
    ];
    for error in errors {
        double.failures.lock().unwrap().push(error.clone());
        let answered = remote.apply(&user(), v1::ApplyRequest::default()).await;
        assert_eq!(answered.unwrap_err(), error);
    }
}

#[tokio::test]
async fn a_write_that_was_answered_unavailable_is_left_to_the_caller() {
    let (double, _server, remote) = one().await;
    double.failures.lock().unwrap().push(Error::Unavailable("no quorum".into()));
    let commit = Transaction { writes: vec![put(resource("web"), Revision::ZERO)], ..Default::default() };
    assert_eq!(remote.commit(commit).await, Err(Error::Unavailable("no quorum".into())));
    assert_eq!(double.heard().len(), 1, "there's no other server to ask");
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before() {
    let (double, _server, remote) = one().await;
    let caller = Caller::new(Actor::new("user", "jörg"));
    let refused = remote.apply(&caller, v1::ApplyRequest::default()).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(double.heard(), [""; 0]);
}

#[tokio::test]
async fn fields_of_a_newer_version_survive_the_way() {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    create(&double.memory, "web").await;
    let key = Key::new("Service", "default", "web");
    let stored = double.get(&key).await.unwrap().unwrap();
    let read = server.remote().get(&key).await.unwrap().unwrap();
    assert_eq!(read.bytes, stored.bytes, "the very bytes, whatever they say");
}
