//! Programs that misbehave: contained, so that what runs beside them doesn't notice; stopped, with all of their tree; and
//! reported as what they did.

use std::{collections::BTreeSet, fs, path::PathBuf};

use driftless_tests::{
    Cluster,
    cluster::{Instance, condition},
    http,
    processes::{Process, look_until},
    tree,
};
use serde_json::Value;

use crate::watched::{LONG, status};

const GRACE: &str = "0.5s";

/// A cluster of one node, and a program that behaves, beside which others don't.
struct Beside {
    cluster: Cluster,
    /// In the environment of all that don't behave.
    variable: String,
    well: Instance,
}

impl Beside {
    fn start() -> Self {
        let cluster = Cluster::of_nodes(&["n1"]);
        let web = "kind: Service
metadata: { name: web }
spec:
  replicas: 1
  template:
    command: [python3, -m, http.server, $(PORT), --bind, 127.0.0.1]
    ports: [{ name: http }]
    health: { readiness: { http: { path: / }, timeout: 20s }, liveness: { http: { path: / }, timeout: 20s } }
";
        cluster.apply_with(web.as_bytes(), &["--wait"]).ok();
        let variable = format!("BESIDE={}", cluster.dir().display());
        let well = cluster.instances("web").remove(0);
        Self { cluster, variable, well }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cluster.dir().join(name)
    }

    /// Runs this shell script; `more` goes into the template.
    fn run(&self, script: &str, more: &str) {
        let file = self.path("script.sh");
        fs::write(&file, script).expect("the directory can be written");
        let dir = self.cluster.dir().display();
        let manifest = format!(
            "kind: Service
metadata: {{ name: bad }}
spec:
  replicas: 1
  template: {{ command: [sh, '{}'], env: {{ BESIDE: '{dir}' }}, stop_grace: {GRACE}{more} }}
",
            file.display()
        );
        self.cluster.apply(&manifest).ok();
    }

    #[track_caller]
    fn status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        status(&self.cluster, what, "bad", wanted)
    }

    fn members(&self) -> BTreeSet<Process> {
        tree::members(&self.variable).into_iter().map(|m| m.process).collect()
    }

    #[track_caller]
    fn until_members(&self, what: &str, wanted: impl Fn(usize) -> bool) -> BTreeSet<Process> {
        look_until(what, LONG, || Some(self.members()).filter(|members| wanted(members.len())))
    }

    /// What was beside it goes on as it was, and of what misbehaved nothing is left once it's stopped.
    #[track_caller]
    fn stops_unnoticed(self) {
        assert_eq!(http::get(self.well.port).expect("it serves"), 200);
        self.cluster.run(&["delete", "service", "bad", "--timeout", "60s"]).ok();
        assert_eq!(self.members(), BTreeSet::new());
        assert_eq!(self.cluster.instances("web"), [self.well]);
    }
}

/// Why, where it came up against one.
fn limits_reached(status: &Value) -> Option<String> {
    let resource = serde_json::json!({ "status": status });
    condition(&resource, "LimitsReached").map(|c| c["reason"].as_str().unwrap_or_default().to_owned())
}

/// Whether limits can be enforced here; where they can't, that is said instead.
fn enforced(status: &Value) -> bool {
    let resource = serde_json::json!({ "status": status });
    let limited = condition(&resource, "Limited").cloned();
    if let Some(limited) = &limited {
        eprintln!("NOT SEEN: nothing on this machine enforces limits: {}", limited["message"]);
        assert_eq!((&limited["status"], &limited["reason"]), (&"False".into(), &"NotEnforced".into()));
    }
    limited.is_none()
}

#[test]
fn a_fork_bomb_is_held_by_its_limit() {
    let beside = Beside::start();
    let file = beside.path("bomb.py");
    let bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n";
    fs::write(&file, bomb).expect("the directory can be written");
    // The CPU time too: all of these would take it from their neighbours.
    let limits = ", resources: { limits: { pids: 50, cpu: 200m } }";
    beside.run(&format!("exec python3 {}", file.display()), limits);
    let status = beside.status("it runs", |s| s["phase"] == "Running");
    if enforced(&status) {
        beside.until_members("it has grown up to its limit", |members| members > 40);
        for _ in 0..20 {
            assert!(beside.members().len() <= 50);
        }
        let bomb = beside.status("it's said to be held", |s| limits_reached(s).is_some());
        assert_eq!((&bomb["ready"], limits_reached(&bomb)), (&true.into(), Some("PidsLimit".into())), "{bomb}");
        let name = &beside.cluster.instances("bad")[0].name;
        let why = beside.cluster.run(&["why", "instance", name]).ok().stdout;
        // One, or a rounded number.
        assert!(why.contains("it was refused "), "{why}");
    }
    beside.stops_unnoticed();
}

#[test]
fn a_gigabyte_of_output_leaves_a_few_megabytes() {
    let beside = Beside::start();
    let out = beside.path("written");
    beside.run(&format!("head -c 1073741824 /dev/zero\necho\necho end > {}\nexec sleep 86400", out.display()), "");
    look_until("it has written it all", LONG, || fs::read_to_string(&out).is_ok().then_some(()));
    let bad = beside.cluster.instances("bad").remove(0);
    assert_eq!((bad.ready, bad.restarts), (true, 0));
    let runs = beside.cluster.node_dir("n1").join("instances").join(format!("default_{}_{}", bad.name, bad.uid));
    let logs = fs::read_dir(runs.join("runs/1")).expect("it's there").map(|f| f.expect("it can be read"));
    let total: u64 = logs.map(|log| log.metadata().map_or(0, |m| m.len())).sum();
    assert!(total < (31 << 20), "{total} bytes are kept");
    beside.stops_unnoticed();
}

#[test]
fn one_that_ignores_sigterm_and_one_that_closed_all_it_had_are_killed() {
    let beside = Beside::start();
    beside.run("trap '' TERM\n(exec sleep 86400) &\nexec <&- >&- 2>&-\nexec sleep 86400", "");
    beside.until_members("both run", |members| members == 2);
    let status = beside.status("it is ready", |s| s["ready"] == true);
    assert_eq!(status["restarts"], Value::Null);
    beside.stops_unnoticed();
}

#[test]
fn what_goes_away_in_sessions_of_its_own_goes_with_it() {
    let beside = Beside::start();
    // The second one forgets by what it could be known; its command line is no other's.
    let seconds = (86400 + std::process::id()).to_string();
    let away = |how: &str, seconds: &str| format!("({how} sh -c \"(setsid sleep {seconds} &)\" &)\n");
    let script = away("setsid", "86400") + &away("setsid env -i", &seconds) + "exec sleep 86400";
    beside.run(&script, "");
    beside.until_members("the known ones run", |members| members == 2);
    let hidden = look_until("the hidden one runs", LONG, || sleeper_of(&seconds));
    beside.stops_unnoticed();
    assert!(!hidden.is_alive());
}

fn sleeper_of(seconds: &str) -> Option<Process> {
    let pids = fs::read_dir("/proc").expect("/proc").filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    let command = format!("sleep\0{seconds}\0");
    let is = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c == command.as_bytes());
    pids.into_iter().find(is).and_then(Process::find)
}

#[test]
fn one_that_daemonises_has_ended_and_its_daemon_with_it() {
    let beside = Beside::start();
    beside.run("(setsid sh -c \"(setsid sleep 86400 &)\" &)\nsleep 0.2\nexit 4", ", restart: Never");
    let status = beside.status("it has ended", |s| s["phase"] == "Failed");
    assert_eq!((&status["lastExit"]["code"], &status["lastExit"]["reason"]), (&4.into(), &"Error".into()), "{status}");
    assert_eq!(beside.members(), BTreeSet::new());
    beside.stops_unnoticed();
}

#[test]
fn one_that_needs_more_memory_than_its_limit_is_said_to_have() {
    let beside = Beside::start();
    let hog = "exec python3 -c \"x = bytearray(512 << 20); import time; time.sleep(86400)\"";
    beside.run(hog, ", restart: Never, resources: { limits: { memory: 64Mi } }");
    let status = beside.status("it was killed or runs", |s| s["phase"] == "Failed" || s["ready"] == true);
    if enforced(&status) {
        let status = beside.status("it was killed", |s| s["phase"] == "Failed");
        let exit = &status["lastExit"];
        assert_eq!((&exit["reason"], &exit["signal"]), (&"OutOfMemory".into(), &9.into()), "{status}");
        let ready = condition(&serde_json::json!({ "status": status }), "Ready").cloned().unwrap_or_default();
        assert!(ready["message"].as_str().is_some_and(|m| m.contains("limits.memory")), "{ready}");
    }
    beside.stops_unnoticed();
}

/// Control groups of version 2 go whole: then it has ended as above, and is started again.
#[test]
fn one_that_loses_a_child_for_want_of_memory_is_said_to_have() {
    let beside = Beside::start();
    let hog = "python3 -c \"x = bytearray(512 << 20)\" || echo lost\nexec sleep 86400";
    beside.run(hog, ", resources: { limits: { memory: 64Mi } }");
    let is_told = |s: &Value| limits_reached(s).is_some() || s["lastExit"]["reason"] == "OutOfMemory";
    let status = beside.status("it runs", |s| s["phase"] == "Running");
    if enforced(&status) {
        let status = beside.status("it lost a child, or ended with it", is_told);
        let told = limits_reached(&status);
        assert!(told.is_none_or(|reason| reason == "MemoryLimit"), "{status}");
    }
    beside.stops_unnoticed();
}
