//! The controller's process is killed at every point of its steps: before a commit reaches the server, and after it was
//! done, before the controller hears of it. Whoever comes after it ends the same, and creates nothing twice.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread,
};

use driftless_tests::{Cluster, processes::Process};
use futures::FutureExt;
use model::Actor;
use rustix::process::Signal;
use store::{Faults, Faulty};
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};

use crate::watched::{LONG, sleeper};

/// A life takes about a dozen commits; more than that would be another fault.
const POINTS_MAX: u64 = 40;

/// Where the victim dies.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// Of the commits that it asks for, from 1.
    commit: u64,
    done: bool,
}

/// Between one controller and the server: what passes is seen, and told of.
struct Proxy {
    address: String,
    victim: watch::Sender<Option<Process>>,
    runtime: Option<Runtime>,
}

impl Proxy {
    /// `died` is told when the victim was killed.
    fn start(server: &str, point: Option<Point>, died: mpsc::Sender<Told>) -> Self {
        let runtime = Runtime::new().expect("threads can be started");
        let victim = watch::Sender::new(None::<Process>);
        let faults = Faults::new();
        if let Some(point) = point {
            let known = victim.clone();
            let kill = move |number: u64| {
                let (mut known, died) = (known.subscribe(), died.clone());
                async move {
                    if number == point.commit {
                        let victim = known.wait_for(Option::is_some).await.expect("it's told").expect("it is some");
                        // The test may be over. Told before: whoever finds it gone can know why.
                        _ = died.send(Told::Died);
                        victim.signal(Signal::KILL);
                        std::future::pending().await
                    }
                }
            };
            match point.done {
                false => faults.on_before_commit(move |number, _| kill(number).boxed()),
                true => faults.on_after_commit(move |number, _| kill(number).boxed()),
            }
        }
        let address = runtime.block_on(async {
            let options = wire::Options::new([server], Actor::new("controller", "proxy"));
            let remote = wire::Remote::new(options).expect("it is an address");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it listens").to_string();
            let api = Arc::new(Faulty::new(Arc::new(remote), faults));
            tokio::spawn(wire::serve(api, listener, wire::Config::new("proxy"), std::future::pending()));
            address
        });
        Self { address, victim, runtime: Some(runtime) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

enum Told {
    Died,
    Lived,
}

/// Says that a life is over, also where it ends in a panic.
struct Living(mpsc::Sender<Told>);

impl Drop for Living {
    fn drop(&mut self) {
        _ = self.0.send(Told::Lived);
    }
}

/// What is compared, with names that don't say which service it was.
#[derive(Debug, PartialEq, Eq)]
struct Life {
    /// Name, ready, restarts; once it was grown, and once it was shrunk.
    grown: Vec<(String, bool, i64)>,
    shrunk: usize,
    /// How often each name was created, by the history.
    creates: BTreeMap<String, usize>,
}

/// Made with two instances, shrunk to one, deleted.
fn live(cluster: &Cluster, service: &str) -> Life {
    let short = |name: &str| name.strip_prefix(service).unwrap_or(name).to_owned();
    cluster.apply(&sleeper(service, 2, 0)).ok();
    cluster.wait_ready(service, "60s");
    let instances = cluster.instances(service);
    instances.iter().for_each(|instance| assert!(cluster.process_of(instance).is_alive()));
    let grown = instances.iter().map(|i| (short(&i.name), i.ready, i.restarts)).collect();
    cluster.run(&["scale", "service", service, "--replicas", "1"]).ok();
    cluster.wait_ready(service, "60s");
    let shrunk = cluster.instances(service).iter().filter(|i| i.ready && !i.deleting).count();
    cluster.run(&["delete", "service", service, "--timeout", "60s"]).ok();
    assert!(cluster.instances(service).is_empty());
    let history = cluster.run(&["history", "service", service, "--limit", "10000", "-o", "json"]).ok().json();
    let entries = history["entries"].as_array().cloned().unwrap_or_default();
    let touched = entries.iter().flat_map(|entry| entry["touched"].as_array().cloned().unwrap_or_default());
    // A revision of zero is left out.
    let created = touched.filter(|t| t["key"]["kind"] == "Instance" && t["replacedRevision"].is_null());
    let creates = created.fold(BTreeMap::new(), |mut counts, t| {
        *counts.entry(short(t["key"]["name"].as_str().expect("a name"))).or_default() += 1;
        counts
    });
    Life { grown, shrunk, creates }
}

/// A life under a controller that dies at that point, and one that comes after it. Whether it died: there may be no such
/// point.
fn live_with(cluster: &Cluster, service: &str, point: Option<Point>) -> (Life, bool) {
    let (tell, told) = mpsc::channel();
    let proxy = Proxy::start(cluster.address(), point, tell.clone());
    let mut first = cluster.controller_at(&format!("{service}-first"), &proxy.address);
    proxy.victim.send_replace(Some(first.process()));
    let (life, second) = thread::scope(|scope| {
        let living = scope.spawn(|| {
            let _living = Living(tell);
            live(cluster, service)
        });
        let second = match told.recv_timeout(LONG * 4).expect("it dies, or lives to the end") {
            Told::Died => Some(cluster.controller_at(&format!("{service}-second"), cluster.address())),
            Told::Lived => None,
        };
        (living.join().expect("the life goes as it should"), second)
    });
    match second {
        Some(mut second) => {
            first.process().wait_gone(LONG);
            assert_eq!(second.stop(), 0);
            (life, true)
        }
        None => {
            // Its last commits may come after all that is looked at, and it dies at them all the same.
            let code = first.stop();
            let died = told.try_iter().any(|told| matches!(told, Told::Died));
            assert!(died || code == 0, "it ended with {code}");
            (life, died)
        }
    }
}

#[test]
fn a_controller_killed_at_every_point_of_its_steps_leaves_nothing_undone_or_doubled() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.kill_part("c1");
    let (clean, died) = live_with(&cluster, "clean", None);
    assert!(!died);
    assert_eq!((clean.creates.len(), clean.creates.values().sum::<usize>(), clean.shrunk), (2, 2, 1), "{clean:?}");
    let mut points = 0;
    for commit in 1..=POINTS_MAX {
        let tried = [false, true].map(|done| {
            let point = Point { commit, done };
            let (life, died) = live_with(&cluster, &format!("s{commit}{done}"), Some(point));
            assert_eq!(life, clean, "killed at {point:?}");
            died
        });
        if tried == [false, false] {
            println!("killed at {points} points");
            assert!(points > 10, "only {points} points were tried");
            return;
        }
        points += tried.into_iter().filter(|died| *died).count();
    }
    panic!("there is no end of commits");
}
