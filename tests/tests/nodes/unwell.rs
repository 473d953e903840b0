//! What is told of work that isn't well: how it ended, what it wrote last, which check fails, which limit isn't enforced.

use std::fs;

use driftless_tests::{Cluster, cluster::condition, command::binary, processes::look_until, root, tree};
use serde_json::{Value, json};

use crate::watched::{LONG, status};

fn shell(name: &str, script: &str, more: &str) -> String {
    format!(
        "kind: Service
metadata: {{ name: {name} }}
spec: {{ replicas: 1, template: {{ command: [sh, -c, {script:?}], stop_grace: 1s{more} }} }}
---
"
    )
}

/// The message of one of its conditions.
fn message(status: &Value, name: &str) -> String {
    let found = condition(&json!({ "status": status }), name).cloned().unwrap_or_default();
    found["message"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn how_it_ended_and_what_it_wrote_last() {
    let cluster = Cluster::of_nodes(&["n1"]);
    let count = cluster.dir().join("count");
    let third = format!("echo >> {0}; test $(wc -l < {0}) = 3", count.display());
    let manifests = [
        shell("fails", "echo reading its settings; echo no such file >&2; exit 3", ""),
        // Dollars are the template's own until they are doubled.
        shell("crashes", "kill -SEGV $$$$", ", restart: Never"),
        shell("third", &third.replace('$', "$$"), ", restart: OnFailure"),
    ];
    cluster.apply(&manifests.concat()).ok();

    let fails = status(&cluster, "it backs off", "fails", |s| s["phase"] == "BackOff");
    assert_eq!((&fails["lastExit"]["code"], &fails["lastExit"]["reason"]), (&3.into(), &"Error".into()));
    let said = message(&fails, "Ready");
    assert!(said.starts_with("it exited with code 3; starts again at "), "{said}");
    assert!(said.ends_with("; it wrote last: reading its settings / no such file"), "{said}");
    look_until("its service says so too", LONG, || {
        let service = cluster.service("fails");
        service["status"]["conditions"].to_string().contains("exited with code 3: no such file").then_some(())
    });

    let crashes = status(&cluster, "it has failed", "crashes", |s| s["phase"] == "Failed");
    assert_eq!((&crashes["lastExit"]["signal"], &crashes["lastExit"]["code"]), (&11.into(), &Value::Null));
    assert_eq!((&crashes["lastExit"]["reason"], &crashes["restarts"]), (&"Killed".into(), &Value::Null));
    assert_eq!(message(&crashes, "Ready"), "it was ended by signal 11");

    let third = status(&cluster, "it has finished", "third", |s| s["phase"] == "Finished");
    assert_eq!((&third["restarts"], &third["lastExit"]["code"]), (&2.into(), &0.into()), "{third}");
}

#[test]
fn which_check_fails_and_what_came_of_it() {
    let cluster = Cluster::of_nodes(&["n1"]);
    let alive = cluster.dir().join("alive");
    fs::write(&alive, "").expect("the directory can be written");
    // One that takes long on a busy machine hasn't failed.
    let exec = |script: &str| {
        format!("exec: {{ command: [sh, -c, '{script}'] }}, interval: 0.1s, timeout: 20s, failure_threshold: 2")
    };
    let liveness = exec(&format!("test -e {} || {{ echo it is not there; exit 1; }}", alive.display()));
    let manifests = [
        shell("alive", "exec sleep 86400", &format!(", health: {{ liveness: {{ {liveness} }} }}")),
        shell("starting", "exec sleep 86400", &format!(", health: {{ startup: {{ {} }} }}", exec("exit 1"))),
    ];
    cluster.apply(&manifests.concat()).ok();

    let starting = status(&cluster, "it backs off", "starting", |s| s["phase"] == "BackOff");
    assert_eq!((&starting["lastExit"]["reason"], &starting["lastExit"]["signal"]), (&"Unhealthy".into(), &15.into()));
    assert_eq!(message(&starting, "Healthy"), "its startup check never passed in 2 tries");

    status(&cluster, "it is well", "alive", |s| s["ready"] == true);
    fs::remove_file(&alive).expect("it's there");
    let unwell = status(&cluster, "it was started anew, and stopped again", "alive", |s| s["phase"] == "BackOff");
    assert_eq!(unwell["lastExit"]["reason"], "Unhealthy", "{unwell}");
    let expected = "its liveness check failed 2 times: sh: exited with code 1: it is not there";
    assert_eq!(message(&unwell, "Healthy"), expected);
    fs::write(&alive, "").expect("the directory can be written");
    status(&cluster, "it is well again", "alive", |s| s["ready"] == true);
}

/// A server of our own is one that speaks the gRPC health protocol.
#[test]
fn a_grpc_server_is_asked_by_the_health_protocol() {
    let cluster = Cluster::of_nodes(&["n1"]);
    let service = |name: &str, asked: &str| {
        format!(
            "kind: Service
metadata: {{ name: {name} }}
spec:
  replicas: 1
  template:
    command: ['{}', server, --listen, '127.0.0.1:$(PORT)', --store, memory]
    ports: [{{ name: grpc }}]
    health: {{ readiness: {{ grpc: {{ port: grpc{asked} }}, timeout: 20s }} }}
---
",
            binary().display()
        )
    };
    cluster.apply(&(service("served", "") + &service("unknown", ", service: nobody.Serves"))).ok();
    cluster.wait_ready("served", "60s");
    let unknown = status(&cluster, "it is refused", "unknown", |s| message(s, "Ready").contains("NotFound"));
    assert_eq!((&unknown["phase"], &unknown["ready"]), (&"Running".into(), &Value::Null), "{unknown}");
}

#[test]
fn limits_that_nothing_enforces_are_said_to_be_so() {
    if !root::may("hide control groups from a process") {
        return;
    }
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.kill_part("n1");
    cluster.start_agent_without_cgroups("n1");
    let mark = format!(", env: {{ TREE: '{}' }}", cluster.dir().display());
    let limits = format!(", resources: {{ limits: {{ memory: 64Mi, cpu: 500m, pids: 20 }} }}{mark}");
    let manifest = shell("limited", "(setsid sleep 86400 &) ; exec sleep 86400", &limits);
    let applied = cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let limited = status(&cluster, "it runs", "limited", |s| s["ready"] == true);
    let expected = "this node can't enforce limits of memory, cpu, pids: no control group can be made for them";
    assert_eq!(message(&limited, "Limited"), expected);
    let name = &cluster.instances("limited")[0].name;
    applied.says(&format!("warning: service/limited: {name}: on n1: {expected}"));
    // What isn't limited is stopped whole all the same.
    let variable = format!("TREE={}", cluster.dir().display());
    look_until("both run", LONG, || (tree::members(&variable).len() == 2).then_some(()));
    cluster.run(&["delete", "service", "limited", "--timeout", "60s"]).ok();
    assert_eq!(tree::members(&variable).len(), 0);
}
