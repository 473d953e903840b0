use std::thread;

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
