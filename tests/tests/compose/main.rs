//! The cluster of docker-compose.yml, as a user brings it up, and what becomes of it when parts of it are lost.
//!
//! One test, since bringing it up is the dear part. `make test-compose` runs it; each line it prints is a thing seen.

mod project;

use std::time::Instant;

use driftless_tests::{cluster::Instance, command, python};
use project::{Project, crash, docker, eventually};
use serde_json::Value;

fn web(replicas: usize, version: &str) -> String {
    format!(
        r#"
kind: Service
metadata: {{ name: web }}
spec:
  replicas: {replicas}
  version: {version}
  template:
    command: ["python3", "-u", "-m", "http.server", "$(PORT)", "--bind", "127.0.0.1"]
    ports: [{{ name: http }}]
    health: {{ readiness: {{ http: {{ path: /, port: http }}, interval: 0.5s, timeout: 5s }} }}
    stop_grace: 1s
"#
    )
}

#[test]
fn the_compose_cluster_converges_whatever_of_it_is_lost() {
    let seen = Seen::start();
    let project = Project::up();
    eventually("three nodes and three controllers", || {
        let ready = project.get("nodes").iter().filter(|node| is_ready(node)).count();
        let controllers = project.controllers().len();
        if (ready, controllers) == (3, 3) { Ok(()) } else { Err(format!("{ready} nodes, {controllers} controllers")) }
    });
    seen.say("up: 3 nodes are ready, 3 controllers take part");

    healthy(&project);
    let targets = targets_of_prometheus(&project);
    seen.say(&format!("every container is healthy, and {targets} targets of prometheus.yml answer with metrics"));

    python::run_client(project.address("server2"));
    seen.say("a gRPC client from outside declared a service, watched it to Ready, and deleted it");

    project.apply(&web(6, "v1"));
    converged(&project, 6);
    seen.say("6 of 6 run");

    controller_crashes(&project, &seen);
    server_is_cut_off(&project, &seen);
    etcd_stops(&project, &seen);
    controllers_roll(&project, &seen);
    controllers_scale(&project, &seen);
    agent_crashes(&project, &seen);

    healthy(&project);
    seen.say("every container is healthy again");
    project.run(&["delete", "service", "web", "--timeout", "60s"]).ok();
    eventually("no process is left", || none_of(&project.processes()));
    seen.say("deleted: no process is left");
    project.down();
    seen.say("down: no container, volume or network is left");
}

/// By their health checks: 3 etcd, 2 servers, 3 controllers, 3 agents.
fn healthy(project: &Project) {
    eventually("every container is healthy", || match project.health() {
        (11, 11) => Ok(()),
        (all, healthy) => Err(format!("{healthy} of {all}")),
    });
}

/// Finds them as Prometheus does, by the names in its configuration, and reads the metrics of each.
fn targets_of_prometheus(project: &Project) -> usize {
    let config = command::repository("deploy/observability/prometheus/prometheus.yml");
    let config = std::fs::read_to_string(config).expect("the configuration");
    let names = config.lines().find_map(|line| line.trim().strip_prefix("- names: [")?.strip_suffix(']'));
    let names = names.expect("names that stand for the parts").replace(',', "");
    let script = "
import socket, sys, urllib.request
targets = {(name, each[4][0]) for name in sys.argv[1:] for each in socket.getaddrinfo(name, 9464, socket.AF_INET)}
for _, address in targets:
    assert b'driftless_ready' in urllib.request.urlopen(f'http://{address}:9464/metrics', timeout=5).read()
print(len(targets))";
    let within = project.container("agent1");
    let arguments: Vec<&str> = ["exec", &within, "python3", "-c", script].into_iter().chain(names.split(' ')).collect();
    let targets = docker(&arguments).trim().parse().expect("a number");
    assert_eq!(targets, 8, "2 servers, 3 controllers, 3 agents");
    targets
}

/// The leader's, the hard way, with work to do at that moment.
fn controller_crashes(project: &Project, seen: &Seen) {
    let before = project.instances();
    let leader = leader(project);
    crash(&leader);
    scale(project, 9);
    untouched(&before, &converged(project, 9));
    seen.say("the leading controller was killed: 9 of 9 run, the first 6 untouched");
    eventually("it is back", || match project.controllers() {
        names if names.contains(&leader) => Ok(()),
        names => Err(format!("{names:?}")),
    });
    assert_ne!(docker(&["inspect", "-f", "{{.RestartCount}}", &leader]).trim(), "0", "by the restart policy");
    seen.say("its container was restarted, and takes part again");
}

/// The one that the leader talks to, so that something is really cut.
fn server_is_cut_off(project: &Project, seen: &Seen) {
    let before = project.instances();
    let leader = leader(project);
    let members = project.get("members");
    let member = members.iter().find(|member| member["name"] == *leader).expect("the leader is a member");
    // Servers are named by their host, and the port.
    let server = member["server"].as_str().and_then(|name| name.split(':').next()).expect("it is attached somewhere");
    let server = server.to_owned();
    let container = project.container(&server);
    docker(&["network", "disconnect", &project.network(), &container]);
    scale(project, 5);
    let after = converged(project, 5);
    untouched(&after, &before);
    seen.say(&format!("{server} was cut off the network: 5 of 5 run, none of them touched"));
    docker(&["network", "connect", "--alias", &server, &project.network(), &container]);
    eventually("it answers again", || {
        let done = project.run_at(project.address(&server), &["get", "instances", "-o", "json"]);
        let items = serde_json::from_str(&done.stdout).unwrap_or(Value::Null)["items"].as_array().map_or(0, Vec::len);
        if done.code == 0 && items == 5 { Ok(()) } else { Err(format!("{items} instances; {}", done.stderr)) }
    });
    seen.say("back on the network it answers, with what the other one did meanwhile");
}

/// The leader of the three.
fn etcd_stops(project: &Project, seen: &Seen) {
    let before = project.instances();
    let script = "ETCDCTL_API=3 etcdctl endpoint status --cluster -w json";
    let members: Value = serde_json::from_str(&docker(&["exec", &project.container("etcd1"), "sh", "-c", script]))
        .expect("etcdctl writes JSON");
    let leads = |m: &&Value| m["Status"]["leader"] == m["Status"]["header"]["member_id"];
    let leader = members.as_array().and_then(|all| all.iter().find(leads)).expect("one of them leads");
    let name = leader["Endpoint"].as_str().and_then(|url| url.get(7..12)).expect("http://etcdN:2379").to_owned();
    let container = project.container(&name);
    docker(&["stop", "-t", "5", &container]);
    scale(project, 8);
    untouched(&before, &converged(project, 8));
    seen.say(&format!("{name}, etcd's leader, was stopped: 8 of 8 run, the first 5 untouched"));
    docker(&["start", &container]);
    eventually("etcd is whole again", || {
        let health = "ETCDCTL_API=3 etcdctl endpoint health --cluster > /dev/null 2>&1 && echo whole || true";
        match docker(&["exec", &container, "sh", "-c", health]).trim() {
            "whole" => Ok(()),
            _ => Err("a member is unhealthy".to_owned()),
        }
    });
    seen.say("started again, etcd is whole");
}

/// One after the other, while a new version rolls out.
fn controllers_roll(project: &Project, seen: &Seen) {
    project.apply(&web(8, "v2"));
    for controller in project.containers("controller") {
        docker(&["restart", "-t", "10", &controller]);
        three_take_part(project);
    }
    let after = converged(project, 8);
    assert!(after.iter().all(|instance| instance.version == "v2"), "{after:#?}");
    every_shard_is_owned(project);
    seen.say("all controllers were rolled during a rollout: 8 of 8 run the new version");
}

fn controllers_scale(project: &Project, seen: &Seen) {
    let before = project.instances();
    let run = |count: u8| {
        project.compose(&["up", "-d", "--no-build", "--no-recreate", "--scale", &format!("controller={count}")]);
    };
    run(5);
    eventually("five share the shards", || {
        let members = project.get("members");
        let working = members.iter().filter(|m| m["ready"] == true && m["claims"].as_u64() > Some(0)).count();
        if working == 5 { Ok(()) } else { Err(format!("{members:#?}")) }
    });
    run(3);
    three_take_part(project);
    every_shard_is_owned(project);
    untouched(&before, &converged(project, 8));
    seen.say("controllers were scaled to 5 and back to 3: the shards are shared, nothing touched");
}

/// What runs in a container ends with it; its node comes back with the same instances.
fn agent_crashes(project: &Project, seen: &Seen) {
    let before = project.instances();
    crash(&project.container("agent2"));
    let lost = before.iter().filter(|i| i.node == "agent2").count();
    assert!(lost > 0, "something ran there: {before:#?}");
    eventually("the agent has seen what ended", || {
        let again = project.instances().iter().filter(|i| i.node == "agent2" && i.restarts > 0 && i.ready).count();
        if again == lost { Ok(()) } else { Err(format!("{again} of {lost} are back")) }
    });
    let after = converged(project, 8);
    assert_eq!(names(&before), names(&after), "the same instances, started again");
    seen.say(&format!("agent2 was killed with its {lost} instances: they are back, 8 of 8 run"));
}

/// Declares another number of replicas; again, as a client does who gets no answer.
#[track_caller]
fn scale(project: &Project, replicas: usize) {
    eventually("the declaration is taken", || {
        let done = project.run(&["scale", "service", "web", "--replicas", &replicas.to_string()]);
        if done.code == 0 { Ok(()) } else { Err(done.stderr) }
    });
}

/// Waits until so many are ready; then they run, once each, where the cluster says, and nothing else does.
#[track_caller]
fn converged(project: &Project, replicas: usize) -> Vec<Instance> {
    eventually("as declared", || {
        project.run(&["wait", "service", "web", "--for", "ready", "--timeout", "60s"]);
        let instances = project.instances();
        let ready = instances.iter().filter(|i| i.ready && !i.deleting).count();
        let mut said: Vec<_> = instances.iter().map(|i| (i.node.clone(), i.port)).collect();
        said.sort();
        let run = project.processes();
        match (instances.len(), ready) == (replicas, replicas) && said == run {
            true => Ok(instances),
            false => {
                Err(format!("of {replicas}: {} instances, {ready} ready; said {said:?}, run {run:?}", instances.len()))
            }
        }
    })
}

/// Nobody stopped, replaced or restarted any of these.
#[track_caller]
fn untouched(these: &[Instance], all: &[Instance]) {
    for one in these {
        let found = all.iter().find(|other| other.uid == one.uid);
        assert_eq!(found, Some(one));
    }
}

#[track_caller]
fn three_take_part(project: &Project) {
    eventually("three controllers take part", || match project.controllers() {
        names if names.len() == 3 => Ok(()),
        names => Err(format!("{names:?}")),
    });
}

#[track_caller]
fn every_shard_is_owned(project: &Project) {
    eventually("every shard is owned", || {
        let shards = project.get("shards");
        let orphans = shards.iter().filter(|shard| shard["owner"] == "").count();
        if !shards.is_empty() && orphans == 0 {
            Ok(())
        } else {
            Err(format!("{orphans} of {} have none", shards.len()))
        }
    });
}

/// The name of the controller that leads, which is its container's.
#[track_caller]
fn leader(project: &Project) -> String {
    eventually("one controller leads", || {
        let done = project.run(&["get", "leader", "-o", "json"]);
        let leader: Value = serde_json::from_str(&done.stdout).unwrap_or_default();
        match leader["owner"].as_str() {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => Err(done.stdout),
        }
    })
}

fn is_ready(resource: &Value) -> bool {
    driftless_tests::cluster::condition(resource, "Ready").is_some_and(|c| c["status"] == "True")
}

fn names(instances: &[Instance]) -> Vec<&str> {
    instances.iter().map(|instance| instance.name.as_str()).collect()
}

fn none_of<T: std::fmt::Debug>(left: &[T]) -> Result<(), String> {
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
}

/// Says what was seen, and when.
struct Seen(Instant);

impl Seen {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn say(&self, what: &str) {
        println!("compose {:>6.1}s  {what}", self.0.elapsed().as_secs_f64());
    }
}
