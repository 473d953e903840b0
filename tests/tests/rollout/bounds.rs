//! The bounds hold at every moment, whoever dies meanwhile.

use std::time::Duration;

use driftless_tests::{Cluster, processes, watched::Watched};

use crate::manifests::{SLEEPS, SOON, condition, web};

/// Takes its time to go.
const SLOW_TO_GO: &str = r#"[sh, -c, "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done"]"#;

#[test]
fn slow_to_stop_never_means_more_processes_than_the_surge_allows() {
    let cluster = Cluster::start();
    let rollout = "max_surge: 4";
    cluster.apply_with(web(15, "v1", SLOW_TO_GO, rollout).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let mut watched = Watched::start(&cluster, 15, SOON);
    // Several updates in a row don't add up either.
    cluster.apply(&web(15, "v2", SLOW_TO_GO, rollout)).ok();
    watched.until("the second version is under way", |records| records.count(|i| i.version == "v2" && i.ready) > 2);
    cluster.apply(&web(15, "v3", SLOW_TO_GO, rollout)).ok();
    watched.until("the last version is all there is", |records| records.are_all(15, "v3"));
    assert!(watched.most_live <= 19, "once {} existed, those still stopping included", watched.most_live);
    assert!(watched.most_live > 15, "the surge was used");
    assert!(watched.fewest_ready >= 15, "once only {} of 15 were ready", watched.fewest_ready);
}

/// Takes 20 s to go.
const VERY_SLOW_TO_GO: &str = r#"[sh, -c, "trap 'sleep 20; exit 0' TERM; while :; do sleep 0.1; done"]"#;
/// Four waves of those, and as much again on a busy machine.
const FOUR_WAVES: Duration = Duration::from_secs(240);

#[test]
fn twenty_seconds_to_stop_each_never_means_more_processes_than_the_surge_allows() {
    let cluster = Cluster::start();
    let version = |version| {
        web(15, version, VERY_SLOW_TO_GO, "max_surge: 4, min_ready: 0s").replace("stop_grace: 5s", "stop_grace: 60s")
    };
    cluster.apply_with(version("v1").as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let mut watched = Watched::start(&cluster, 15, FOUR_WAVES);
    cluster.apply(&version("v2")).ok();
    let mut most = 0;
    // Each new one is a moment at which their processes may be too many.
    for new in 1..=15 {
        watched
            .until("one more is of the new version", |records| records.count(|i| i.version == "v2" && i.ready) >= new);
        most = most.max(shells(&cluster));
    }
    watched.until("the old ones are gone", |records| records.are_all(15, "v2"));
    assert!(watched.most_live <= 19, "once {} existed, those still stopping included", watched.most_live);
    assert!((16..=19).contains(&most), "once {most} processes were alive");
    assert!(watched.fewest_ready >= 15, "once only {} of 15 were ready", watched.fewest_ready);
}

/// The instances' own processes, by their command. What one of them just forked, and is about to be a `sleep`, is none.
fn shells(cluster: &Cluster) -> usize {
    let read = |pid: i32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let is_shell = |pid| read(pid, "cmdline").starts_with(b"sh\0-c\0trap 'sleep 20");
    let parent = |pid| {
        let status = String::from_utf8_lossy(&read(pid, "status")).into_owned();
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok())
    };
    let own = |pid| is_shell(pid) && parent(pid).is_some_and(|parent| !is_shell(parent));
    processes::below(&cluster.data_dir()).into_iter().filter(|p| own(p.pid)).count()
}

#[test]
fn paused_in_the_middle_it_goes_on_under_another_controller_and_doubles_nothing() {
    let mut cluster = Cluster::of_parts("memory");
    // The deadline doesn't run while it's paused.
    let rollout = "max_surge: 1, progress_deadline: 20s";
    cluster.apply_with(web(4, "v1", SLEEPS, rollout).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let mut watched = Watched::start(&cluster, 4, SOON);
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    cluster.apply(&web(4, "v2", SLEEPS, rollout)).ok();
    watched.until("it is in the middle", |records| records.count(|i| i.version == "v2" && i.ready) >= 1);
    cluster.run(&["rollout", "pause", "web"]).ok();
    services.until_json("it says that it is paused", SOON, |event| {
        (condition(event, "Progressing")?.1 == "Paused").then_some(())
    });
    let why = cluster.run(&["why", "service", "web"]).ok().stdout;
    assert!(why.contains("Paused"), "{why}");

    cluster.kill_part("c1");
    cluster.start_controller("c2");
    cluster.run(&["rollout", "resume", "web"]).ok();
    watched.until("it ends", |records| records.are_all(4, "v2"));
    cluster.wait_ready("web", "60s");
    assert_eq!(watched.made.len(), 4, "{:?}", watched.made);
    assert!(watched.made.values().all(|times| *times == 1), "{:?}", watched.made);
    assert!(watched.fewest_ready >= 4 && watched.most_live <= 5);
}
