//! Agents come and go; what runs doesn't notice, and a number that is another's now is left alone.

use std::{
    fs,
    process::{Child, Command},
};

use agent::driver::{Driver, FoundRun, How};

use crate::world::*;

#[tokio::test]
async fn the_next_agent_finds_what_runs_and_can_stop_it() {
    let world = World::new();
    let launch = script("exec sleep 60");
    let pid = world.driver().start(launch.clone()).await.unwrap().pid;
    let driver = world.driver();
    let found = find(&driver).await;
    assert_eq!(found.memory, launch.memory);
    let started = running(found);
    assert_eq!(started.pid, pid);
    assert_eq!(stop(&driver, &launch, started).await.how, How::Signal(libc::SIGTERM));
}

#[tokio::test]
async fn readiness_is_carried_over() {
    let world = World::new();
    let launch = script("exec sleep 60");
    let first = world.driver();
    drop(first.start(launch.clone()).await.unwrap());
    first.note_ready(&launch.id, true).await.unwrap();
    drop(first);
    let driver = world.driver();
    let found = find(&driver).await;
    assert!(found.ready);
    stop(&driver, &launch, running(found)).await;
}

#[tokio::test]
async fn an_exit_that_nobody_saw_is_found_with_its_code() {
    let world = World::new();
    let go = world.path("go");
    let launch = script(&format!("while [ ! -e {} ]; do sleep 0.01; done; exit 7", go.display()));
    drop(world.driver().start(launch.clone()).await.unwrap());
    fs::write(&go, "").unwrap();
    until(|| world.instance(&launch).join("runs/1/exit").exists().then_some(())).await;
    let driver = world.driver();
    match find(&driver).await.run {
        FoundRun::Exited(exit) => assert_eq!(exit.how, How::Code(7)),
        // The supervisor is about to end.
        FoundRun::Running(started) => assert_eq!(exit(started).await.how, How::Code(7)),
        _ => panic!("it exited"),
    }
}

/// A process that isn't ours.
struct Stranger(Child);

impl Stranger {
    fn new() -> Self {
        Self(Command::new("sleep").arg("60").spawn().expect("sleep runs"))
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a pid")
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().expect("it's still there");
        self.0.wait().expect("it ends");
    }
}

/// The records of a run whose supervisor and child are gone, and whose numbers a stranger has now.
fn reuse(record: &std::path::Path, pid: i32) {
    let text = fs::read_to_string(record).unwrap();
    let old = text.lines().next().unwrap().to_owned();
    fs::write(record, text.replace(&old, &format!("pid {pid}"))).unwrap();
}

#[tokio::test]
async fn a_reused_pid_is_never_signalled() {
    for world in [World::new(), World::without_cgroups()] {
        let launch = script("exec sleep 60");
        let first = world.driver();
        let started = first.start(launch.clone()).await.unwrap();
        first.stop(&launch.id, agent::driver::Stop::Destroy).await.unwrap();
        assert_eq!(ended(started).await, agent::driver::Ended::Broken);
        first.clean(&launch.id).await.unwrap();
        drop(first);
        let run = world.instance(&launch).join("runs/1");
        fs::remove_file(run.join("exit")).unwrap();
        let stranger = Stranger::new();
        reuse(&run.join("supervisor"), stranger.pid());
        reuse(&run.join("child"), stranger.pid());
        let driver = world.driver();
        assert!(matches!(find(&driver).await.run, FoundRun::Broken));
        assert_eq!(driver.clean(&launch.id).await.unwrap().how, How::SupervisorLost);
        assert!(is_alive(stranger.pid()));
    }
}

#[tokio::test]
async fn a_run_of_an_earlier_boot_is_told_as_such() {
    let world = World::new();
    let launch = script("exec sleep 60");
    let first = world.driver();
    let started = first.start(launch.clone()).await.unwrap();
    first.stop(&launch.id, agent::driver::Stop::Destroy).await.unwrap();
    ended(started).await;
    first.clean(&launch.id).await.unwrap();
    drop(first);
    let run = world.instance(&launch).join("runs/1");
    fs::remove_file(run.join("exit")).unwrap();
    let record = fs::read_to_string(run.join("supervisor")).unwrap();
    let boot = record.lines().find(|l| l.starts_with("boot ")).unwrap().to_owned();
    fs::write(run.join("supervisor"), record.replace(&boot, "boot of-before")).unwrap();
    let driver = world.driver();
    assert!(matches!(find(&driver).await.run, FoundRun::Broken));
    assert_eq!(driver.clean(&launch.id).await.unwrap().how, How::MachineRestarted);
}

#[tokio::test]
async fn a_run_that_was_noted_but_never_born_was_never_started() {
    let world = World::new();
    let launch = script("exit 0");
    exit(world.driver().start(launch.clone()).await.unwrap()).await;
    fs::remove_dir_all(world.instance(&launch).join("runs/1")).unwrap();
    assert!(matches!(find(&world.driver()).await.run, FoundRun::Never));
}

#[tokio::test]
async fn a_held_lock_without_a_supervisor_is_unknown() {
    let world = World::new();
    let launch = script("exit 0");
    exit(world.driver().start(launch.clone()).await.unwrap()).await;
    let lock = fs::File::open(world.instance(&launch).join("lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(find(&world.driver()).await.run, FoundRun::Unknown(_)));
}

#[tokio::test]
async fn a_folder_that_was_just_being_made_is_removed() {
    let world = World::new();
    let driver = world.driver();
    let folder = world.path("data/instances/default_web_u");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("lock"), "").unwrap();
    assert!(driver.observe().await.unwrap().is_empty());
    assert!(!folder.exists());
}

/// A folder of runs that can't be read may hold any.
#[tokio::test]
async fn a_folder_whose_runs_cannot_be_looked_at_is_kept() {
    let world = World::new();
    let driver = world.driver();
    let folder = world.path("data/instances/default_web_u");
    fs::create_dir(&folder).unwrap();
    // As root nothing else keeps it from being read.
    fs::write(folder.join("runs"), "").unwrap();
    driver.observe().await.unwrap();
    assert!(folder.exists());
}

/// As by an agent that was killed meanwhile: what can't be removed at once stands half removed until the next one comes.
#[tokio::test]
async fn a_folder_that_was_just_being_removed_is_not_found_and_removed() {
    let world = World::new();
    let launch = script("exit 0");
    let first = world.driver();
    exit(first.start(launch.clone()).await.unwrap()).await;
    let work = world.instance(&launch).join("work");
    let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&work).status().unwrap();
    assert!(mount.success());
    let forgotten = first.forget(&launch.id).await;
    let removed = world.path("data/removed");
    let rest = fs::read_dir(&removed).map(|mut rest| rest.next().unwrap().unwrap().path().join("work"));
    assert!(Command::new("umount").arg(rest.as_ref().unwrap_or(&work)).status().unwrap().success());
    forgotten.unwrap();
    assert!(!world.instance(&launch).exists() && removed.exists());
    assert!(first.observe().await.unwrap().is_empty());
    drop(first);
    assert!(world.driver().observe().await.unwrap().is_empty());
    assert!(!removed.exists());
}

/// As a loss of power leaves what was never synced: it's still known what runs there, and it can be forgotten.
#[tokio::test]
async fn an_instance_whose_record_cannot_be_read_is_known_by_its_folder() {
    for damaged in [Some(&b""[..]), Some(b"\xff\xff"), None] {
        let world = World::new();
        let launch = script("exec sleep 60");
        let pid = world.driver().start(launch.clone()).await.unwrap().pid;
        let record = world.instance(&launch).join("instance.pb");
        match damaged {
            Some(bytes) => fs::write(&record, bytes).unwrap(),
            None => fs::remove_file(&record).unwrap(),
        }
        let driver = world.driver();
        let found = find(&driver).await;
        let metadata = found.resource.metadata.clone().unwrap();
        assert_eq!((metadata.name.as_str(), metadata.uid.as_str()), ("web", &*launch.id.uid));
        assert!(found.unread && !found.stop);
        let started = running(found);
        assert_eq!(started.pid, pid);
        stop(&driver, &launch, started).await;
        driver.forget(&launch.id).await.unwrap();
        assert!(!world.instance(&launch).exists());
    }
}

/// Nobody knows what it is, nor that it may run once only: it begins once a server says so.
#[tokio::test]
async fn an_instance_whose_record_cannot_be_read_does_not_begin_by_itself() {
    let world = World::new();
    let launch = script("exit 0");
    exit(world.driver().start(launch.clone()).await.unwrap()).await;
    fs::write(world.instance(&launch).join("instance.pb"), "").unwrap();
    fs::remove_dir_all(world.instance(&launch).join("runs/1")).unwrap();
    let found = find(&world.driver()).await;
    assert!(found.stop && matches!(found.run, FoundRun::Never));
}
