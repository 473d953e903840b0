//! SIGKILL before each thing in turn that an agent's driver, or a supervisor, does on disk or to a process: the next agent
//! finds all there is, once, and can bring it to its end; nothing is left then but the logs.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use agent::driver::{Driver, Found, FoundRun, How, Id, Launch, LogPart, StartError, Stop, process::Process};
use api::v1;
use futures::StreamExt;

use crate::world::*;

/// Where the victim lives, which is this test again, run by itself.
const PLACE: &str = "DRIFTLESS_TEST_LIFE";
/// Runs of a life; the last of them is stopped.
const RUNS: u64 = 3;
/// What changes something for others. Opened is also what is only read, which does no harm.
const CALLS: [&str; 14] = [
    "openat",
    "write",
    "mkdir",
    "rename",
    "unlink",
    "unlinkat",
    "rmdir",
    "fsync",
    "fdatasync",
    "flock",
    "clone",
    "clone3",
    "vfork",
    "pidfd_send_signal",
];
/// Of one call, far more than there are.
const STEPS_MAX: u32 = 1_000;
/// Lives at the same time.
const AT_ONCE: usize = 4;

/// The how manieth of which call, from 1.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Step {
    call: &'static str,
    number: u32,
}

impl Step {
    /// For strace.
    fn injection(self) -> String {
        format!("inject={}:signal=SIGKILL:when={}", self.call, self.number)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call, self.number)
    }
}

/// All steps in turn, whoever takes them.
struct Steps {
    calls: &'static [&'static str],
    /// Which call, and of it the next number.
    next: Mutex<(usize, u32)>,
    taken: AtomicU32,
}

impl Steps {
    fn new(calls: &'static [&'static str]) -> Self {
        Self { calls, next: Mutex::new((0, 1)), taken: AtomicU32::new(0) }
    }

    /// Lives them all, several at a time; how many there were. `life` says whether it was killed.
    fn live(calls: &'static [&'static str], life: impl AsyncFn(Step) -> bool + Sync) -> u32 {
        let steps = Self::new(calls);
        let lives = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            while let Some(step) = steps.next() {
                match runtime.block_on(life(step)) {
                    true => drop(steps.taken.fetch_add(1, Ordering::Relaxed)),
                    false => steps.over(step),
                }
            }
        };
        thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(lives))));
        steps.taken.into_inner()
    }

    fn next(&self) -> Option<Step> {
        let mut next = self.next.lock().unwrap();
        let (call, number) = *next;
        assert!(number < STEPS_MAX, "there is no end of steps");
        next.1 += 1;
        self.calls.get(call).map(|call| Step { call, number })
    }

    /// There are fewer of that call.
    fn over(&self, step: Step) {
        let mut next = self.next.lock().unwrap();
        if self.calls.get(next.0) == Some(&step.call) {
            *next = (next.0 + 1, 1);
        }
    }
}

/// Says something, notes that it ran, and ends by itself but for the last.
fn program(world: &World, run: u64) -> Launch {
    let ran = world.path("ran").display().to_string();
    let uid = world.dir.file_name().and_then(|name| name.to_str()).expect("it has a name").replace('.', "life-");
    let text = format!(
        "echo words of ${{DRIFTLESS_RUN##*.}}; echo ${{DRIFTLESS_RUN##*.}} >> {ran}; \
         [ ${{DRIFTLESS_RUN##*.}} != {RUNS} ] || exec sleep 60"
    );
    let mut launch = named(script(&text), &uid);
    launch.memory.run = run;
    launch
}

/// As an agent has it done.
async fn live(world: &World, driver: &Process) {
    for run in 1..RUNS {
        assert_eq!(exit(driver.start(program(world, run)).await.unwrap()).await.how, How::Code(0));
    }
    let last = program(world, RUNS);
    let started = driver.start(last.clone()).await.unwrap();
    driver.note_ready(&last.id, true).await.unwrap();
    until(|| ran(world).contains(&RUNS).then_some(())).await;
    driver.note_stop(&last.id, true).await.unwrap();
    stop(driver, &last, started).await;
    driver.forget(&last.id).await.unwrap();
}

/// The runs whose programs ran, in order.
fn ran(world: &World) -> Vec<u64> {
    let text = fs::read_to_string(world.path("ran")).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// The victim, where it's told so: then all that its driver does is done by one thread, the one that it names.
#[test]
fn a_life_leaves_nothing_but_its_logs() {
    let place = std::env::var_os(PLACE);
    let world = place.as_ref().map_or_else(World::new, |dir| World::at(Path::new(dir)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let named = place.is_some();
        let config = world.config();
        let driver = tokio::task::spawn_blocking(move || {
            if named {
                // SAFETY: takes no pointers.
                println!("\nvictim {}", unsafe { libc::syscall(libc::SYS_gettid) });
                std::io::stdin().read_line(&mut String::new()).unwrap();
            }
            Process::new(config).unwrap()
        });
        live(&world, &driver.await.unwrap()).await;
    });
    assert_eq!(ran(&world), [1, 2, 3]);
    nothing_is_left(&world);
}

/// Lives in that world until its step of that number. False: it had no such step.
fn killed_at(world: &World, step: Step) -> bool {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::a_life_leaves_nothing_but_its_logs", "--nocapture"])
        .env(PLACE, &world.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(victim.stdout.take().unwrap()).lines();
    let thread = said.find_map(|line| line.unwrap().strip_prefix("victim ").map(str::to_owned)).expect("it says so");
    let mut tracer = trace(&thread, step);
    victim.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let ended = victim.wait().unwrap();
    tracer.wait().unwrap();
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    assert!(ended.success() || ended.signal() == Some(libc::SIGKILL), "at {step}: {ended}: {rest:?}");
    !ended.success()
}

/// Returns once it would see everything.
fn trace(thread: &str, step: Step) -> Child {
    let mut tracer = Command::new("strace")
        .args(["-o", "/dev/null", "-e", &format!("trace={}", step.call), "-e", &step.injection(), "-p", thread])
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace is there (scripts/setup.sh test)");
    let mut said = String::new();
    BufReader::new(tracer.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("attached"), "{said}");
    tracer
}

/// What the next agent sees, and does.
async fn is_brought_to_its_end(world: &World, step: Step) {
    let driver = world.driver();
    let mut found = driver.observe().await.unwrap();
    assert_eq!(
        found.len(),
        entries(&world.path("data/instances")).len(),
        "killed at {step}: every folder is understood"
    );
    let mark = format!("DRIFTLESS_RUN={}.", program(world, 1).id.uid);
    match found.pop() {
        None => {
            assert_eq!(marked(&mark), Vec::<i32>::new(), "killed at {step}");
            assert!([0, RUNS as usize].contains(&ran(world).len()), "killed at {step}: it had not begun, or was over");
        }
        Some(found) => ends(world, &driver, found, step, &mark).await,
    }
    let times = ran(world);
    let once: BTreeSet<u64> = times.iter().copied().collect();
    assert_eq!(once.len(), times.len(), "killed at {step}: {times:?} ran");
    assert_eq!(marked(&mark), Vec::<i32>::new(), "killed at {step}");
    let kept = logs(world);
    for run in times.iter().rev().take(2) {
        assert!(kept.contains(&format!("words of {run}\n")), "killed at {step}: {kept:?} is kept of {times:?}");
    }
    drop(driver);
    drop(world.driver());
    nothing_is_left(world);
}

/// Goes on with it as an agent does: what isn't finished is started again, then it's stopped and forgotten.
async fn ends(world: &World, driver: &Process, found: Found, step: Step, mark: &str) {
    let mut next = found.memory.run;
    let (id, stopped) = (program(world, 1).id, found.stop);
    match told(driver, &id, found.run).await {
        FoundRun::Running(started) => {
            // It may be about to end.
            let others = |pid: &i32| i64::from(*pid) != started.pid;
            assert_eq!(marked(mark).into_iter().filter(others).count(), 0, "killed at {step}");
            if next == RUNS {
                until(|| ran(world).contains(&RUNS).then_some(())).await;
                driver.stop(&id, Stop::Gracefully).await.unwrap();
            }
            exit(started).await;
            next += 1;
        }
        FoundRun::Exited(_) => next += 1,
        // The run that never began is the next.
        FoundRun::Never => assert!(!ran(world).contains(&next), "killed at {step}: it began"),
        FoundRun::Broken => panic!("killed at {step}: broken"),
        FoundRun::Unknown(_) => unreachable!("it's told"),
    }
    if !stopped && next <= RUNS {
        let launch = program(world, next.max(1));
        let started = driver.start(launch).await.unwrap_or_else(|e| panic!("killed at {step}: {e}"));
        if next == RUNS {
            until(|| ran(world).contains(&RUNS).then_some(())).await;
            driver.stop(&id, Stop::Gracefully).await.unwrap();
        }
        exit(started).await;
    }
    driver.forget(&id).await.unwrap_or_else(|e| panic!("killed at {step}: {e}"));
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// All that is kept of instances that are gone.
fn logs(world: &World) -> String {
    let mut all = String::new();
    for folder in entries(&world.path("data/logs")) {
        let folder = world.path("data/logs").join(folder);
        entries(&folder).iter().for_each(|file| all += &fs::read_to_string(folder.join(file)).unwrap());
    }
    all
}

/// Of the instance and of what was done for it: neither files nor control groups.
fn nothing_is_left(world: &World) {
    let known = ["agent.lock", "instances", "logs", "removed"];
    let mut rest = entries(&world.path("data"));
    rest.retain(|name| !known.contains(&name.as_str()));
    rest.extend(["data/instances", "data/removed"].iter().flat_map(|dir| entries(&world.path(dir))));
    assert_eq!(rest, Vec::<String>::new());
    let uid = program(world, 1).id.uid;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|m| m[2].starts_with("cgroup"));
    let groups = points.flat_map(|m| entries(&Path::new(m[1]).join("driftless")));
    assert_eq!(groups.filter(|name| name.starts_with(&*uid)).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn an_agent_killed_at_each_of_its_steps_loses_doubles_and_leaves_nothing() {
    let steps = Steps::live(&CALLS, async |step| {
        let world = World::new();
        let killed = killed_at(&world, step);
        if killed {
            is_brought_to_its_end(&world, step).await;
        } else {
            nothing_is_left(&world);
        }
        killed
    });
    println!("killed at {steps} steps");
    assert!(steps > 100, "only {steps} steps were found");
}

/// What a supervisor does. Of what it opens only what is on its run's disk, or it would be all of /proc.
const CALLS_OF_SUPERVISORS: [&str; 14] = [
    "openat",
    "write",
    "pwrite64",
    "rename",
    "fsync",
    "fdatasync",
    "clone",
    "clone3",
    "fork",
    "kill",
    "wait4",
    "dup2",
    "prctl",
    "pidfd_send_signal",
];
const RECORDS: [&str; 13] = [
    "env",
    "supervisor.new",
    "supervisor",
    "exit.new",
    "exit",
    "child.new",
    "child",
    "log",
    "log.1",
    "log.2",
    "times",
    "times.1",
    "times.2",
];

/// Runs once only, writes more than one file holds, and leaves something behind.
fn once(world: &World) -> Launch {
    let ran = world.path("ran").display().to_string();
    let text = format!("echo 1 >> {ran}; for n in 1 2 3 4 5 6; do echo line $n; sleep 0.004; done; sleep 60 & exit 7");
    let template = v1::InstanceTemplate {
        command: vec!["sh".into(), "-c".into(), text],
        restart: "Never".into(),
        ..Default::default()
    };
    named(launch(template), &program(world, 1).id.uid)
}

/// Stands in for a supervisor: does what stands in the file beside it.
const DOOMED: &str = "#!/bin/sh\n. \"${0%/*}/doom\"\n";

/// Once for all, while nothing is being started: what is holds, for a moment, all that is open here, and nobody can run what
/// somebody may write to.
fn doomed(dir: &Path) -> PathBuf {
    let file = dir.join("doomed");
    fs::write(&file, DOOMED).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

/// A supervisor that is killed at that step.
fn doom(world: &World, launch: &Launch, step: Step, doomed: &Path) -> PathBuf {
    let run = world.instance(launch).join("runs/1");
    let paths = if step.call == "openat" { &RECORDS[..] } else { &[] };
    let only: String = paths.iter().map(|name| format!(" -P {}", run.join(name).display())).collect();
    let real = env!("CARGO_BIN_EXE_driftless-supervisor");
    // The tracer is a grandchild, so that the supervisor is the agent's child as always.
    let (call, injection, traced) = (step.call, step.injection(), world.path("traced").display().to_string());
    let text = format!("exec strace -D -q -o {traced} -e trace={call} -e {injection}{only} {real} \"$@\"\n");
    fs::write(world.path("doom"), text).unwrap();
    let file = world.path("supervisor");
    symlink(doomed, &file).unwrap();
    file
}

/// How its tracer says that it ended, which may be a little later.
async fn was_killed(world: &World) -> bool {
    let traced = || fs::read_to_string(world.path("traced")).ok().filter(|text| text.ends_with(" +++\n"));
    until(traced).await.ends_with("+++ killed by SIGKILL +++\n")
}

/// What becomes of it: who is being killed lets go of the pipe a moment before all else, and may be seen in that moment.
async fn over(driver: &Process, id: &Id, mut run: FoundRun) -> FoundRun {
    loop {
        run = match told(driver, id, run).await {
            FoundRun::Running(started) => {
                ended(started).await;
                driver.look(id).await.unwrap().1
            }
            over => return over,
        };
    }
}

/// Whether its supervisor was killed.
async fn outlives_its_supervisor(step: Step, doomed: &Path) -> bool {
    let mut world = World::new();
    world.log_bytes = 10;
    let launch = once(&world);
    world.supervisor = Some(doom(&world, &launch, step, doomed));
    let driver = world.driver();
    match driver.start(launch.clone()).await {
        Ok(started) => drop(ended(started).await),
        Err(StartError::Busy) => {}
        Err(e) => panic!("killed at {step}: {e}"),
    }
    drop(driver);
    world.supervisor = None;
    let driver = world.driver();
    let over = over(&driver, &launch.id, find(&driver).await.run);
    let how = match tokio::time::timeout(PATIENCE, over).await.expect("it's over in time") {
        FoundRun::Never => {
            assert_eq!(ran(&world), Vec::<u64>::new(), "killed at {step}: it ran");
            exit(driver.start(launch.clone()).await.unwrap_or_else(|e| panic!("killed at {step}: {e}"))).await.how
        }
        FoundRun::Broken => driver.clean(&launch.id).await.unwrap().how,
        FoundRun::Exited(exit) => exit.how,
        FoundRun::Running(_) | FoundRun::Unknown(_) => unreachable!("it's over"),
    };
    assert!([How::Code(7), How::SupervisorLost].contains(&how), "killed at {step}: {how:?}");
    assert!(
        ran(&world).len() <= 1 && (how != How::Code(7) || ran(&world) == [1]),
        "killed at {step}: {:?}",
        ran(&world)
    );
    assert_eq!(marked(&format!("DRIFTLESS_RUN={}.", launch.id.uid)), Vec::<i32>::new(), "killed at {step}");
    // Another agent sees the same, and starts nothing.
    drop(driver);
    let driver = world.driver();
    let FoundRun::Exited(again) = find(&driver).await.run else { panic!("killed at {step}: it's over") };
    assert_eq!(again.how, how, "killed at {step}");
    let all = LogPart::default();
    let pieces: Vec<_> = driver.logs(&launch.id, all).await.unwrap().collect().await;
    let written: String = pieces.into_iter().map(|p| String::from_utf8(p.unwrap().data.to_vec()).unwrap()).collect();
    driver.forget(&launch.id).await.unwrap();
    let kept = logs(&world);
    assert_eq!(kept.len(), written.len(), "killed at {step}: {kept:?} is kept of {written:?}");
    nothing_is_left(&world);
    let killed = was_killed(&world).await;
    assert!(killed || how == How::Code(7), "killed at {step}: nobody was");
    killed
}

#[test]
fn a_supervisor_killed_at_each_of_its_steps_doubles_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let doomed = doomed(dir.path());
    let steps = Steps::live(&CALLS_OF_SUPERVISORS, async |step| outlives_its_supervisor(step, &doomed).await);
    println!("killed at {steps} steps");
    assert!(steps > 40, "only {steps} steps were found");
}
