//! On folders that stand for the kernel's, so that both versions are seen whichever this machine has.

use tempfile::TempDir;

use super::*;

fn root(dir: &Path, version: Version, has_swap_file: bool) -> Root {
    if has_swap_file {
        fs::write(dir.join(swap_file(version)), "").expect("there is room");
    }
    let controllers = CONTROLLERS.map(|name| (name, (dir.to_owned(), version))).into();
    Root { unified: None, controllers }
}

fn made(version: Version, has_swap_file: bool, file: &str) -> Option<String> {
    let dir = TempDir::new().expect("a temporary directory");
    let limits = Limits { memory_bytes: Some(1 << 20), ..Limits::default() };
    let groups = root(dir.path(), version, has_swap_file).make("u", 1, &limits).expect("there is room");
    fs::read_to_string(groups[0].join(file)).ok()
}

#[test]
fn what_is_limited_in_memory_gets_no_swap_beside_it_where_the_kernel_counts_swap() {
    let megabyte = Some("1048576".to_owned());
    assert_eq!(made(Version::Two, true, "memory.max"), megabyte);
    assert_eq!(made(Version::Two, true, "memory.swap.max").as_deref(), Some("0"));
    assert_eq!(made(Version::Two, false, "memory.swap.max"), None);
    assert_eq!(made(Version::One, true, "memory.limit_in_bytes"), megabyte);
    assert_eq!(made(Version::One, true, "memory.memsw.limit_in_bytes"), megabyte);
    assert_eq!(made(Version::One, false, "memory.memsw.limit_in_bytes"), None);
}

#[test]
fn a_kernel_that_does_not_count_swap_is_said_not_to_where_there_is_some() {
    let dir = TempDir::new().expect("a temporary directory");
    let limited = Limits { memory_bytes: Some(1 << 20), ..Limits::default() };
    let uncounted = root(dir.path(), Version::One, false);
    assert!(uncounted.unenforced_with(&limited, true).is_some_and(|said| said.contains("swap")));
    assert_eq!(uncounted.unenforced_with(&limited, false), None);
    assert_eq!(uncounted.unenforced_with(&Limits::default(), true), None);
    let counted = root(dir.path(), Version::One, true);
    assert_eq!(counted.unenforced_with(&limited, true), None);
    assert!(Root::none().unenforced_with(&limited, true).is_some_and(|said| said.contains("limits of memory")));
}

#[test]
fn what_the_kernel_counted_is_read_from_either_version() {
    for (version, memory) in [(Version::One, "memory.oom_control"), (Version::Two, "memory.events")] {
        let dir = TempDir::new().expect("a temporary directory");
        let root = root(dir.path(), version, true);
        assert_eq!(root.reached("u", 1), Reached::default(), "there is no such group");
        fs::create_dir(dir.path().join("u-1")).expect("there is room");
        fs::write(dir.path().join("u-1").join(memory), "under_oom 0\noom 7\noom_kill 3\n").expect("there is room");
        fs::write(dir.path().join("u-1/pids.events"), "max 12345\n").expect("there is room");
        assert_eq!(root.reached("u", 1), Reached { pids: 12_345, memory: 3 });
    }
}
