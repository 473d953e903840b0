//! What the kernel enforces, and what the supervisor does: memory, processes, CPU time, contact with a server.

use std::{sync::Arc, time::Duration};

use agent::{
    Moment,
    driver::{Driver, How, Launch, Reached, StartError, Stop, Target},
    template::Limits,
};

use crate::world::*;

fn limited(mut launch: Launch, limits: Limits) -> Launch {
    Arc::make_mut(&mut launch.template).limits = limits;
    launch
}

fn bound(mut launch: Launch, stop_after: Duration) -> Launch {
    Arc::make_mut(&mut launch.template).stop_after = Some(stop_after);
    launch.contact_until = Some(Moment::now().plus(stop_after));
    launch
}

/// How often its first run came up against its limits.
async fn reached(driver: &impl Driver, launch: &Launch) -> Reached {
    let (id, template) = (launch.id.clone(), Arc::clone(&launch.template));
    driver.reached(&Target { id, run: 1, template, ports: Default::default() }).await
}

/// Where this machine has no such control groups, it says so, which is then all there is to see.
fn enforced(driver: &impl Driver, limits: &Limits) -> bool {
    driver.unenforced(limits).is_none()
}

#[tokio::test]
async fn what_needs_more_memory_than_its_limit_is_reported_as_such() {
    let world = World::new();
    let driver = world.driver();
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let launch = limited(command(&["python3", "-c", "x = bytearray(256 << 20)"]), limits);
    let expected = if enforced(&driver, &limits) { How::OutOfMemory } else { How::Code(0) };
    assert_eq!(exit(driver.start(launch).await.unwrap()).await.how, expected);
}

/// Control groups of version 2 go whole: then it was killed itself.
#[tokio::test]
async fn what_lost_a_child_for_want_of_memory_ended_as_it_did() {
    let world = World::new();
    let driver = world.driver();
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let launch = limited(script("python3 -c 'x = bytearray(256 << 20)'; exit 3"), limits);
    let exit = exit(driver.start(launch).await.unwrap()).await;
    match exit.how {
        How::OutOfMemory => assert!(enforced(&driver, &limits)),
        how => assert_eq!((how, exit.lost_some), (How::Code(3), enforced(&driver, &limits))),
    }
}

#[tokio::test]
async fn what_lost_a_child_for_want_of_memory_and_was_stopped_later_was_stopped() {
    let world = World::new();
    let driver = world.driver();
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let lost = world.path("lost").display().to_string();
    let text = format!("python3 -c 'x = bytearray(256 << 20)'; echo $? > {lost}; exec sleep 60");
    let launch = limited(script(&text), limits);
    let started = driver.start(launch.clone()).await.unwrap();
    // Of version 2 the whole group goes with it; then there is nothing left to be stopped.
    until(|| (std::path::Path::new(&lost).exists() || !is_alive(started.pid as i32)).then_some(())).await;
    if is_alive(started.pid as i32) {
        // Where nothing is enforced it lives as well.
        let killed = u64::from(enforced(&driver, &limits));
        assert_eq!(reached(&driver, &launch).await, Reached { memory: killed, pids: 0 });
        assert_eq!(stop(&driver, &launch, started).await.how, How::Signal(libc::SIGTERM));
    }
}

#[tokio::test]
async fn a_fork_bomb_is_contained_and_stopped() {
    let world = World::new();
    let driver = world.driver();
    let limits = Limits { pids: Some(40), ..Limits::default() };
    if !enforced(&driver, &limits) {
        return;
    }
    let up = world.path("up").display().to_string();
    let text = format!("b() {{ b | b & }}; b 2>/dev/null; echo up > {up}; exec sleep 60");
    let launch = limited(script(&text), limits);
    let started = driver.start(launch.clone()).await.unwrap();
    world.read("up").await;
    let refused = async {
        while reached(&driver, &launch).await.pids == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.expect("it's refused some");
    assert_eq!(reached(&driver, &launch).await.memory, 0);
    driver.stop(&launch.id, Stop::Kill).await.unwrap();
    assert_eq!(exit(started).await.how, How::Signal(libc::SIGKILL));
    let mark = format!("DRIFTLESS_RUN={}.1", launch.id.uid);
    assert_eq!(marked(&mark), Vec::<i32>::new());
}

#[tokio::test]
async fn a_limit_of_cpu_time_is_set() {
    let world = World::new();
    let driver = world.driver();
    let limits = Limits { cpu_millis: Some(250), ..Limits::default() };
    if !enforced(&driver, &limits) {
        return;
    }
    let launch = limited(script("grep -E ':cpu:|^0::' /proc/self/cgroup"), limits);
    let started = driver.start(launch.clone()).await.unwrap();
    exit(started).await;
    let log = std::fs::read_to_string(world.instance(&launch).join("runs/1/log")).unwrap();
    assert!(log.contains(&format!("driftless/{}-1", launch.id.uid)), "{log}");
}

#[tokio::test]
async fn a_run_bound_to_a_server_ends_without_its_word_and_without_an_agent() {
    let world = World::new();
    // Time enough to start it.
    let launch = bound(script("exec sleep 60"), Duration::from_secs(3));
    let started = world.driver().start(launch).await.unwrap();
    let exit = exit(started).await;
    assert_eq!(exit.how, How::CutOff);
}

#[tokio::test]
async fn a_run_bound_to_a_server_goes_on_at_its_word() {
    let world = World::new();
    let driver = world.driver();
    let began = Moment::now();
    let launch = bound(script("exec sleep 60"), Duration::from_secs(3));
    let started = driver.start(launch.clone()).await.unwrap();
    let until = began.plus(Duration::from_secs(4));
    driver.heard(&launch.id, until).await;
    // A word that was overtaken takes nothing back.
    driver.heard(&launch.id, began).await;
    assert_eq!(exit(started).await.how, How::CutOff);
    // It's told in whole milliseconds.
    assert!(Moment::now() >= began.plus(Duration::from_millis(3_999)), "it ended too soon");
}

#[tokio::test]
async fn a_run_bound_to_a_server_is_not_started_once_its_time_is_over() {
    let world = World::new();
    let launch = bound(script(&format!("echo x > {}", world.path("ran").display())), Duration::ZERO);
    let Err(StartError::CannotStart(exit)) = world.driver().start(launch).await else { panic!("it was started") };
    let expected = "not started: no server was heard for too long";
    assert_eq!(exit.how, How::CannotStart(expected.into()));
    assert!(!world.path("ran").exists());
}

/// A supervisor on a machine that has slept that much longer than the test knows.
fn that_slept(world: &World, seconds: u64) -> Option<std::path::PathBuf> {
    let offset = format!("--boottime={seconds}");
    let may =
        std::process::Command::new("unshare").args(["--time", &offset, "true"]).status().is_ok_and(|s| s.success());
    if !may {
        eprintln!("not run: no namespace of times can be made here, which takes root and util-linux's unshare");
        return None;
    }
    let (wrapper, supervisor) = (world.path("slept"), env!("CARGO_BIN_EXE_driftless-supervisor"));
    let script = format!("#!/bin/sh\nexec unshare --time {offset} {supervisor} \"$@\"\n");
    std::fs::write(&wrapper, script).unwrap();
    std::fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    Some(wrapper)
}

#[tokio::test]
async fn the_time_that_the_machine_slept_counts_as_time_without_a_server() {
    let mut world = World::new();
    let Some(slept) = that_slept(&world, 1_000) else { return };
    world.supervisor = Some(slept);
    let driver = world.driver();
    let late = bound(script("exec sleep 60"), Duration::from_secs(900));
    assert!(matches!(driver.start(late).await, Err(StartError::CannotStart(_))), "its time was over before it began");
    let launch = bound(script("exec sleep 60"), Duration::from_secs(1_003));
    let started = driver.start(launch.clone()).await.unwrap();
    let supervisor = field(&world.instance(&launch).join("runs/1/supervisor"), "pid").unwrap();
    // A wait with a timeout would go on after the machine's sleep as if there had been none.
    let waits = std::fs::read_dir(format!("/proc/{supervisor}/fdinfo")).unwrap().flatten();
    let clock = format!("clockid: {}\n", libc::CLOCK_BOOTTIME);
    assert!(waits.filter_map(|info| std::fs::read_to_string(info.path()).ok()).any(|info| info.contains(&clock)));
    assert_eq!(exit(started).await.how, How::CutOff);
}

#[tokio::test]
async fn what_was_asked_to_stop_was_not_cut_off_though_its_time_ran_out_meanwhile() {
    let world = World::new();
    let driver = world.driver();
    let up = world.path("up").display().to_string();
    let text = format!("trap '' TERM; echo up > {up}; while :; do sleep 0.1; done");
    let launch = grace(bound(script(&text), Duration::from_secs(3)), 4_000);
    let started = driver.start(launch.clone()).await.unwrap();
    world.read("up").await;
    assert_eq!(stop(&driver, &launch, started).await.how, How::Signal(libc::SIGKILL));
}
