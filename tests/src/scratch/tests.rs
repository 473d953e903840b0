use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::Scratch;
use crate::processes::{Process, look_until};

const VICTIM: &str = "DRIFTLESS_TEST_SCRATCH_VICTIM";
const SOON: Duration = Duration::from_secs(30);

/// In a session of its own, as instances are.
fn worker(scratch: &Scratch) -> Child {
    let mut worker = Command::new("setsid");
    worker.args(["sleep", "86400"]).current_dir(scratch.path()).stdin(Stdio::null());
    worker.spawn().expect("util-linux is installed")
}

/// The test below runs it once more in a process of its own, and kills that while it waits.
#[test]
fn what_works_in_it_goes_with_it() {
    let scratch = Scratch::new();
    let path = scratch.path().to_owned();
    fs::create_dir_all(path.join("n1/instances/default_web_uid/runs/1")).expect("it's there");
    let mut worker = worker(&scratch);
    if env::var_os(VICTIM).is_some() {
        println!("\nvictim {} {}", worker.id(), path.display());
    } else {
        drop(scratch);
    }
    assert!(!worker.wait().expect("it's a child").success());
    assert!(!path.exists());
}

#[test]
fn a_test_that_is_killed_leaves_nothing() {
    let mut victim = Command::new(env::current_exe().expect("a test has a path"))
        .args(["--exact", "scratch::tests::what_works_in_it_goes_with_it", "--nocapture"])
        .env(VICTIM, "")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started again");
    let mut lines = BufReader::new(victim.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let said = lines.find_map(|line| line.strip_prefix("victim ").map(str::to_owned)).expect("it says who works there");
    let (pid, path) = said.split_once(' ').expect("two words");
    let worker = Process::find(pid.parse().expect("a pid")).expect("it works");
    victim.kill().expect("it's a child");
    victim.wait().expect("it's a child");
    look_until("all of it is gone", SOON, || (!worker.is_alive() && !PathBuf::from(path).exists()).then_some(()));
}
