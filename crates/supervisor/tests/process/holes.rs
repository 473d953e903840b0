//! What a program writes while the disk is full is lost; its log says so, at the place.
//!
//! Needs the right to mount (root).

use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
};

use agent::driver::{Driver, How, Launch};

use crate::world::*;

/// Below the data dir of a world; it goes before the world does.
struct Disk(PathBuf);

impl Disk {
    fn below(world: &World) -> Self {
        let at = world.path("data");
        fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&at).status().unwrap();
        assert!(mounted.success(), "a small disk can't be mounted; that needs root");
        Self(at)
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("ballast")).unwrap();
        let error = std::iter::repeat_with(|| file.write_all(&[0; 4096])).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    }

    fn free(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Supervisors of a test that failed may still be in it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// More than a pipe holds: when the program has written it, most of it was read.
const BURST: usize = 200_000;
const BEFORE: &str = "before\nhalf a line";

/// Writes that, and once the disk is full a burst of whole lines behind it.
fn talker(world: &World, then: &str) -> Launch {
    let (full, done) = (world.path("full").display().to_string(), world.path("done").display().to_string());
    script(&format!(
        "printf '{BEFORE}'; while [ ! -e {full} ]; do sleep 0.01; done; yes 123456789 | head -c {BURST}; echo > {done}; {then}"
    ))
}

async fn log(run: &Path, complete: impl Fn(&str) -> bool) -> String {
    until(|| fs::read_to_string(run.join("log")).ok().filter(|text| complete(text))).await
}

/// How many bytes are missing, by what was kept before it.
#[track_caller]
fn lost(kept: &str, note: &str) -> usize {
    assert!(kept.starts_with(BEFORE), "{kept}");
    let number =
        note.strip_prefix("driftless: ").and_then(|n| n.strip_suffix(" bytes could not be written and are lost"));
    number.unwrap_or_else(|| panic!("{note:?} is no note")).parse().unwrap()
}

#[tokio::test]
async fn a_hole_is_told_on_a_line_of_its_own_once_there_is_room_though_nothing_more_is_written() {
    let world = World::new();
    let disk = Disk::below(&world);
    let driver = world.driver();
    let go = world.path("go").display().to_string();
    let launch = talker(&world, &format!("while [ ! -e {go} ]; do sleep 0.01; done; echo after"));
    let started = driver.start(launch.clone()).await.unwrap();
    let run = world.instance(&launch).join("runs/1");
    log(&run, |text| text == BEFORE).await;
    disk.fill();
    fs::write(world.path("full"), "").unwrap();
    world.read("done").await;
    disk.free();
    log(&run, |text| text.contains("are lost\n")).await;
    fs::write(&go, "").unwrap();
    assert_eq!(exit(started).await.how, How::Code(0));

    let text = fs::read_to_string(run.join("log")).unwrap();
    // What the pipe held when there was room again is there, behind the note.
    let (kept, rest) = text.split_once("\ndriftless: ").unwrap();
    let (note, rest) = rest.split_once('\n').unwrap();
    let rest = rest.strip_suffix("after\n").unwrap();
    assert_eq!(kept.len() + lost(kept, &format!("driftless: {note}")) + rest.len(), BEFORE.len() + BURST, "{note}");
}

#[tokio::test]
async fn a_log_whose_end_is_missing_says_so_though_the_disk_is_full_for_good() {
    let world = World::new();
    let disk = Disk::below(&world);
    let driver = world.driver();
    let launch = talker(&world, "exit 3");
    let started = driver.start(launch.clone()).await.unwrap();
    let run = world.instance(&launch).join("runs/1");
    log(&run, |text| text == BEFORE).await;
    disk.fill();
    fs::write(world.path("full"), "").unwrap();
    assert_eq!(exit(started).await.how, How::Code(3));

    let text = fs::read_to_string(run.join("log")).unwrap();
    let (kept, note) = text.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(kept.len() + lost(kept, note), BEFORE.len() + BURST, "{note}");
}
