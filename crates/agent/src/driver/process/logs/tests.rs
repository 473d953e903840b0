use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tempfile::TempDir;

use super::*;

const MANY: usize = 64;

/// An instance that wrote something, or nothing.
fn instance(data: &Path, name: String, wrote: &str) -> Folder {
    let folder = Folder(data.join("instances").join(name));
    folder.make(1, false).expect("there is room");
    fs::write(folder.run(1).join("log"), wrote).expect("there is room");
    folder
}

#[test]
fn many_that_go_at_once_let_the_oldest_go_together_without_trouble() {
    let data = TempDir::new().expect("a temporary directory");
    let kept = Kept::new(data.path(), Retention { instances: 3, ..Retention::default() });
    let folder = |n: usize| instance(data.path(), format!("i{n}"), if n.is_multiple_of(2) { "written" } else { "" });
    let folders: Vec<Folder> = (0..MANY).map(folder).collect();
    let gone = thread::scope(|scope| {
        let threads: Vec<_> = folders.iter().map(|folder| scope.spawn(|| kept.put_away(folder))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it doesn't panic")).collect::<io::Result<Vec<()>>>()
    });
    assert_eq!(gone.expect("nothing was amiss").len(), MANY);
    assert_eq!(fs::read_dir(data.path().join("logs")).expect("it's there").count(), 3);
}

/// As a supervisor does of whose program much comes. The newest file says which one it is.
#[test]
fn files_that_are_rotated_while_they_are_looked_for_are_found_once_and_in_their_order() {
    let data = TempDir::new().expect("a temporary directory");
    let dir = data.path();
    let over = AtomicBool::new(false);
    let rotate = || {
        for number in 0_u64.. {
            fs::write(name(dir, "new", 0), number.to_string()).expect("there is room");
            for n in (0..2).rev() {
                let _ = fs::rename(name(dir, "log", n), name(dir, "log", n + 1));
            }
            fs::rename(name(dir, "new", 0), name(dir, "log", 0)).expect("it's there");
            if over.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    let look = || {
        let read = |(_, mut file): (u32, File)| {
            let mut text = String::new();
            file.read_to_string(&mut text).expect("it can be read");
            text.parse().expect("a number")
        };
        let looks: Vec<Vec<u64>> =
            (0..5_000).map(|_| opened(dir).expect("it can be read").into_iter().map(read).collect()).collect();
        over.store(true, Ordering::Relaxed);
        looks
    };
    let looks = thread::scope(|scope| {
        scope.spawn(rotate);
        look()
    });
    assert!(looks.iter().any(|numbers| numbers.len() > 1));
    let wrong: Vec<_> = looks.iter().filter(|numbers| !numbers.is_sorted_by(|newer, older| newer > older)).collect();
    assert!(wrong.is_empty(), "{} of {} looks: {:?}", wrong.len(), looks.len(), wrong[0]);
}
