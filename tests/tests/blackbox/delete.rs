//! What is deleted is gone: the whole tree of processes, the records, and what was on disk.

use std::{path::Path, time::Duration};

use driftless_tests::{
    Cluster,
    processes::{self, look_until},
};

use crate::manifests;

/// A tree that doesn't want to go: a child in a session of its own, one that ignores SIGTERM, and one of one.
const STUBBORN: &str = r#"[sh, -c, "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 86401 & exec sleep 86402' & (trap '' TERM; exec sleep 86403) & wait"]"#;

fn sleepers(cluster: &Cluster) -> Vec<processes::Process> {
    let marked = |pid: i32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains("8640")
    };
    processes::below(&cluster.data_dir()).into_iter().filter(|p| marked(p.pid)).collect()
}

#[test]
fn every_process_of_the_tree_is_gone_and_nothing_is_left_but_logs() {
    let cluster = Cluster::start();
    cluster.apply_with(manifests::command("tree", 1, "v1", STUBBORN).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
    let tree = look_until("the tree grows", Duration::from_secs(30), || {
        let found = sleepers(&cluster);
        let sleeps = |p: &processes::Process| {
            std::fs::read_to_string(format!("/proc/{}/comm", p.pid)).is_ok_and(|c| c.trim() == "sleep")
        };
        (found.iter().filter(|p| sleeps(p)).count() == 3).then_some(found)
    });
    let uid = cluster.instances("tree")[0].uid.clone();

    cluster.run(&["delete", "service", "tree", "--timeout", "60s"]).ok();
    assert!(tree.iter().all(|p| !p.is_alive()), "{:?}", tree.iter().filter(|p| p.is_alive()).collect::<Vec<_>>());
    assert!(sleepers(&cluster).is_empty());
    cluster.run(&["get", "service", "tree"]).exits(3);
    assert!(cluster.instances("tree").is_empty());
    // After its record, which goes with the last of its processes.
    look_until("nothing is left on disk but logs", Duration::from_secs(20), || {
        files_below(&cluster.data_dir(), &uid).iter().all(|path| path.contains("/logs/")).then_some(())
    });
    // Gone is gone: once more is no failure.
    cluster.run(&["delete", "service", "tree"]).ok();
}

/// Files with that uid in their path.
fn files_below(dir: &Path, uid: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, uid));
        } else if path.to_string_lossy().contains(uid) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn who_follows_a_log_reads_its_end_when_the_instance_is_deleted() {
    let cluster = Cluster::start();
    let command = "[sh, -c, 'trap \"echo good bye; exit 0\" TERM; echo hello; while :; do sleep 0.1; done']";
    cluster.apply_with(manifests::command("web", 1, "v1", command).as_bytes(), &["--wait"]).ok();
    let logs = cluster.stream(&["logs", "-f", &cluster.instances("web")[0].name]);
    let said = |words: &str| logs.until(words, Duration::from_secs(20), |line| (line == words).then_some(()));
    said("hello");
    cluster.run(&["delete", "service", "web"]).ok();
    said("good bye");
    logs.ends(Duration::from_secs(20));
}
