//! Clients that were given several servers, through the command line: they pass over what is away or stands still, and
//! never repeat what may have been done.

use std::{
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use driftless_tests::{
    command::{self, Done, driftless},
    stream::Lines,
};
use model::Key;
use prost::bytes::Bytes;
use rustix::process::Signal;
use store::Store;
use store_etcd::testing::grpc_proxy::{Between, GrpcProxy};
use tokio::task::block_in_place;
use tonic::Status;

use crate::{
    etcd_log,
    recorder::wish,
    world::{Shape, World, report},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// What is asked for.
const FAILOVER_MAX: Duration = Duration::from_secs(1);

fn run(servers: &str, arguments: &[&str], input: &str) -> Done {
    let mut command = driftless(servers);
    command.args(arguments);
    block_in_place(|| command::run(command, input.as_bytes()))
}

fn manifest(name: &str) -> String {
    format!(
        "kind: Service\nmetadata: {{ name: {name} }}\nspec: {{ replicas: 1, template: {{ command: [sleep, '9'] }} }}\n"
    )
}

fn watch(servers: &str) -> Lines {
    let mut command = driftless(servers);
    command.args(["get", "services", "-w", "-o", "json"]);
    Lines::start(command)
}

async fn two_servers() -> World {
    World::start(Shape { controllers: 0, agents: 0, ..Shape::default() }).await
}

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").to_string()
}

#[track_caller]
fn seen(lines: &Lines, name: &str) {
    block_in_place(|| {
        lines.until_json(name, PATIENCE, |event| (event["resource"]["metadata"]["name"] == name).then_some(()));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_passed_over_within_a_second() {
    let world = two_servers().await;
    let both = format!("{},{}", world.servers[0].address, world.servers[1].address);
    let lines = watch(&both);
    let before = Instant::now();
    run(&format!("{},{}", nobody(), both), &["apply", "-f", "-"], &manifest("first")).ok();
    report("a command whose first server is away", before.elapsed());
    assert!(before.elapsed() < FAILOVER_MAX, "{:?}", before.elapsed());
    seen(&lines, "first");

    world.servers[0].part.process().signal(Signal::KILL);
    let killed = Instant::now();
    run(&both, &["apply", "-f", "-"], &manifest("second")).ok();
    seen(&lines, "second");
    report("server killed, written and told of through the other", killed.elapsed());
    assert!(killed.elapsed() < FAILOVER_MAX, "{:?}", killed.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_left() {
    let world = two_servers().await;
    let both = format!("{},{}", world.servers[0].address, world.servers[1].address);
    let lines = watch(&both);
    run(&both, &["apply", "-f", "-"], &manifest("first")).ok();
    seen(&lines, "first");
    world.servers[0].part.process().signal(Signal::STOP);
    let stopped = Instant::now();
    run(&world.servers[1].address, &["apply", "-f", "-"], &manifest("second")).ok();
    seen(&lines, "second");
    report("server stopped, told of through the other", stopped.elapsed());
    world.servers[0].part.process().signal(Signal::CONT);
}

/// Loses every answer, after all was done.
struct Loser;

impl Between for Loser {
    fn answer(&self, _path: &str, _call: usize, _message: Bytes) -> Result<Bytes, Status> {
        Err(Status::unavailable("the connection broke"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_been_done_is_not_repeated_and_a_read_is() {
    let world = two_servers().await;
    let proxy = GrpcProxy::start(&world.servers[0].address, Arc::new(Loser)).await;
    let servers = format!("{},{}", proxy.address, world.servers[1].address);
    let lost = run(&servers, &["apply", "-f", "-"], &manifest("once"));
    assert_ne!(lost.code, 0, "{lost:?}");
    assert!(lost.stderr.contains("outcome unknown"), "{lost:?}");
    let once = world.client_of(1).get(&Key::new("Service", "default", "once")).await;
    assert!(once.expect("it answers").is_some(), "it was done");
    run(&servers, &["get", "service", "once"], "").ok();
    let commits = etcd_log::read(&world.etcd).await;
    let key = wish("once", 1, "").key();
    assert_eq!(commits.iter().filter(|c| c.changes.contains_key(key.text())).count(), 1, "and done once");
}
