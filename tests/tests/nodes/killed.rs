//! An agent killed in the midst of a start, a check, a stop, a rotation: nothing is lost, doubled or orphaned, and a
//! stopped instance's whole tree is gone, though its members ignore SIGTERM and leave their session.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use driftless_tests::{
    Cluster,
    cluster::{Instance, condition},
    processes::look_until,
    tree,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::watched::LONG;

/// A service each of whose instances is a tree of three that don't hear SIGTERM: `main` in the instance's own session,
/// its child in another one, and that one's, orphaned, in a third.
struct Trees {
    cluster: Cluster,
    /// In the environment of every process of these trees, and of no other.
    variable: String,
    /// Processes of each, while nothing is asked of them.
    members: usize,
}

const MEMBERS: usize = 3;

impl Trees {
    /// `main` is a shell script; `more` goes into the template.
    fn start(main: &str, more: &str) -> Self {
        let cluster = Cluster::of_nodes(&["n1"]);
        let dir = cluster.dir().display();
        let away = "trap '' TERM; (setsid sh -c \"exec sleep 86400\" &); exec sleep 86400";
        let script = format!("trap '' TERM\nsetsid sh {dir}/away.sh &\n{main}\n");
        for (name, text) in [("away.sh", away), ("main.sh", script.as_str())] {
            fs::write(cluster.dir().join(name), text).expect("the directory can be written");
        }
        let manifest = format!(
            "kind: Service
metadata: {{ name: web }}
spec:
  replicas: 0
  template: {{ command: [sh, '{dir}/main.sh'], env: {{ TREES: '{dir}' }}, stop_grace: 0.5s{more} }}
"
        );
        cluster.apply(&manifest).ok();
        let variable = format!("TREES={dir}");
        Self { cluster, variable, members: MEMBERS }
    }

    fn scale(&self, replicas: usize) {
        self.cluster.run(&["scale", "service", "web", "--replicas", &replicas.to_string()]).ok();
    }

    /// SIGKILL; the next one finds what this one left.
    fn next_agent(&mut self) {
        self.cluster.kill_part("n1");
        self.cluster.start_agent("n1");
    }

    fn instance_folders(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.cluster.node_dir("n1").join("instances")).expect("it's there");
        all.map(|entry| entry.expect("it can be read").path()).collect()
    }

    /// Waits until there is such a file in the folder of so many instances.
    #[track_caller]
    fn until_files(&self, name: &str, count: usize) {
        look_until(&format!("{count} have {name}"), LONG, || {
            let there = self.instance_folders().iter().filter(|folder| folder.join(name).exists()).count();
            (there >= count).then_some(())
        });
    }

    /// Waits until of so many of these the stop has come as far as that file, or is over: on a busy machine it may be before
    /// anybody looks.
    #[track_caller]
    fn until_stopping(&self, folders: &[PathBuf], name: &str, count: usize) {
        look_until(&format!("{count} have {name}, or are gone"), LONG, || {
            let come = folders.iter().filter(|folder| folder.join(name).exists() || !folder.exists()).count();
            (come >= count).then_some(())
        });
    }

    /// By run, how many processes of it live.
    fn runs(&self) -> BTreeMap<String, usize> {
        let mut runs = BTreeMap::new();
        tree::members(&self.variable).into_iter().for_each(|member| *runs.entry(member.run).or_default() += 1);
        runs
    }

    /// What is declared is ready, and what runs is one whole tree for each instance and nothing else.
    #[track_caller]
    fn are_exactly(&self, replicas: usize) {
        self.cluster.wait_ready("web", "60s");
        let exact = look_until("one tree for each instance", LONG, || {
            let instances = self.cluster.instances("web");
            let runs = self.runs();
            let is = |i: &Instance| runs.keys().filter(|run| run.starts_with(&format!("{}.", i.uid))).count() == 1;
            let whole = runs.len() == replicas && runs.values().all(|members| *members == self.members);
            (instances.len() == replicas && whole && instances.iter().all(is)).then_some(instances)
        });
        assert!(exact.iter().all(|i| self.cluster.process_of(i).is_alive()));
    }

    /// So many run, and each has a check under way.
    #[track_caller]
    fn are_checked(&self, replicas: usize) {
        look_until("each is being checked", LONG, || {
            let runs = self.runs();
            (runs.len() == replicas && runs.values().all(|members| *members > self.members)).then_some(())
        });
    }

    /// Checks end with the agent that asked, and nothing else does.
    #[track_caller]
    fn are_unchecked(&self) {
        look_until("no check is left", LONG, || self.runs().values().all(|n| *n == self.members).then_some(()));
    }

    /// Nothing is left of them, neither processes nor folders.
    #[track_caller]
    fn are_gone(&self) {
        look_until("no instance is left", LONG, || self.cluster.instances("web").is_empty().then_some(()));
        // Its record goes once the tree is gone, not before.
        assert_eq!(self.runs(), BTreeMap::new());
        look_until("no folder is left", LONG, || self.instance_folders().is_empty().then_some(()));
    }

    fn end(self) {
        self.cluster.run(&["delete", "service", "web", "--timeout", "60s"]).ok();
        self.are_gone();
    }
}

#[test]
fn while_it_starts_instances() {
    let mut trees = Trees::start("exec sleep 86400", "");
    // In the order in which a start makes them.
    for trace in ["lock", "instance.pb", "memory.json", "runs/1/env", "runs/1/supervisor", "runs/1/child"] {
        trees.scale(6);
        trees.until_files(trace, 1);
        trees.next_agent();
        trees.are_exactly(6);
        trees.scale(0);
        trees.are_gone();
    }
    trees.end();
}

#[test]
fn while_it_starts_what_crashed_again() {
    let mut trees = Trees::start("exec sleep 86400", "");
    trees.scale(4);
    trees.are_exactly(4);
    for trace in ["runs/1/exit", "runs/2/env", "runs/3/child"] {
        let before = trees.cluster.instances("web");
        before.iter().for_each(|i| trees.cluster.process_of(i).signal(Signal::KILL));
        trees.until_files(trace, 1);
        trees.next_agent();
        let pids: BTreeSet<i32> = before.iter().map(|i| i.pid).collect();
        look_until("all run anew", LONG, || {
            let now = trees.cluster.instances("web");
            now.iter().all(|i| i.ready && !pids.contains(&i.pid)).then_some(())
        });
        trees.are_exactly(4);
        let uids = |all: &[Instance]| all.iter().map(|i| i.uid.clone()).collect::<Vec<_>>();
        assert_eq!(uids(&trees.cluster.instances("web")), uids(&before), "the same instances, started again");
    }
    trees.end();
}

/// Hears SIGTERM, notes that, and goes on.
const DEAF: &str = "trap 'echo heard > heard' TERM\nwhile :; do sleep 86400 & wait; done";

#[test]
fn while_it_stops_instances() {
    let mut trees = Trees { members: MEMBERS + 1, ..Trees::start(DEAF, "") };
    // The note that it's for good; SIGTERM; the end of the first, when others are still in their grace.
    for trace in ["stop", "work/heard", "runs/1/exit"] {
        trees.scale(4);
        trees.are_exactly(4);
        let folders = trees.instance_folders();
        trees.scale(0);
        trees.until_stopping(&folders, trace, 1);
        trees.next_agent();
        trees.are_gone();
    }
    trees.end();
}

#[test]
fn while_it_stops_instances_and_for_longer_than_that_takes() {
    let mut trees = Trees { members: MEMBERS + 1, ..Trees::start(DEAF, "") };
    trees.scale(4);
    trees.are_exactly(4);
    let folders = trees.instance_folders();
    trees.scale(0);
    trees.until_stopping(&folders, "work/heard", 4);
    trees.cluster.kill_part("n1");
    look_until("their supervisors alone end them", LONG, || trees.runs().is_empty().then_some(()));
    trees.cluster.start_agent("n1");
    trees.are_gone();
    trees.end();
}

/// A check that takes until `free` is there.
const CHECK: &str = "while [ ! -e $TREES/free ]; do sleep 0.02; done";

#[test]
fn while_it_checks_instances() {
    let check = "health: { readiness: { exec: { command: [sh, -c, '${CHECK}'] }, interval: 0.5s, timeout: 60s } }";
    let check = format!(", {}", check.replace("${CHECK}", &CHECK.replace('$', "$$")));
    let mut trees = Trees::start("exec sleep 86400", &check);
    let free = trees.cluster.dir().join("free");
    trees.scale(2);
    trees.are_checked(2);
    // Before they are ready for the first time.
    trees.cluster.kill_part("n1");
    trees.are_unchecked();
    // Themselves, not what is on its way to be one of them, or what is left of a check.
    let born = look_until("each is a whole tree", LONG, || {
        let all = tree::members(&trees.variable);
        (all.len() == 2 * MEMBERS && all.iter().all(|m| m.process.is_running(b"sleep\086400\0"))).then_some(all)
    });
    trees.cluster.start_agent("n1");
    trees.are_checked(2);
    fs::write(&free, "").expect("the directory can be written");
    trees.are_exactly(2);
    assert!(born.iter().all(|m| m.process.is_alive()));

    let before = readiness(&trees.cluster);
    fs::remove_file(&free).expect("it's there");
    trees.are_checked(2);
    trees.cluster.kill_part("n1");
    trees.are_unchecked();
    trees.cluster.start_agent("n1");
    trees.are_checked(2);
    // What an earlier agent saw ready stays so while the first answer is awaited.
    assert_eq!(readiness(&trees.cluster), before);
    fs::write(&free, "").expect("the directory can be written");
    trees.are_exactly(2);
    assert_eq!(readiness(&trees.cluster), before);
    assert!(born.iter().all(|m| m.process.is_alive()));
    trees.end();
}

/// Pid, restarts, and since when each is ready or not.
fn readiness(cluster: &Cluster) -> Vec<(i32, i64, String)> {
    let list = cluster.run(&["get", "instances", "-o", "json"]).ok().json();
    let facts = |i: &Value| {
        let ready = condition(i, "Ready").expect("every instance says whether it's ready");
        let instance = Instance::of(i);
        (instance.pid, instance.restarts, format!("{} {}", ready["status"], ready["lastTransitionTime"]))
    };
    list["items"].as_array().expect("a list").iter().map(facts).collect()
}

/// Writes numbered lines, much and often, until `enough` is there, and then how many those were.
const WRITER: &str = "n=0
while [ ! -e $TREES/enough ]; do seq -f '%0100.0f' $((n + 1)) $((n += 40000)); sleep 0.1; done
echo $n > $TREES/written
exec sleep 86400";
/// As the agent's defaults have it.
const LOG_BYTES: u64 = 10 << 20;
const LOG_FILES: usize = 3;
/// A file exceeds its bound by less than one buffer of the supervisor's.
const LOG_BYTES_OVER: u64 = 16 << 10;

#[test]
fn while_logs_are_rotated() {
    let mut trees = Trees::start(WRITER, "");
    trees.scale(1);
    trees.cluster.wait_ready("web", "60s");
    let before = trees.cluster.instances("web");
    let folder = trees.instance_folders().remove(0);
    let logs: Vec<PathBuf> = ["log.2", "log.1", "log"].iter().map(|n| folder.join("runs/1").join(n)).collect();
    for _ in 0..4 {
        look_until("the agent is there", LONG, || {
            let shown = trees.cluster.run(&["logs", &before[0].name, "--tail", "0"]);
            (shown.code == 0).then_some(())
        });
        // An agent that reads what is rotated away below it.
        let follower = trees.cluster.stream(&["logs", "-f", &before[0].name, "--tail", "0"]);
        follower.next(LONG).expect("more is written");
        let inode = |path: &Path| fs::metadata(path).map_or(0, |m| m.ino());
        // There is none for a moment when it's rotated.
        let newest = || Some(inode(&logs[2])).filter(|inode| *inode != 0);
        let before = look_until("there is a log", LONG, newest);
        look_until("the log is rotated", LONG, || newest().filter(|now| *now != before));
        trees.next_agent();
    }
    fs::write(trees.cluster.dir().join("enough"), "").expect("the directory can be written");
    let written = trees.cluster.dir().join("written");
    let last: u64 =
        look_until("it has written enough", LONG, || fs::read_to_string(&written).ok()?.trim().parse().ok());
    look_until("the last line is kept", LONG, || (numbers(&logs[2]).last() == Some(&last)).then_some(()));
    // From now on nothing is written, or rotated.
    let numbers: Vec<u64> = logs.iter().flat_map(|log| numbers(log)).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "every line once, in order");
    let sizes: Vec<u64> = logs.iter().map(|log| fs::metadata(log).expect("it's kept").len()).collect();
    assert!(sizes.iter().all(|size| *size < LOG_BYTES + LOG_BYTES_OVER), "{sizes:?}");
    assert!(!folder.join("runs/1").join(format!("log.{LOG_FILES}")).exists());
    trees.are_exactly(1);
    assert_eq!(trees.cluster.instances("web"), before);
    let shown = trees.cluster.run(&["logs", &before[0].name, "--tail", "1"]).ok().stdout;
    assert_eq!(shown.trim().trim_start_matches('0'), last.to_string());
    trees.end();
}

fn numbers(log: &Path) -> Vec<u64> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a line is a number")).collect()
}
