//! Sessions over the wire, and what becomes of them when their stream breaks.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use store::{Error, Store};

use crate::{
    double::Double,
    setup::{Server, eventually, one, remote, session, soon},
};

/// Names of the sessions that are alive.
async fn alive(double: &Double) -> Vec<String> {
    let state = double.memory.coordination().await.unwrap().next().await.unwrap().unwrap();
    state.members.iter().map(|member| member.session.clone()).collect()
}

async fn attach_in_store(double: &Double, session: &str) -> Option<u64> {
    let state = double.memory.coordination().await.unwrap().next().await.unwrap().unwrap();
    state.members.iter().find(|member| member.session == session).map(|member| member.attach)
}

#[tokio::test]
async fn beats_renew_and_report() {
    let (double, _server, remote) = one().await;
    assert_eq!(remote.open_session(session("a", "controller", "one")).await, Ok(1));
    assert_eq!(remote.attach_of("a"), Some(1));
    remote.beat("a", None).await.unwrap();
    let report = api::v1::MemberReport { ready: true, ..Default::default() };
    remote.beat("a", Some(report.clone())).await.unwrap();
    let state = double.memory.coordination().await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(state.members[0].report, Some(report));
    assert_eq!(remote.beat("b", None).await, Err(Error::SessionEnded("b".into())));
}

#[tokio::test]
async fn a_session_that_ended_says_so() {
    let (double, _server, remote) = one().await;
    remote.open_session(session("a", "controller", "one")).await.unwrap();
    double.memory.end_session("a", None).await.unwrap();
    assert_eq!(remote.beat("a", None).await, Err(Error::SessionEnded("a".into())));
    assert_eq!(remote.beat("a", None).await, Err(Error::SessionEnded("a".into())));
    assert_eq!(remote.attach_of("a"), None);
    assert_eq!(remote.open_session(session("a", "controller", "one")).await, Err(Error::SessionEnded("a".into())));
}

#[tokio::test]
async fn closing_ends_it_at_once() {
    let (double, _server, remote) = one().await;
    remote.open_session(session("a", "controller", "one")).await.unwrap();
    assert_eq!(remote.end_session("a", Some(7)).await, Ok(false), "another attach number");
    assert_eq!(remote.end_session("a", Some(1)).await, Ok(true));
    assert_eq!(alive(&double).await, [""; 0]);
    assert_eq!(remote.end_session("a", None).await, Ok(false));
}

#[tokio::test]
async fn a_beat_that_the_store_could_not_take_ends_nothing() {
    let (double, _server, remote) = one().await;
    remote.open_session(session("a", "controller", "one")).await.unwrap();
    double.failures.lock().unwrap().push(Error::Unavailable("no quorum".into()));
    assert_eq!(remote.beat("a", None).await, Err(Error::Unavailable("no quorum".into())));
    // The server ended the stream; the client attached anew.
    soon(async { while remote.beat("a", None).await.is_err() {} }).await;
    assert_eq!(attach_in_store(&double, "a").await, Some(2));
    assert_eq!(remote.attach_of("a"), Some(2));
}

#[tokio::test]
async fn a_broken_stream_ends_the_session_early() {
    let (double, server, keeper) = one().await;
    keeper.open_session(session("kept", "controller", "one")).await.unwrap();
    let crashing = server.remote();
    crashing.open_session(session("crashed", "controller", "two")).await.unwrap();
    let before = tokio::time::Instant::now();
    drop(crashing);
    eventually("only the other session is alive", || async { alive(&double).await == ["kept"] }).await;
    let took = before.elapsed();
    assert!(took >= Duration::from_millis(300), "there was time to attach it anew: {took:?}");
    assert!(took < Duration::from_secs(10), "long before its TTL: {took:?}");
}

#[tokio::test]
async fn attached_anew_in_time_it_survives() {
    let double = Arc::new(Double::default());
    let (first, second) = (Server::named(double.clone(), "s1").await, Server::named(double.clone(), "s2").await);
    let moved = first.remote();
    moved.open_session(session("moved", "controller", "one")).await.unwrap();
    // The same session through another server, as its client does when the first is gone.
    let elsewhere = second.remote();
    assert_eq!(elsewhere.open_session(session("moved", "controller", "one")).await, Ok(2));
    // One that crashes on the same server at the same time shows when the first server would have ended both.
    let crashing = first.remote();
    crashing.open_session(session("crashed", "controller", "two")).await.unwrap();
    drop(moved);
    drop(crashing);
    eventually("the crashed one is gone", || async { alive(&double).await == ["moved"] }).await;
    elsewhere.beat("moved", None).await.unwrap();
}

#[tokio::test]
async fn opened_again_by_the_same_client_only_the_newer_stream_counts() {
    let (double, server, remote) = one().await;
    assert_eq!(remote.open_session(session("a", "agent", "n1")).await, Ok(1));
    assert_eq!(remote.open_session(session("a", "agent", "n1")).await, Ok(2));
    // By when the older stream would have ended it, one that breaks after it is gone.
    let crashing = server.remote();
    crashing.open_session(session("crashed", "controller", "two")).await.unwrap();
    drop(crashing);
    eventually("the crashed one is gone", || async { alive(&double).await == ["a"] }).await;
    remote.beat("a", None).await.unwrap();
    assert_eq!((remote.attach_of("a"), attach_in_store(&double, "a").await), (Some(2), Some(2)));
}

#[tokio::test]
async fn a_killed_server_costs_an_attach_number() {
    let double = Arc::new(Double::default());
    let (first, second) = (Server::named(double.clone(), "s1").await, Server::named(double.clone(), "s2").await);
    let remote = remote([first.address(), second.address()]);
    remote.open_session(session("a", "controller", "one")).await.unwrap();
    drop(first);
    eventually("it is attached anew", || async { remote.attach_of("a") == Some(2) }).await;
    remote.beat("a", None).await.unwrap();
    let state = double.memory.coordination().await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(state.members[0].server, "s2");
}

#[tokio::test]
async fn a_draining_server_ends_no_session() {
    let double = Arc::new(Double::default());
    let (first, second) = (Server::named(double.clone(), "s1").await, Server::named(double.clone(), "s2").await);
    let gone = first.remote();
    gone.open_session(session("left", "controller", "one")).await.unwrap();
    let moving = remote([first.address(), second.address()]);
    moving.open_session(session("moving", "controller", "two")).await.unwrap();
    first.drain().await;
    eventually("one is attached to the other server", || async { moving.attach_of("moving") == Some(2) }).await;
    moving.beat("moving", None).await.unwrap();
    assert_eq!(alive(&double).await.len(), 2, "the other one is left to its TTL");
}

#[tokio::test]
async fn an_open_without_a_ttl_or_with_a_bad_one() {
    let (_double, server, _remote) = one().await;
    let mut client = wire::rpc::coordination_service_client::CoordinationServiceClient::connect(format!(
        "http://{}",
        server.address
    ))
    .await
    .unwrap();
    let mut open = api::v1::SessionOpen { session: "a".into(), role: "agent".into(), ..Default::default() };
    let ask = |open: api::v1::SessionOpen| {
        let request = api::v1::session_request::Request::Open(open);
        let first = api::v1::SessionRequest { request: Some(request) };
        tokio_stream::StreamExt::chain(tokio_stream::once(first), futures::stream::pending())
    };
    let mut answers = client.session(ask(open.clone())).await.unwrap().into_inner();
    let Some(api::v1::session_response::Response::Opened(opened)) = answers.message().await.unwrap().unwrap().response
    else {
        panic!("it opens")
    };
    assert_eq!((opened.attach, opened.ttl.unwrap().seconds), (1, 5));
    open.ttl = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    assert_eq!(client.session(ask(open)).await.unwrap_err().code(), tonic::Code::InvalidArgument);
}
