//! Start, end, and what a program finds around it.

use std::{fs, os::unix::fs::PermissionsExt};

use agent::driver::{Driver, FoundRun, How, StartError};
use api::v1;

use crate::world::*;

#[tokio::test]
async fn a_run_ends_with_its_code_and_its_last_lines() {
    let world = World::new();
    let driver = world.driver();
    let launch = script("echo out; echo err >&2; exit 3");
    let exit = exit(driver.start(launch).await.unwrap()).await;
    assert_eq!((exit.how, exit.log_tail.as_str()), (How::Code(3), "out\nerr"));
}

#[tokio::test]
async fn last_lines_are_found_also_where_the_log_was_just_rotated() {
    let mut world = World::new();
    world.log_bytes = 5;
    let driver = world.driver();
    let go = world.path("go").display().to_string();
    let launch = script(&format!("echo first; while [ ! -e {go} ]; do sleep 0.01; done; echo second; exit 3"));
    let started = driver.start(launch.clone()).await.unwrap();
    // Of what is read at once only the first line is rotated away.
    until(|| world.instance(&launch).join("runs/1/log.1").exists().then_some(())).await;
    std::fs::write(go, "").unwrap();
    assert_eq!(exit(started).await.log_tail, "second");
}

#[tokio::test]
async fn a_signal_is_told_from_a_code() {
    let world = World::new();
    let driver = world.driver();
    let exit = exit(driver.start(script("kill -SEGV $$$$")).await.unwrap()).await;
    assert_eq!(exit.how, How::Signal(libc::SIGSEGV));
}

#[tokio::test]
async fn what_cannot_be_started_says_why_in_words() {
    let world = World::new();
    let driver = world.driver();
    let why = async |launch| match driver.start(launch).await {
        Err(StartError::CannotStart(exit)) => exit.how,
        other => panic!("{:?}", other.map(|s| s.pid)),
    };
    let is = |text: &str| How::CannotStart(text.into());
    assert_eq!(
        why(command(&["/no/such"])).await,
        is("command not found: /no/such: No such file or directory; check spec.template.command")
    );
    assert_eq!(
        why(command(&["no-such-command"])).await,
        is("command not found: no-such-command: No such file or directory; check spec.template.command")
    );
    assert_eq!(
        why(command(&["/etc/passwd"])).await,
        is("command can't be run: /etc/passwd: Permission denied; is it an executable file? check \
            spec.template.command")
    );
    let elsewhere =
        v1::InstanceTemplate { command: vec!["true".into()], working_dir: "/no/such".into(), ..Default::default() };
    assert_eq!(
        why(launch(elsewhere)).await,
        is("can't start in /no/such: No such file or directory; check spec.template.workingDir")
    );
}

#[tokio::test]
async fn a_failed_start_is_found_again_as_one() {
    let world = World::new();
    let launch = command(&["/no/such"]);
    let said = match world.driver().start(launch).await {
        Err(StartError::CannotStart(exit)) => exit.how,
        other => panic!("{:?}", other.map(|s| s.pid)),
    };
    match find(&world.driver()).await.run {
        FoundRun::Exited(exit) => assert_eq!(exit.how, said),
        _ => panic!("it should have ended"),
    }
}

#[tokio::test]
async fn the_program_finds_its_ports_and_names_in_its_environment() {
    let world = World::new();
    let driver = world.driver();
    let out = world.path("out");
    let text = format!(
        "echo $(PORT) $PORT_HTTP $PORT_ADMIN_API $(MINE) $DRIFTLESS_INSTANCE $DRIFTLESS_NODE > {}",
        out.display()
    );
    let port = |name: &str| v1::Port { name: name.into(), port: 0 };
    let template = v1::InstanceTemplate {
        command: vec!["sh".into(), "-c".into(), text],
        env: [("MINE".to_owned(), "yes".to_owned())].into(),
        ports: vec![port("http"), port("admin-api")],
        ..Default::default()
    };
    let started = driver.start(launch(template)).await.unwrap();
    let (http, admin) = (started.ports["http"], started.ports["admin-api"]);
    assert_ne!(http, admin);
    assert_eq!(exit(started).await.how, How::Code(0));
    assert_eq!(world.read("out").await, format!("{http} {http} {admin} yes web n1"));
}

#[tokio::test]
async fn a_restart_keeps_its_port_unless_somebody_took_it() {
    let world = World::new();
    let driver = world.driver();
    let first = launch(v1::InstanceTemplate {
        command: vec!["true".into()],
        ports: vec![v1::Port { name: "http".into(), port: 0 }],
        ..Default::default()
    });
    let started = driver.start(first.clone()).await.unwrap();
    let ports = started.ports.clone();
    exit(started).await;
    let second = again(&first, &ports);
    let started = driver.start(second.clone()).await.unwrap();
    assert_eq!(started.ports, ports);
    exit(started).await;
    let _taken = std::net::TcpListener::bind(("0.0.0.0", ports["http"])).unwrap();
    let started = driver.start(again(&second, &ports)).await.unwrap();
    assert_ne!(started.ports, ports);
    exit(started).await;
}

#[tokio::test]
async fn a_second_start_of_what_runs_is_refused() {
    let world = World::new();
    let driver = world.driver();
    let launch = script("exec sleep 60");
    let started = driver.start(launch.clone()).await.unwrap();
    assert!(matches!(driver.start(again(&launch, &Default::default())).await, Err(StartError::Busy)));
    drop((driver, started));
    let driver = world.driver();
    let found = find(&driver).await;
    assert_eq!(found.memory, launch.memory, "nothing was noted of it");
    stop(&driver, &launch, running(found)).await;
}

#[tokio::test]
async fn two_agents_do_not_share_a_data_dir() {
    let world = World::new();
    let _first = world.driver();
    let second = agent::driver::process::Process::new(world.config()).err().map(|e| e.to_string());
    assert!(second.is_some_and(|e| e.contains("another agent works in")));
}

/// Environments hold secrets.
#[tokio::test]
async fn what_stands_on_disk_is_for_the_agents_user_alone_but_for_where_the_program_works() {
    let world = World::new();
    let driver = world.driver();
    let launch = command(&["sleep", "50"]);
    let started = driver.start(launch.clone()).await.unwrap();
    let folder = world.instance(&launch);
    let mode = |path: &str| fs::metadata(folder.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(["runs", "runs/1"].map(mode), [0o700; 2]);
    assert_eq!(["runs/1/env", "instance.pb", "memory.json"].map(mode), [0o600; 3]);
    // Others may go through to what they know, and list nothing.
    assert_eq!(["../..", "..", "."].map(mode), [0o711; 3]);
    stop(&driver, &launch, started).await;
    driver.forget(&launch.id).await.unwrap();
    let removed = world.path("data").join("removed");
    assert_eq!(fs::metadata(removed).unwrap().permissions().mode() & 0o777, 0o700);
}

/// As servers do that begin as root.
#[tokio::test]
async fn a_program_that_gives_up_its_rights_still_reaches_its_folder_by_name() {
    // SAFETY: it only asks.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("NOT SEEN: only root can start something that becomes another user");
        return;
    }
    let world = World::new();
    fs::set_permissions(&world.dir, fs::Permissions::from_mode(0o755)).unwrap();
    let driver = world.driver();
    let script =
        script("echo here > file; setpriv --reuid 65534 --clear-groups sh -c 'cat \"$PWD/file\"; ls \"$PWD/../runs\"'");
    let exit = exit(driver.start(script).await.unwrap()).await;
    assert!(exit.log_tail.starts_with("here\n"), "{}", exit.log_tail);
    assert!(exit.log_tail.contains("Permission denied"), "{}", exit.log_tail);
}

#[tokio::test]
async fn a_machine_id_is_made_once() {
    let world = World::new();
    let first = world.driver().load_node().await.unwrap();
    assert!(!first.machine_id.is_empty());
    assert_eq!(world.driver().load_node().await.unwrap(), first);
}

#[tokio::test]
async fn forgetting_leaves_nothing_but_the_logs() {
    let world = World::new();
    let driver = world.driver();
    let launch = script("echo kept");
    exit(driver.start(launch.clone()).await.unwrap()).await;
    driver.forget(&launch.id).await.unwrap();
    driver.forget(&launch.id).await.unwrap();
    assert!(!world.instance(&launch).exists());
    let kept = world.path("data/logs").join(format!("default_web_{}", launch.id.uid)).join("1.log.0");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "kept\n");
}

/// As where a shell put the agent behind itself.
#[tokio::test]
async fn no_signal_is_ignored_or_blocked_by_inheritance() {
    let mut world = World::new();
    let (wrapper, supervisor) = (world.path("wrapper"), env!("CARGO_BIN_EXE_driftless-supervisor"));
    let text = format!("#!/bin/sh\ntrap '' HUP INT QUIT USR1 USR2 ALRM TTIN TTOU TSTP\nexec {supervisor} \"$@\"\n");
    std::fs::write(&wrapper, text).unwrap();
    std::fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    world.supervisor = Some(wrapper);
    let launch = command(&["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    exit(world.driver().start(launch.clone()).await.unwrap()).await;
    let log = std::fs::read_to_string(world.instance(&launch).join("runs/1/log")).unwrap();
    let masks: Vec<u64> = log.lines().map(|l| u64::from_str_radix(l[8..].trim(), 16).unwrap()).collect();
    // 32 and 33 are the C library's own, which lets nobody touch them.
    let others = !(0b11 << 31);
    assert_eq!(masks.iter().map(|mask| mask & others).collect::<Vec<_>>(), [0, 0], "{log}");
}
