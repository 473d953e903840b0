//! A real process, killed at a random moment, over and over in one directory.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;

use super::open;
use crate::{Embedded, Store, conformance::create};

const DIR: &str = "DRIFTLESS_TEST_KILL_DIR";
const WRITERS: usize = 8;

/// Creates services without an end, and says of each, once it is acknowledged, at which revision.
async fn write_for_ever(store: Arc<Embedded>, rounds: usize) {
    let first = store.head().await.unwrap().commits;
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        tasks.spawn(async move {
            for n in 0..rounds {
                let name = format!("web-{first}-{writer}-{n}");
                let revision = create(&*store, &name).await;
                let said = format!("\nacknowledged {name} {revision}\n");
                std::io::stdout().lock().write_all(said.as_bytes()).unwrap();
            }
        });
    }
    tasks.join_all().await;
}

/// Run by the test below in a process of its own, with a directory and no end; by itself, it writes a little.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_says_what_was_acknowledged() {
    // Who is killed can't clear away a directory of its own.
    let given = std::env::var_os(DIR).map(PathBuf::from);
    let own = given.is_none().then(|| tempfile::tempdir().unwrap());
    let rounds = if given.is_some() { usize::MAX } else { 3 };
    let dir = given.or_else(|| Some(own.as_ref()?.path().to_owned())).expect("one of the two");
    let store = Arc::new(open(&dir));
    write_for_ever(store.clone(), rounds).await;
    assert_eq!(store.head().await.unwrap().commits, (rounds * WRITERS) as u64);
}

/// Starts a writer, kills it after that many acknowledgements, and returns all that it still said.
fn killed_after(dir: &Path, count: usize) -> Vec<(String, i64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::tests::kill::a_writer_says_what_was_acknowledged", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let Ok(line) = line else { break };
        let mut words = line.split(' ');
        if let (Some("acknowledged"), Some(name), Some(revision)) = (words.next(), words.next(), words.next()) {
            said.push((name.to_owned(), revision.parse().unwrap()));
        }
        if said.len() == count {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(said.len() >= count, "it ended after {} by itself", said.len());
    said
}

#[tokio::test]
async fn a_killed_process_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut acknowledged = Vec::new();
    for round in 0..6 {
        acknowledged.extend(killed_after(dir.path(), random.random_range(1..200)));
        let store = open(dir.path());
        for (name, revision) in &acknowledged {
            let object = crate::conformance::current(&store, name).await;
            assert_eq!(object.map(|o| o.revision.0), Some(*revision), "{name} in round {round}");
        }
        let head = store.head().await.unwrap();
        // Each commit created one, so that a half one would show.
        assert_eq!(head.revision.0 as u64, head.commits);
        assert!(head.commits >= acknowledged.len() as u64);
        store.close().await;
    }
}
