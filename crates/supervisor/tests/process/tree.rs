//! The whole tree goes, whatever its members did; nothing else does.

use agent::driver::{Driver, Ended, How, Launch, Stop};

use crate::world::*;

/// A tree whose members do all they can to stay: each writes its pid, none hears SIGTERM, and all but two leave the
/// session or close what they could be heard by.
fn stubborn(world: &World) -> Launch {
    let file = |name: &str, text: &str| {
        std::fs::write(world.path(name), text).expect("the folder can be written");
        world.path(name).display().to_string()
    };
    // An ignored signal stays ignored over exec.
    let member = file("member.sh", "trap '' TERM\necho $$ > $1\nexec sleep 60\n");
    let dir = world.dir.display();
    let tree = format!(
        "sh {member} {dir}/plain &\n\
         setsid sh {member} {dir}/session &\n\
         (setsid sh -c 'setsid sh {member} {dir}/twice & exit' &)\n\
         sh {member} {dir}/closed <&- >&- 2>&- &\n\
         exec sh {member} {dir}/main\n"
    );
    command(&["sh", &file("tree.sh", &tree)])
}

const MEMBERS: [&str; 5] = ["plain", "session", "twice", "closed", "main"];

async fn pids(world: &World) -> Vec<i32> {
    let mut pids = Vec::new();
    for member in MEMBERS {
        pids.push(world.pid(member).await);
    }
    assert!(pids.iter().all(|pid| is_alive(*pid)), "all of {pids:?} run");
    pids
}

fn alive(pids: &[i32]) -> Vec<i32> {
    pids.iter().copied().filter(|pid| is_alive(*pid)).collect()
}

async fn a_stop_takes_the_whole_tree(world: World) {
    let driver = world.driver();
    let launch = grace(stubborn(&world), 200);
    let started = driver.start(launch.clone()).await.unwrap();
    let pids = pids(&world).await;
    let exit = stop(&driver, &launch, started).await;
    assert_eq!((exit.how, alive(&pids)), (How::Signal(libc::SIGKILL), vec![]));
}

#[tokio::test]
async fn a_stop_takes_the_whole_tree_by_its_control_group() {
    a_stop_takes_the_whole_tree(World::new()).await;
}

#[tokio::test]
async fn a_stop_takes_the_whole_tree_by_its_parents() {
    a_stop_takes_the_whole_tree(World::without_cgroups()).await;
}

async fn a_lost_supervisors_tree_is_cleaned(world: World) {
    let driver = world.driver();
    let launch = stubborn(&world);
    let started = driver.start(launch.clone()).await.unwrap();
    let pids = pids(&world).await;
    driver.stop(&launch.id, Stop::Destroy).await.unwrap();
    assert_eq!(ended(started).await, Ended::Broken);
    assert_eq!(alive(&pids), pids);
    let exit = driver.clean(&launch.id).await.unwrap();
    assert_eq!((exit.how.clone(), alive(&pids)), (How::SupervisorLost, vec![]));
    assert_eq!(driver.clean(&launch.id).await.unwrap().how, exit.how);
}

#[tokio::test]
async fn a_lost_supervisors_tree_is_cleaned_by_its_control_group() {
    a_lost_supervisors_tree_is_cleaned(World::new()).await;
}

#[tokio::test]
async fn a_lost_supervisors_tree_is_cleaned_by_its_marks() {
    a_lost_supervisors_tree_is_cleaned(World::without_cgroups()).await;
}

/// Its records go with it, and its lock, but not what is to be done about it.
#[tokio::test]
async fn what_removed_its_own_folder_is_stopped_cleaned_and_forgotten() {
    for how in [Stop::Gracefully, Stop::Destroy] {
        let world = World::new();
        let driver = world.driver();
        let launch = script("rm -rf ${PWD%/work}; exec sleep 60");
        let started = driver.start(launch.clone()).await.unwrap();
        let pid = started.pid as i32;
        until(|| (!world.instance(&launch).exists()).then_some(())).await;
        driver.stop(&launch.id, how).await.unwrap();
        assert_eq!(ended(started).await, Ended::Broken);
        assert_eq!(driver.clean(&launch.id).await.unwrap().how, How::SupervisorLost);
        assert!(!is_alive(pid), "{how:?}");
        driver.forget(&launch.id).await.unwrap();
        assert!(!world.instance(&launch).exists());
        assert!(!world.config().cgroups.group(&launch.id.uid, 1).is_some_and(|group| group.exists()));
    }
}

/// As what runs containers does.
#[tokio::test]
async fn groups_that_a_run_made_below_its_own_go_with_it() {
    let world = World::new();
    let launch = script("exec sleep 60");
    let Some(group) = world.config().cgroups.group(&launch.id.uid, 1) else {
        eprintln!("not run: no control group can be made here");
        return;
    };
    for destroyed in [false, true] {
        let driver = world.driver();
        let started = driver.start(launch.clone()).await.unwrap();
        std::fs::create_dir_all(group.join("a/b")).unwrap();
        std::fs::write(group.join("a/b/cgroup.procs"), started.pid.to_string()).unwrap();
        let pid = started.pid as i32;
        if destroyed {
            driver.stop(&launch.id, Stop::Destroy).await.unwrap();
            assert_eq!(ended(started).await, Ended::Broken);
            driver.clean(&launch.id).await.unwrap();
        } else {
            stop(&driver, &launch, started).await;
        }
        assert!(!is_alive(pid) && !group.exists());
        driver.forget(&launch.id).await.unwrap();
    }
}

/// Longer than the kernel keeps, which cuts it in the midst of a letter: what it says of the process is no UTF-8 then.
const LONG_NAME: &str = "службаоплаты";

/// Its one child left the session, hears no SIGTERM, and has that name.
fn with_a_long_name(world: &World) -> Launch {
    let sleep = ["/bin/sleep", "/usr/bin/sleep"].iter().find(|file| std::path::Path::new(file).exists()).unwrap();
    std::os::unix::fs::symlink(sleep, world.path(LONG_NAME)).unwrap();
    let (named, pid) = (world.path(LONG_NAME).display().to_string(), world.path("pid").display().to_string());
    let text = format!("trap '' TERM; setsid sh -c 'echo $$$$ > {pid}; exec {named} 60' & exec sleep 60");
    grace(script(&text), 200)
}

async fn named(world: &World) -> i32 {
    let pid = world.pid("pid").await;
    let is_so = || std::fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| String::from_utf8(name).is_err());
    until(|| is_so().then_some(())).await;
    pid
}

#[tokio::test]
async fn what_has_a_name_that_is_cut_in_the_midst_of_a_letter_is_stopped() {
    let world = World::without_cgroups();
    let driver = world.driver();
    let launch = with_a_long_name(&world);
    let started = driver.start(launch.clone()).await.unwrap();
    let pid = named(&world).await;
    stop(&driver, &launch, started).await;
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn what_has_a_name_that_is_cut_in_the_midst_of_a_letter_is_cleaned() {
    let world = World::without_cgroups();
    let driver = world.driver();
    let launch = with_a_long_name(&world);
    let started = driver.start(launch.clone()).await.unwrap();
    let pid = named(&world).await;
    driver.stop(&launch.id, Stop::Destroy).await.unwrap();
    assert_eq!(ended(started).await, Ended::Broken);
    driver.clean(&launch.id).await.unwrap();
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn what_the_program_leaves_behind_ends_with_it() {
    let world = World::without_cgroups();
    let driver = world.driver();
    let left = world.path("left").display().to_string();
    let launch =
        script(&format!("setsid sh -c 'echo $$$$ > {left}; exec sleep 60' & while [ ! -s {left} ]; do :; done"));
    let exit = exit(driver.start(launch).await.unwrap()).await;
    assert_eq!(exit.how, How::Code(0));
    assert!(!is_alive(world.pid("left").await));
}

#[tokio::test]
async fn a_program_that_hears_sigterm_ends_with_its_own_code() {
    let world = World::new();
    let driver = world.driver();
    let up = world.path("up").display().to_string();
    let launch = script(&format!("trap 'exit 5' TERM; echo up > {up}; while :; do sleep 0.01; done"));
    let started = driver.start(launch.clone()).await.unwrap();
    world.read("up").await;
    assert_eq!(stop(&driver, &launch, started).await.how, How::Code(5));
}

#[tokio::test]
async fn a_stopped_supervisor_is_destroyed_and_its_tree_cleaned() {
    let world = World::new();
    let driver = world.driver();
    let launch = script("exec sleep 60");
    let started = driver.start(launch.clone()).await.unwrap();
    let pid = started.pid as i32;
    let supervisor = field(&world.instance(&launch).join("runs/1/supervisor"), "pid").unwrap().parse().unwrap();
    kill(supervisor, libc::SIGSTOP);
    driver.stop(&launch.id, Stop::Kill).await.unwrap();
    driver.stop(&launch.id, Stop::Destroy).await.unwrap();
    assert_eq!(ended(started).await, Ended::Broken);
    driver.clean(&launch.id).await.unwrap();
    assert!(!is_alive(pid));
}
