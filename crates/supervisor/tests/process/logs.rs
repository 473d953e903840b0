//! What a program writes: bounded, and read back whole.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use agent::driver::{Driver, How, LogPart};
use futures::StreamExt;

use crate::world::*;

#[tokio::test]
async fn logs_rotate_within_their_bound() {
    let mut world = World::new();
    world.log_bytes = 100_000;
    let driver = world.driver();
    let launch = script(
        "i=0; while [ $i -lt 4 ]; do head -c 200000 /dev/zero | tr '\\0' 'x' | fold -w 99; i=$((i+1)); done; echo end",
    );
    let exit = exit(driver.start(launch.clone()).await.unwrap()).await;
    assert_eq!(exit.how, How::Code(0));
    let run = world.instance(&launch).join("runs/1");
    let sizes: Vec<u64> = ["log", "log.1", "log.2"].iter().map(|n| fs::metadata(run.join(n)).unwrap().len()).collect();
    assert!(!run.join("log.3").exists());
    assert!(sizes.iter().all(|size| *size <= 100_000 + 100), "{sizes:?}");
    assert!(fs::read_to_string(run.join("log")).unwrap().ends_with("end\n"));
    for rotated in ["log.1", "log.2"] {
        assert!(fs::read_to_string(run.join(rotated)).unwrap().ends_with('\n'), "{rotated} ends with a line");
    }
}

async fn read(driver: &impl Driver, id: &agent::driver::Id, tail: Option<usize>) -> String {
    part(driver, id, LogPart { tail, ..LogPart::default() }).await
}

async fn part(driver: &impl Driver, id: &agent::driver::Id, part: LogPart) -> String {
    let pieces: Vec<_> = driver.logs(id, part).await.unwrap().collect().await;
    pieces.into_iter().map(|p| String::from_utf8(p.unwrap().data.to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn the_tail_goes_back_over_rotated_files() {
    let mut world = World::new();
    world.log_bytes = 30;
    let driver = world.driver();
    // One line at a time, so that each is a write of its own.
    let launch = script("for n in 1 2 3 4 5 6 7 8 9; do echo line $n; sleep 0.02; done");
    exit(driver.start(launch.clone()).await.unwrap()).await;
    let all = read(&driver, &launch.id, None).await;
    assert!(all.ends_with("line 7\nline 8\nline 9\n") && all.len() > 30, "{all}");
    assert_eq!(read(&driver, &launch.id, Some(0)).await, "");
    assert_eq!(read(&driver, &launch.id, Some(1)).await, "line 9\n");
    assert_eq!(read(&driver, &launch.id, Some(6)).await, "line 4\nline 5\nline 6\nline 7\nline 8\nline 9\n");
    assert_eq!(read(&driver, &launch.id, Some(1000)).await, all);
}

/// A supervisor notes the time once a second at most, in whole milliseconds.
const NOTED_EVERY: Duration = Duration::from_millis(1_001);

/// When it noted that something was written, in those files.
fn times(run: &Path, files: &[&str]) -> Vec<SystemTime> {
    let noted: Vec<u8> = files.iter().flat_map(|name| fs::read(run.join(name)).unwrap_or_default()).collect();
    let millis = |record: &[u8]| u64::from_le_bytes(record[..8].try_into().unwrap());
    noted.chunks_exact(16).map(|record| UNIX_EPOCH + Duration::from_millis(millis(record))).collect()
}

#[tokio::test]
async fn what_was_written_since_is_told_to_the_second_also_over_rotated_files() {
    let mut world = World::new();
    world.log_bytes = 20;
    let driver = world.driver();
    let go = world.path("go").display().to_string();
    let wait = |n: u32| format!("while [ ! -e {go}{n} ]; do sleep 0.01; done");
    // Each `printf` is one write.
    let launch =
        script(&format!("echo older; {}; printf 'old\\nas old\\n'; {}; printf 'new\\nnewer\\n'", wait(1), wait(2)));
    let started = driver.start(launch.clone()).await.unwrap();
    let run = world.instance(&launch).join("runs/1");
    // The next is written once a second has passed since the one before was: only then is it noted by itself.
    for n in [1, 2] {
        let noted = until(|| times(&run, &["times"]).get(n - 1).copied()).await;
        until(|| (SystemTime::now() > noted + NOTED_EVERY).then_some(())).await;
        fs::write(world.path(&format!("go{n}")), "").unwrap();
    }
    exit(started).await;
    assert!(run.join("log.1").exists() && run.join("times.1").exists(), "it was rotated");
    let noted = times(&run, &["times.1", "times"]);
    assert_eq!(noted.len(), 4, "one of each write, and one of what went into the next file");
    let since =
        async |since, tail| part(&driver, &launch.id, LogPart { since: Some(since), tail, ..LogPart::default() }).await;
    let (first, second, last) = (noted[0], noted[1], noted[3]);
    assert_eq!(since(first, None).await, "older\nold\nas old\nnew\nnewer\n");
    assert_eq!(since(second, None).await, "old\nas old\nnew\nnewer\n");
    assert_eq!(since(last, None).await, "new\nnewer\n");
    assert_eq!(since(last, Some(1)).await, "newer\n", "the last lines of that");
    assert_eq!(since(second, Some(3)).await, "as old\nnew\nnewer\n");
    assert_eq!(since(last, Some(9)).await, "new\nnewer\n", "no more than that");
    assert_eq!(since(last + Duration::from_secs(2), None).await, "", "nothing was written since");
}

#[tokio::test]
async fn the_run_before_is_kept_beside_the_present_one() {
    let world = World::new();
    let driver = world.driver();
    let launch = script("echo one");
    exit(driver.start(launch.clone()).await.unwrap()).await;
    let mut next = again(&launch, &Default::default());
    next.template = script("echo two").template;
    exit(driver.start(next).await.unwrap()).await;
    assert_eq!(read(&driver, &launch.id, None).await, "two\n");
    let previous = LogPart { previous: true, ..LogPart::default() };
    assert_eq!(part(&driver, &launch.id, previous).await, "one\n");
}

#[tokio::test]
async fn a_follower_misses_nothing_over_rotations_and_restarts() {
    let mut world = World::new();
    world.log_bytes = 1000;
    let driver = world.driver();
    let go = world.path("go").display().to_string();
    let text = format!(
        "echo first; while [ ! -e {go} ]; do sleep 0.01; done; for n in $(seq 40); do echo {{}} $n $(printf %050d $n); sleep 0.01; done"
    );
    let first = script(&text.replace("{}", "a"));
    let started = driver.start(first.clone()).await.unwrap();
    let mut follower = driver.logs(&first.id, LogPart { follow: true, ..LogPart::default() }).await.unwrap();
    let mut got = String::new();
    let mut read_until = async |end: &str| {
        while !got.contains(end) {
            let piece = tokio::time::timeout(PATIENCE, follower.next()).await.expect("more comes").unwrap().unwrap();
            got.push_str(std::str::from_utf8(&piece.data).unwrap());
        }
    };
    read_until("first\n").await;
    fs::write(world.path("go"), "").unwrap();
    read_until("a 40 ").await;
    exit(started).await;
    let mut second = again(&first, &Default::default());
    second.template = script(&text.replace("{}", "b")).template;
    let started = driver.start(second).await.unwrap();
    read_until("b 40 ").await;
    exit(started).await;
    let numbers: Vec<&str> = got.lines().filter_map(|l| l.strip_prefix("a ")?.split(' ').next()).collect();
    assert_eq!(numbers.len(), 40);
    assert_eq!(got.matches("first\n").count(), 2);
}

/// As a reader that follows; what it got, and how far that is.
struct Follower<'a> {
    driver: &'a dyn Driver,
    id: &'a agent::driver::Id,
    text: String,
    position: Option<String>,
}

impl Follower<'_> {
    /// Begins, or goes on, and breaks off once it has read so much.
    async fn read_until(&mut self, end: &str) {
        let part = LogPart { follow: true, after: self.position.clone(), ..LogPart::default() };
        let mut pieces = self.driver.logs(self.id, part).await.unwrap();
        while !self.text.ends_with(end) {
            let piece = tokio::time::timeout(PATIENCE, pieces.next()).await.expect("more comes").unwrap().unwrap();
            self.text.push_str(std::str::from_utf8(&piece.data).unwrap());
            self.position = Some(piece.position);
        }
    }
}

#[tokio::test]
async fn who_breaks_off_goes_on_behind_what_he_has_read_also_at_another_agent() {
    let mut world = World::new();
    world.log_bytes = 1_000;
    let go = |n: u32| world.path(&format!("go{n}"));
    let wait = |n: u32| format!("while [ ! -e {} ]; do sleep 0.01; done", go(n).display());
    // Each part but the first is rotated into the file before, and yet another one holds it all.
    let lines = |name: &str, n: u32| format!("for n in $(seq {n}); do printf '{name} %02d %050d\n' $n $n; done");
    let text = format!("{}; {}; {}; {}; {}", lines("a", 3), wait(1), lines("b", 25), wait(2), "echo c; exec sleep 60");
    let launch = script(&text);
    let before = world.driver();
    let started = before.start(launch.clone()).await.unwrap();
    let line = |name: &str, n: u32| format!("{name} {n:02} {n:050}\n");
    let mut follower = Follower { driver: &before, id: &launch.id, text: String::new(), position: None };
    follower.read_until(&line("a", 3)).await;
    let Follower { text, position, .. } = follower;
    fs::write(go(1), "").unwrap();
    // Nobody reads while it's rotated.
    until(|| fs::read_to_string(world.instance(&launch).join("runs/1/log")).ok().filter(|t| t.contains("b 25 "))).await;
    drop(started);
    drop(before);

    let after = world.driver();
    let found = running(find(&after).await);
    let mut follower = Follower { driver: &after, id: &launch.id, text, position };
    follower.read_until(&line("b", 25)).await;
    fs::write(go(2), "").unwrap();
    follower.read_until("\nc\n").await;
    let all: String = [("a", 3), ("b", 25)].iter().flat_map(|(name, n)| (1..=*n).map(|n| line(name, n))).collect();
    assert_eq!(follower.text, all + "c\n");
    let refused = after.logs(&launch.id, LogPart { after: Some("1.x".into()), ..LogPart::default() }).await;
    assert!(refused.err().expect("it's no position").to_string().contains("no position"));
    stop(&after, &launch, found).await;
}

#[tokio::test]
async fn who_breaks_off_before_a_restart_goes_on_over_it_and_misses_only_what_is_not_kept() {
    let world = World::new();
    let driver = world.driver();
    let mut launch = script("echo one");
    exit(driver.start(launch.clone()).await.unwrap()).await;
    let id = launch.id.clone();
    let mut follower = Follower { driver: &driver, id: &id, text: String::new(), position: None };
    follower.read_until("one\n").await;
    for n in ["two", "three", "four"] {
        launch = again(&launch, &Default::default());
        launch.template = script(&format!("echo {n}")).template;
        exit(driver.start(launch.clone()).await.unwrap()).await;
        if n == "two" {
            follower.read_until("two\n").await;
        }
    }
    follower.read_until("four\n").await;
    assert_eq!(follower.text, "one\ntwo\nthree\nfour\n");
    let Follower { position, .. } = follower;
    follower = Follower { driver: &driver, id: &id, text: String::new(), position: Some("1".into()) };
    follower.read_until("four\n").await;
    assert_eq!(follower.text, "three\nfour\n", "two runs are kept");
    assert!(position.unwrap().starts_with("4."));
}

#[tokio::test]
async fn a_follower_gets_the_last_words_and_ends_with_the_instance() {
    let world = World::new();
    let driver = world.driver();
    let launch = script("echo last words");
    exit(driver.start(launch.clone()).await.unwrap()).await;
    let mut follower = driver.logs(&launch.id, LogPart { follow: true, ..LogPart::default() }).await.unwrap();
    for expected in ["", "last words\n"] {
        let read = tokio::time::timeout(PATIENCE, follower.next()).await.expect("there is something");
        assert_eq!(read.unwrap().unwrap().data, expected);
    }
    driver.forget(&launch.id).await.unwrap();
    let end = tokio::time::timeout(PATIENCE, follower.next()).await.expect("it ends");
    assert!(end.is_none(), "{end:?}");
}

#[tokio::test]
async fn a_gigabyte_in_a_moment_is_contained() {
    let mut world = World::new();
    world.log_bytes = 1 << 20;
    let driver = world.driver();
    let launch = script("head -c 1073741824 /dev/zero; echo; echo done");
    let exit = exit(driver.start(launch.clone()).await.unwrap()).await;
    assert_eq!(exit.how, How::Code(0));
    let run = world.instance(&launch).join("runs/1");
    let total: u64 = fs::read_dir(run).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!(total < (3 << 20) + (1 << 17), "{total} bytes are kept");
    assert_eq!(read(&driver, &launch.id, Some(1)).await, "done\n");
}

/// As by a supervisor that was killed while it rotated them: at each of the two moments at which one is missing.
#[tokio::test]
async fn logs_with_a_gap_are_read_and_kept_whole() {
    for (from, to) in [("log", "log.3"), ("log.1", "log.3")] {
        let mut world = World::new();
        world.log_bytes = 30;
        let driver = world.driver();
        let launch =
            script("n=1; until [ -e ../runs/1/log.2 ]; do echo line $n; n=$((n+1)); sleep 0.01; done; echo end");
        exit(driver.start(launch.clone()).await.unwrap()).await;
        let run = world.instance(&launch).join("runs/1");
        let expected: String =
            ["log.2", "log.1", "log"].iter().map(|n| fs::read_to_string(run.join(n)).unwrap()).collect();
        // All but the one that is missing now go on in their order, the oldest of them last.
        let moved = ["log.2", "log.1", "log"].into_iter().take_while(|name| *name != from).chain([from]);
        for name in moved {
            let number: u32 = name.strip_prefix("log.").map_or(0, |n| n.parse().unwrap());
            fs::rename(run.join(name), run.join(format!("log.{}", number + 1))).unwrap();
        }
        assert!(run.join(to).exists() && !run.join(from).exists());
        assert_eq!(read(&driver, &launch.id, None).await, expected);
        driver.forget(&launch.id).await.unwrap();
        let kept = world.path("data/logs").join(world.instance(&launch).file_name().unwrap());
        let mut names: Vec<_> = fs::read_dir(kept).unwrap().map(|f| f.unwrap().path()).collect();
        names.sort();
        let kept: String = names.iter().rev().map(|name| fs::read_to_string(name).unwrap()).collect();
        assert_eq!(kept, expected);
    }
}
