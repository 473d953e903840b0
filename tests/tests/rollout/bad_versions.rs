//! A version that can't work takes nothing down that does, and goes as it came.

use driftless_tests::{Cluster, watched::Watched};

use crate::manifests::{BROKEN, SLEEPS, SOON, condition, web};

#[test]
fn a_bad_version_stops_at_the_surge_misses_its_deadline_and_is_rolled_back() {
    let cluster = Cluster::start();
    // What works may take longer than that on a busy machine.
    let patient = "max_surge: 1, max_unavailable: 0, progress_deadline: 60s, auto_rollback: true";
    // Long enough to find out that it can't be started, which is told with it.
    let rollout = patient.replace("60s", "5s");
    cluster.apply_with(web(5, "v1", SLEEPS, patient).as_bytes(), &["--wait"]).ok();
    let old = cluster.instances("web");
    let mut watched = Watched::start(&cluster, 5, SOON);
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);

    let failed = cluster.apply_with(web(5, "v2", BROKEN, &rollout).as_bytes(), &["--wait", "--timeout", "60s"]);
    failed.exits(7).says("rolled back from v2 to v1 because no progress within 5s").says("/no/such/program");
    watched.until("one of the new version was tried", |records| records.count(|i| i.version == "v2") == 1);
    services.until_json("the deadline is missed", SOON, |event| {
        (condition(event, "Progressing")? == ("False", "DeadlineExceeded")).then_some(())
    });
    services.until_json("the service says that it went back", SOON, |event| {
        (condition(event, "Ready")? == ("False", "RolledBack")).then_some(())
    });
    watched.until("the bad one is gone", |records| records.are_all(5, "v1"));
    assert!(watched.fewest_ready == 5, "once only {} of 5 were ready", watched.fewest_ready);
    assert!(watched.most_live <= 6, "once {} existed", watched.most_live);
    assert_eq!(cluster.instances("web"), old, "nobody touched what worked");
    let status = cluster.run(&["rollout", "status", "web"]).exits(7).says("rolled back from v2 to v1");
    assert!(status.stdout.starts_with("service/web: version v1, 5 instances"), "{}", status.stdout);
    let shown = cluster.run(&["get", "service", "web"]).ok().stdout;
    assert!(shown.contains(" v1 ") && shown.contains("RolledBack") && !shown.contains("v2"), "{shown}");
    assert!(cluster.run(&["why", "service", "web"]).ok().stdout.contains("blocked (RolledBack)"));

    // A fix is tried again, although the version before was given up.
    cluster.apply_with(web(5, "v3", SLEEPS, patient).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    // The last of the others may still be stopping.
    assert!(cluster.instances("web").iter().filter(|i| !i.deleting).all(|i| i.version == "v3"));
}

#[test]
fn a_bad_version_is_reverted_by_hand_and_what_worked_is_still_the_same() {
    let cluster = Cluster::start();
    let rollout = "progress_deadline: 5s";
    cluster.apply_with(web(5, "v1", SLEEPS, "").as_bytes(), &["--wait"]).ok();
    let old = cluster.instances("web");
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);

    let failed = cluster.apply_with(web(5, "v2", BROKEN, rollout).as_bytes(), &["--wait", "--timeout", "60s"]);
    failed.exits(7).says("no progress within 5s").says("/no/such/program");
    services.until_json("the deadline is missed", SOON, |event| {
        (condition(event, "Progressing")? == ("False", "DeadlineExceeded")).then_some(())
    });
    cluster.run(&["rollout", "undo", "web"]).ok();
    cluster.wait_ready("web", "60s");
    let mut now = cluster.instances("web");
    now.retain(|i| !i.deleting);
    assert_eq!(now, old, "they were never stopped");
}

#[test]
fn three_bad_updates_in_a_row_leave_all_but_one_ready_and_a_fix_heals_them() {
    let cluster = Cluster::start();
    let rollout = "max_surge: 1, max_unavailable: 1";
    cluster.apply_with(web(5, "v1", SLEEPS, rollout).as_bytes(), &["--wait"]).ok();
    let mut watched = Watched::start(&cluster, 5, SOON);
    for version in ["v2", "v3", "v4"] {
        cluster.apply(&web(5, version, BROKEN, rollout)).ok();
        watched.until("it is tried", |records| records.count(|i| i.version == version) > 0);
    }
    // Unready ones are replaced first: in the end only the last bad version is tried beside what works.
    watched.until("it comes to a standstill", |records| {
        records.count(|i| i.version == "v4") == 2 && records.count(|i| i.version == "v1" && i.ready) == 4
    });
    assert!(watched.fewest_ready >= 4, "once only {} of 5 were ready", watched.fewest_ready);
    assert!(watched.most_live <= 6, "once {} existed", watched.most_live);

    cluster.apply(&web(5, "v5", SLEEPS, rollout)).ok();
    watched.until("the fix heals it", |records| records.are_all(5, "v5"));
    assert!(watched.fewest_ready >= 4, "once only {} of 5 were ready", watched.fewest_ready);
    assert!(watched.most_live <= 6, "once {} existed", watched.most_live);
}

#[test]
fn a_version_that_starts_and_then_crashes_takes_nothing_down_that_works() {
    let cluster = Cluster::start();
    cluster.apply_with(web(5, "v1", SLEEPS, "").as_bytes(), &["--wait"]).ok();
    let old = cluster.instances("web");
    let mut watched = Watched::start(&cluster, 5, SOON);
    // Nothing checks it, and it does run: it takes a moment to find out.
    cluster.apply(&web(5, "v2", "[sh, -c, 'sleep 0.3; exit 1']", "")).ok();
    watched.until("it has crashed again and again", |records| {
        records.count(|i| i.version == "v2" && i.restarts >= 2) == 1
    });
    assert!(watched.fewest_ready == 5, "once only {} of 5 were ready", watched.fewest_ready);
    assert_eq!(watched.made.len(), 1, "only one was ever tried: {:?}", watched.made);
    let mut now = cluster.instances("web");
    now.retain(|i| i.version == "v1");
    assert_eq!(now, old);
}
