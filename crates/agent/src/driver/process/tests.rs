use std::{fs, sync::Arc};

use api::v1;
use model::Key;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{Interest, unix::AsyncFd};

use super::{Cgroups, Config, Process, exit, folder::Folder, identity};
use crate::{
    driver::{How, Id, Launch, Memory, StartError},
    template::Template,
};

/// Of this process's children, those that ended and wait for it to ask.
fn zombies(name: &str) -> usize {
    let me = i32::try_from(std::process::id()).expect("it's a pid");
    let entries = fs::read_dir("/proc").expect("there is one").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let named = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    pids.filter(|pid| identity::stat(*pid).is_some_and(|s| s.parent == me && s.zombie) && named(*pid)).count()
}

/// As where the kernel has no room for one more to be waited for: here, since it's waited for already.
#[tokio::test]
async fn an_end_is_waited_for_though_the_runtime_cannot() {
    let data = tempfile::tempdir().expect("it can be made");
    let mut child = std::process::Command::new("sleep").arg("0.3").spawn().expect("it can be run");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("it's a pid")).expect("it's no zero");
    let held = Arc::new(pidfd_open(pid, PidfdFlags::empty()).expect("it's there"));
    // SAFETY: the descriptor is owned by the Arc, which is kept as long as the registration, and never changes.
    let _first = unsafe { AsyncFd::register_with_interest(Arc::clone(&held), Interest::READABLE) }.expect("it's new");
    exit::wait(held, None, Folder(data.path().into()), 1, || ()).await;
    assert!(child.try_wait().expect("it's ours").is_some(), "it has ended");
}

/// As one that can't be run any more, in the midst of an upgrade.
#[test]
fn supervisors_that_end_without_a_word_are_let_go() {
    let data = tempfile::tempdir().expect("it can be made");
    let config = Config { cgroups: Cgroups::none(), ..Config::new(data.path().into(), "n1", "/bin/false".into()) };
    let process = Process::new(config).expect("nobody else works there");
    let template = Template::from(&v1::InstanceTemplate { command: vec!["true".into()], ..Default::default() });
    let id = Id { uid: "u".into(), key: Key::new("Instance", "default", "web-0") };
    let start = |run: u64| {
        let (resource, template) = (Arc::default(), Arc::new(template.clone()));
        let memory = Memory { run, ..Memory::default() };
        let launch = Launch { id: id.clone(), resource, template, memory, contact_until: None };
        assert!(matches!(process.0.start(launch), Err(StartError::Busy)), "it may be alive");
    };
    // The newest ones may end a moment after they were given up.
    let let_go = |run: u64| {
        start(run);
        run >= 10 && zombies("false") <= 5
    };
    assert!((1..=40).any(let_go), "{} are kept", zombies("false"));
}

/// What is read of that record.
fn how_it_ended(record: &str) -> (How, bool) {
    let data = tempfile::tempdir().expect("it can be made");
    fs::write(data.path().join("exit"), record).expect("there is room");
    let exit = exit::read(data.path(), &Folder(data.path().into())).expect("it's whole");
    (exit.how, exit.lost_some)
}

#[test]
fn only_what_was_killed_itself_was_out_of_memory() {
    let read = |how: &str, asked: bool| how_it_ended(&format!("{how}\ntime 1\nasked {asked}\nlate false\noom true\n"));
    assert_eq!(read("signal 9", false), (How::OutOfMemory, false));
    assert_eq!(read("code 0", false), (How::Code(0), true));
    assert_eq!(read("code 3", false), (How::Code(3), true));
    assert_eq!(read("signal 11", false), (How::Signal(11), true));
    assert_eq!(read("signal 9", true), (How::Signal(9), false), "the kill that follows a stop");
    assert_eq!(read("code 3", true), (How::Code(3), false));
}
