//! Reports and logs.

use std::sync::{Arc, Mutex};

use api::v1;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use model::{Actor, Fence, Key, Revision};
use prost::Message;
use store::{Api, Caller, Error, LogPiece, LogSource, LogStream, Result, Store, Transaction, conformance::put};
use tokio::sync::oneshot;
use wire::{Config, Remote};

use crate::{
    double::Double,
    setup::{Server, eventually, one, remote, session, soon},
};

fn agent() -> Caller {
    Caller::new(Actor::new("agent", "n1"))
}

fn hello(attach: u64) -> v1::NodeHello {
    v1::NodeHello { node: "n1".into(), session: "a".into(), attach, ..Default::default() }
}

fn fence() -> Fence {
    Fence::Session { session: "a".into(), attach: 1 }
}

fn batch(sequence: u64) -> v1::ReportBatch {
    v1::ReportBatch { sequence, ..Default::default() }
}

async fn register(remote: &Remote) {
    remote.open_session(session("a", "agent", "n1")).await.unwrap();
    assert_eq!(remote.register_node(&agent(), hello(1)).await, Ok("uid-of-n1".into()));
}

#[tokio::test]
async fn batches_are_committed_in_order() {
    let (double, _server, remote) = one().await;
    assert!(matches!(remote.report(&agent(), fence(), "n1", batch(1)).await, Err(Error::Fenced(_))));
    register(&remote).await;
    let mut first = batch(1);
    let web = Key::new("Instance", "default", "web-1");
    first.instances.push(v1::InstanceReport { key: Some((&web).into()), ..Default::default() });
    assert_eq!(remote.report(&agent(), fence(), "n1", first).await, Ok((Revision(41), vec![web])));
    let caller = agent();
    let reports = (2..20).map(|sequence| remote.report(&caller, fence(), "n1", batch(sequence)));
    futures::future::try_join_all(reports).await.unwrap();
    let heard: Vec<String> = (1..20).map(|n| format!("agent/n1  {:?}", format!("report n1 session a#1 {n}"))).collect();
    assert_eq!(double.heard()[1..], heard);
}

#[tokio::test]
async fn a_refused_batch_is_told_and_the_link_goes_on() {
    let (double, _server, remote) = one().await;
    register(&remote).await;
    double.failures.lock().unwrap().push(Error::Unavailable("no quorum".into()));
    let refused = remote.report(&agent(), fence(), "n1", batch(1)).await;
    assert_eq!(refused, Err(Error::Unavailable("no quorum".into())));
    assert_eq!(remote.report(&agent(), fence(), "n1", batch(2)).await, Ok((Revision(42), vec![])));
    let other = Fence::Session { session: "b".into(), attach: 1 };
    assert!(matches!(remote.report(&agent(), other, "n1", batch(3)).await, Err(Error::Fenced(_))));
}

#[tokio::test]
async fn a_node_that_is_not_accepted_any_more_must_register_anew() {
    let (double, server, remote) = one().await;
    register(&remote).await;
    // The batch, then the hello of the next stream.
    let taken = Error::Conflict { key: Key::new("Node", "", "n1"), message: "another machine has the name".into() };
    double.failures.lock().unwrap().extend([taken.clone(), Error::Fenced("a#1 isn't current".into())]);
    assert!(matches!(remote.report(&agent(), fence(), "n1", batch(1)).await, Err(Error::Fenced(_))));
    eventually("the link is over, and says why", || async {
        remote.report(&agent(), fence(), "n1", batch(2)).await == Err(taken.clone())
    })
    .await;
    remote.register_node(&agent(), hello(1)).await.unwrap();
    remote.report(&agent(), fence(), "n1", batch(3)).await.unwrap();
    drop(server);
}

#[tokio::test]
async fn reports_follow_the_session_to_another_server() {
    let double = Arc::new(Double::default());
    let (first, second) = (Server::named(double.clone(), "s1").await, Server::named(double.clone(), "s2").await);
    let remote = remote([first.address(), second.address()]);
    register(&remote).await;
    drop(first);
    eventually("a report goes through", || async {
        // It was sent on the dying stream, or comes through the next.
        remote.report(&agent(), fence(), "n1", batch(1)).await.is_ok()
    })
    .await;
    assert_eq!(remote.attach_of("a"), Some(2));
    let heard = double.heard();
    let last = heard.last().unwrap();
    assert!(last.contains("report n1 session a#2 1"), "under the newest attach number: {heard:?}");
}

/// A log of so many chunks; then, if asked to follow, one that never ends.
struct Log {
    chunks: usize,
    /// Sent when the stream is dropped.
    dropped: Mutex<Option<oneshot::Sender<()>>>,
}

struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.take().map(|sender| sender.send(()));
    }
}

#[async_trait]
impl LogSource for Log {
    async fn open(&self, start: v1::LogStart) -> Result<LogStream> {
        if start.instance == "unreadable" {
            return Err(Error::Unavailable("its log was deleted".into()));
        }
        let guard = Dropped(self.dropped.lock().unwrap().take());
        let from = start.after.parse().map_or(0, |n: usize| n + 1);
        let line = |n: usize| Ok(LogPiece { data: Bytes::from(format!("line {n}\n")), position: n.to_string() });
        let lines = stream::iter((from..self.chunks).map(line));
        let rest = match start.follow {
            true => stream::pending().boxed(),
            false => stream::empty().boxed(),
        };
        Ok(lines.chain(rest).inspect(move |_| assert!(guard.0.is_some())).boxed())
    }
}

async fn instance(double: &Double, name: &str, node: &str) {
    let spec = v1::InstanceSpec { node: node.into(), ..Default::default() };
    let metadata =
        v1::Metadata { kind: "Instance".into(), namespace: "default".into(), name: name.into(), ..Default::default() };
    let spec = prost_types::Any {
        type_url: "type.googleapis.com/driftless.v1.InstanceSpec".into(),
        value: spec.encode_to_vec(),
    };
    let resource = v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None };
    double
        .memory
        .commit(Transaction { writes: vec![put(resource, Revision::ZERO)], ..Default::default() })
        .await
        .unwrap();
}

fn wanted(instance: &str, follow: bool) -> v1::LogsRequest {
    v1::LogsRequest { namespace: "default".into(), instance: instance.into(), follow, ..Default::default() }
}

fn log(chunks: usize) -> (Arc<Log>, oneshot::Receiver<()>) {
    let (sender, dropped) = oneshot::channel();
    (Arc::new(Log { chunks, dropped: Mutex::new(Some(sender)) }), dropped)
}

#[tokio::test]
async fn a_log_is_read_through_the_server() {
    let (double, server, remote) = one().await;
    register(&remote).await;
    instance(&double, "web-1", "n1").await;
    let ((source, _dropped), (again, _dropped_again)) = (log(5_000), log(5_000));
    remote.serve_logs(source);
    let cli = server.remote();
    let log = soon(cli.logs(&agent(), wanted("web-1", false))).await.unwrap();
    let pieces: Vec<LogPiece> = soon(log.try_collect()).await.unwrap();
    let text: Vec<&[u8]> = pieces.iter().map(|piece| &*piece.data).collect();
    let expected: String = (0..5_000).map(|n| format!("line {n}\n")).collect();
    assert_eq!(text.concat(), expected.as_bytes());
    assert_eq!(pieces.last().unwrap().position, "4999");

    remote.serve_logs(again);
    let after = v1::LogsRequest { after: "4997".into(), ..wanted("web-1", false) };
    let log = soon(cli.logs(&agent(), after)).await.unwrap();
    let rest: Vec<LogPiece> = soon(log.try_collect()).await.unwrap();
    assert_eq!(rest.iter().map(|piece| &*piece.position).collect::<Vec<_>>(), ["4998", "4999"]);
}

/// Which is no end: the instance runs on, and so does its log.
#[tokio::test]
async fn a_log_whose_agent_dies_breaks_off_with_an_error() {
    let (double, server, _) = one().await;
    instance(&double, "web-1", "n1").await;
    // With a runtime of its own, so that all of it can be stopped at once.
    let (life, address) = (tokio::runtime::Runtime::new().unwrap(), server.address());
    let agent_of_n1 = life.spawn(async {
        let remote = remote([address]);
        register(&remote).await;
        remote.serve_logs(log(1).0);
        remote
    });
    let _dead = soon(agent_of_n1).await.unwrap();
    let cli = server.remote();
    let mut log = soon(cli.logs(&agent(), wanted("web-1", true))).await.unwrap();
    assert_eq!(soon(log.next()).await.unwrap().unwrap().data, "line 0\n");
    life.shutdown_background();
    let broken = soon(log.next()).await.unwrap().unwrap_err();
    assert!(matches!(&broken, Error::Unavailable(why) if why.contains("the agent's stream broke")), "{broken}");
    assert!(soon(log.next()).await.is_none());
}

#[tokio::test]
async fn a_log_that_nobody_follows_any_more_is_closed() {
    let (double, server, remote) = one().await;
    register(&remote).await;
    instance(&double, "web-1", "n1").await;
    let (source, dropped) = log(1);
    remote.serve_logs(source);
    let cli = server.remote();
    let mut log = soon(cli.logs(&agent(), wanted("web-1", true))).await.unwrap();
    assert_eq!(soon(log.next()).await.unwrap().unwrap().data, "line 0\n");
    drop(log);
    soon(dropped).await.unwrap();
}

#[tokio::test]
async fn a_slow_reader_of_a_log_holds_up_no_report() {
    let (double, server, remote) = one().await;
    register(&remote).await;
    instance(&double, "web-1", "n1").await;
    let (source, _dropped) = log(2_000_000);
    remote.serve_logs(source);
    let cli = server.remote();
    let unread = soon(cli.logs(&agent(), wanted("web-1", false))).await.unwrap();
    for sequence in 1..100 {
        soon(remote.report(&agent(), fence(), "n1", batch(sequence))).await.unwrap();
    }
    drop(unread);
}

/// The leader noted it.
async fn node_silent(double: &Double, name: &str) {
    let since = prost_types::Timestamp { seconds: 7, nanos: 0 };
    let status = v1::NodeStatus { silent_since: Some(since), ..Default::default() };
    let resource = v1::Resource {
        metadata: Some(v1::Metadata { kind: "Node".into(), name: name.into(), ..Default::default() }),
        status: Some(prost_types::Any { value: status.encode_to_vec(), ..Default::default() }),
        ..Default::default()
    };
    let write = Transaction { writes: vec![put(resource, Revision::ZERO)], ..Transaction::default() };
    double.memory.commit(write).await.unwrap();
}

#[tokio::test]
async fn why_a_log_cannot_be_read() {
    let double = Arc::new(Double::default());
    let (first, second) = (Server::named(double.clone(), "s1").await, Server::named(double.clone(), "s2").await);
    let cli = second.remote();
    let why = async |instance: &str| match soon(cli.logs(&agent(), wanted(instance, false))).await {
        Err(error) => error,
        Ok(log) => soon(log.try_collect::<Vec<_>>()).await.unwrap_err(),
    };
    assert_eq!(why("web-1").await, Error::NotFound(Key::new("Instance", "default", "web-1")));
    instance(&double, "web-1", "").await;
    assert_eq!(why("web-1").await, Error::Unavailable("Instance/default/web-1 is not placed on a node yet".into()));
    instance(&double, "web-2", "n1").await;
    let unheard = "node not heard: the agent of node n1 has had no session; what its instances wrote is kept there";
    assert!(matches!(why("web-2").await, Error::Unavailable(why) if why.starts_with(unheard)));
    node_silent(&double, "n1").await;
    let since = "no session since 1970-01-01T00:00:07Z";
    assert!(matches!(why("web-2").await, Error::Unavailable(why) if why.contains(since)));
    let elsewhere = first.remote();
    register(&elsewhere).await;
    // The other server asks there, and tells what the agent says.
    assert_eq!(why("web-2").await, Error::Unavailable("this agent serves no logs".into()));
    instance(&double, "unreadable", "n1").await;
    elsewhere.serve_logs(log(0).0);
    assert_eq!(why("unreadable").await, Error::Unavailable("its log was deleted".into()));
}

/// Two servers, and what the second one answers about a log of an agent that is attached to the first, which tells that
/// address (by default the right one).
async fn through_the_other(advertised: impl FnOnce(&Server) -> String) -> Result<String> {
    let double = Arc::new(Double::default());
    let second = Server::named(double.clone(), "s2").await;
    let address = advertised(&second);
    let first = Server::with(double.clone(), Config { address, ..Config::new("s1") }).await;
    let there = first.remote();
    register(&there).await;
    instance(&double, "web-1", "n1").await;
    there.serve_logs(log(3).0);
    let pieces = soon(second.remote().logs(&agent(), wanted("web-1", false))).await?;
    let pieces: Vec<LogPiece> = soon(pieces.try_collect()).await?;
    Ok(pieces.iter().map(|piece| String::from_utf8_lossy(&piece.data)).collect())
}

#[tokio::test]
async fn a_log_is_read_through_a_server_that_its_agent_is_not_attached_to() {
    assert_eq!(through_the_other(|_| String::new()).await, Ok("line 0\nline 1\nline 2\n".into()));
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_for_a_log_is_named_with_what_helps() {
    let error = through_the_other(|_| "127.0.0.1:1".into()).await.unwrap_err().to_string();
    let begin =
        "the agent of node n1 isn't attached to this server (s2) but to s1, which can't be reached at 127.0.0.1:1 from";
    assert!(error.contains(begin) && error.contains("(server --advertise)"), "{error}");
}

#[tokio::test]
async fn a_log_takes_one_hop_between_servers() {
    // The first leads back to the second, which would ask for ever.
    let error = through_the_other(Server::address).await.unwrap_err().to_string();
    let asked = "isn't attached to this server (s2) but to s1";
    assert_eq!(error.matches(asked).count(), 2, "{error}");
    assert!(error.contains("which answers: "), "{error}");
}

#[tokio::test]
async fn only_a_restarted_instance_has_a_run_before() {
    let (double, server, remote) = one().await;
    register(&remote).await;
    instance(&double, "web-1", "n1").await;
    remote.serve_logs(log(1).0);
    let request = v1::LogsRequest { previous: true, ..wanted("web-1", false) };
    let refused = soon(server.remote().logs(&agent(), request)).await.err().expect("it never was");
    assert!(refused.to_string().contains("was never restarted"), "{refused}");
}
