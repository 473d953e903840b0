//! A service that can't work says why, makes no noise, and heals when its manifest does.

use std::time::{Duration, Instant};

use driftless_tests::{Cluster, cluster::condition, command, processes::look_until};
use serde_json::Value;

use crate::manifests;

/// Until it has crashed often enough.
const LOOPS_MAX: Duration = Duration::from_secs(60);
const SAID_MAX: Duration = Duration::from_secs(3);
/// How long the noise is measured, and how many writes it may make: a start that fails costs two to three, and the
/// backoff leaves room for five starts.
const NOISE_TIME: Duration = Duration::from_secs(8);
const NOISE_MAX: usize = 40;

fn ready_message(event: &Value) -> Option<String> {
    let conditions = event["resource"]["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|c| c["type"] == "Ready" && c["status"] == "False")?;
    ready["message"].as_str().map(str::to_owned)
}

#[test]
fn a_bad_command_is_told_in_words_without_noise_and_a_fixed_manifest_heals_it() {
    let cluster = Cluster::start();
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    cluster.apply(&manifests::command("web", 2, "v1", "[/no/such/program]")).ok();
    services.until_json("the status says what is wrong", SAID_MAX, |event| {
        let message = ready_message(event)?;
        (message.contains("/no/such/program") && message.contains("No such file")).then_some(())
    });
    let timed_out = cluster.run(&["wait", "service", "web", "--timeout", "300ms"]).exits(5);
    timed_out.says("/no/such/program");

    let everything = cluster.stream(&["get", "all", "-w", "-o", "json"]);
    let end = Instant::now() + NOISE_TIME;
    let mut writes = 0;
    while everything.next(end.saturating_duration_since(Instant::now())).is_some() {
        writes += 1;
    }
    assert!(writes <= NOISE_MAX, "{writes} writes in {NOISE_TIME:?}");

    cluster.apply_with(manifests::sleeper("web", 2, "v2").as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    assert!(cluster.instances("web").iter().all(|i| i.version == "v2" && i.ready));
}

#[test]
fn a_process_that_exits_is_told_with_its_code_and_its_last_words() {
    let cluster = Cluster::start();
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    cluster.apply(&manifests::command("web", 1, "v1", "[sh, -c, 'echo the disk is made of cheese; exit 7']")).ok();
    services.until_json("the status says how it ended", SAID_MAX, |event| {
        let message = ready_message(event)?;
        (message.contains("exited with code 7") && message.contains("made of cheese")).then_some(())
    });
}

/// Runs for a moment each time, so that it's seen to run.
const CRASHES: &str = "[sh, -c, 'sleep 0.2; echo out of cheese; exit 3']";

#[test]
fn a_crash_loop_is_never_waited_for_with_success_and_its_status_comes_to_rest() {
    let cluster = Cluster::start();
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    let mut apply = cluster.command(&["apply", "-f", "-", "--wait", "--timeout", "6s"]);
    apply.env_remove("RUST_LOG");
    let manifest = manifests::command("web", 1, "v1", CRASHES).replace("stop_grace", "restart: Always, stop_grace");
    let waited = command::run(apply, manifest.as_bytes()).exits(5);
    assert!(!waited.stdout.contains("ready"), "{}", waited.stdout);
    cluster.run(&["wait", "service", "web", "--timeout", "2s"]).exits(5);
    look_until("it's found to loop", LOOPS_MAX, || {
        let instances = cluster.run(&["get", "instances", "-o", "json"]).ok().json();
        (instances["items"][0]["status"]["failures"].as_i64() >= Some(2)).then_some(())
    });

    // It was ready for a moment at its first two starts, and never again.
    let ready = services.ready().into_iter().filter(|line| {
        let event: Value = serde_json::from_str(line).expect("JSON");
        condition(&event["resource"], "Ready").is_some_and(|c| c["status"] == "True")
    });
    assert!(ready.count() <= 4);
    let message = cluster.service("web");
    let message = condition(&message, "Ready").and_then(|c| c["message"].as_str()).unwrap_or_default().to_owned();
    assert!(message.contains("out of cheese") || message.contains("times in a row"), "{message}");
}
