//! Health checks against real processes.

use std::time::Duration;

use agent::{
    driver::{Driver, Launch, Target, process::Process},
    template::Probe,
};
use api::v1;

use crate::world::*;

fn target(launch: &Launch, started: &agent::driver::Started) -> Target {
    let template = launch.template.clone();
    Target { id: launch.id.clone(), run: launch.memory.run, template, ports: started.ports.clone() }
}

async fn ask(driver: &Process, target: &Target, text: &str, limit: Duration) -> Result<(), String> {
    let command = vec!["sh".into(), "-c".into(), text.into()];
    driver.probe(target, &Probe::Exec { command }, limit).await
}

#[tokio::test]
async fn an_exec_check_runs_in_the_instances_environment_and_leaves_nothing() {
    let world = World::new();
    let driver = world.driver();
    let template = v1::InstanceTemplate {
        command: vec!["sleep".into(), "60".into()],
        env: [("WORD".to_owned(), "yes".to_owned())].into(),
        ..Default::default()
    };
    let launch = launch(template);
    let started = driver.start(launch.clone()).await.unwrap();
    let target = target(&launch, &started);
    assert_eq!(ask(&driver, &target, "test $WORD = yes", PATIENCE).await, Ok(()));
    assert_eq!(
        ask(&driver, &target, "echo broken; exit 4", PATIENCE).await,
        Err("sh: exited with code 4: broken".into())
    );
    let left = world.path("left").display().to_string();
    let text = format!("setsid sh -c 'echo $$$$ > {left}; exec sleep 60' & while :; do sleep 1; done");
    // Time enough to start all of it.
    let slow = ask(&driver, &target, &text, Duration::from_secs(3)).await;
    assert_eq!(slow, Err("sh: did not end within 3s".into()));
    assert!(!is_alive(world.pid("left").await));
    assert!(is_alive(started.pid as i32), "a check's end is not the instance's");
    stop(&driver, &launch, started).await;
}

#[tokio::test]
async fn a_check_ends_with_the_agent_that_asked() {
    let world = World::new();
    let driver = world.driver();
    let launch = script("exec sleep 60");
    let started = driver.start(launch.clone()).await.unwrap();
    let target = target(&launch, &started);
    let up = world.path("up").display().to_string();
    let text = format!("echo $$$$ > {up}; exec sleep 60");
    tokio::select! {
        answer = ask(&driver, &target, &text, PATIENCE) => panic!("{answer:?}"),
        _ = world.pid("up") => {}
    }
    let pid = world.pid("up").await;
    until(|| (!is_alive(pid)).then_some(())).await;
    stop(&driver, &launch, started).await;
}

/// The keeper of the check whose command that is.
fn keeper_of(command: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap();
    let parent = stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(1).unwrap().parse().unwrap();
    let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap();
    assert!(name.starts_with("driftless-super"), "{name}");
    parent
}

/// A command that leaves another one in a session of its own, and both write their numbers.
fn with_rest(world: &World) -> String {
    let [up, left] = ["up", "left"].map(|name| world.path(name).display().to_string());
    format!("setsid sh -c 'echo $$$$ > {left}; exec sleep 60' & echo $$$$ > {up}; exec sleep 60")
}

async fn a_check_whose_keeper_is_killed_leaves_nothing(world: World) {
    let driver = world.driver();
    let launch = script("exec sleep 60");
    let started = driver.start(launch.clone()).await.unwrap();
    let (target, text) = (target(&launch, &started), with_rest(&world));
    let killed = async {
        let pids = [world.pid("up").await, world.pid("left").await];
        kill(keeper_of(pids[0]), libc::SIGKILL);
        pids
    };
    let (answer, pids) = tokio::join!(ask(&driver, &target, &text, PATIENCE), killed);
    assert_eq!(answer, Err("sh: its keeper was killed".into()));
    assert_eq!(pids.map(is_alive), [false, false]);
    assert!(is_alive(started.pid as i32), "a check's end is not the instance's");
    stop(&driver, &launch, started).await;
}

#[tokio::test]
async fn a_check_whose_keeper_is_killed_leaves_nothing_without_control_groups() {
    a_check_whose_keeper_is_killed_leaves_nothing(World::without_cgroups()).await;
}

#[tokio::test]
async fn a_check_whose_keeper_is_killed_leaves_nothing_in_the_instances_control_group() {
    a_check_whose_keeper_is_killed_leaves_nothing(World::new()).await;
}

#[tokio::test]
async fn what_a_check_left_whose_keeper_and_agent_were_killed_is_killed_by_the_next_agent() {
    let world = World::without_cgroups();
    let launch = script("exec sleep 60");
    let first = world.driver();
    let started = first.start(launch.clone()).await.unwrap();
    let (target, text) = (target(&launch, &started), with_rest(&world));
    let pids = tokio::select! {
        answer = ask(&first, &target, &text, PATIENCE) => panic!("{answer:?}"),
        // The agent is gone, as it were, in the moment in which the keeper is killed. Not after that: the keeper would end what
        // it keeps as soon as nobody asks any more.
        pids = async {
            let pids = [world.pid("up").await, world.pid("left").await];
            kill(keeper_of(pids[0]), libc::SIGKILL);
            pids
        } => pids,
    };
    drop((first, started));
    assert_eq!(pids.map(is_alive), [true, true]);
    let driver = world.driver();
    let started = running(find(&driver).await);
    until(|| (pids.map(is_alive) == [false, false]).then_some(())).await;
    assert!(is_alive(started.pid as i32), "a check's end is not the instance's");
    stop(&driver, &launch, started).await;
}

#[tokio::test]
async fn http_and_tcp_checks_ask_the_allocated_port() {
    let world = World::new();
    let driver = world.driver();
    let template = v1::InstanceTemplate {
        command: ["python3", "-m", "http.server", "$(PORT)", "--bind", "127.0.0.1"].map(str::to_owned).to_vec(),
        ports: vec![v1::Port { name: "http".into(), port: 0 }],
        ..Default::default()
    };
    let launch = launch(template);
    let started = driver.start(launch.clone()).await.unwrap();
    let target = target(&launch, &started);
    let get = |path: &str| Probe::Http { path: path.into(), port: String::new() };
    let mut answer = Err(String::new());
    let deadline = std::time::Instant::now() + PATIENCE;
    while answer.is_err() && std::time::Instant::now() < deadline {
        answer = driver.probe(&target, &get("/"), PATIENCE).await;
    }
    assert_eq!(answer, Ok(()));
    assert_eq!(driver.probe(&target, &get("/none"), PATIENCE).await, Err("GET /none: status 404".into()));
    assert_eq!(driver.probe(&target, &Probe::Tcp { port: "http".into() }, PATIENCE).await, Ok(()));
    let missing = driver.probe(&target, &Probe::Tcp { port: "admin".into() }, PATIENCE).await;
    assert_eq!(missing, Err("the check names port \"admin\", which the template doesn't have".into()));
    stop(&driver, &launch, started).await;
}
