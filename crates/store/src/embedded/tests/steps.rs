//! Killed, or without power, at each single step that a store takes on the disk: nothing acknowledged is lost, and nothing is
//! there by half.

use std::{fs, path::Path};

use model::Revision;

use super::{
    disk::{creating, open_on, try_open_on},
    medium::Medium,
    open,
};
use crate::{
    Cluster, Embedded, HistoryQuery, List, Store,
    conformance::create,
    embedded::disk::{self, Disk},
};

/// Commits before the history is trimmed, and after.
const COMMITS: usize = 3;
/// No life takes so many steps.
const STEPS_MAX: usize = 10_000;

/// What a user of the disk was told before its end.
#[derive(Debug, Default)]
struct Told {
    created: Vec<(String, Revision)>,
    trimmed_to: Option<Revision>,
    incarnation: Option<&'static str>,
}

/// Writes, forgets, writes, closes, and is then restored; until the disk fails it.
async fn live(medium: &Medium, dir: &Path) -> Told {
    let mut told = Told::default();
    let Ok(store) = try_open_on(medium, dir) else { return told };
    write(&store, "early", &mut told).await;
    if let Some((_, second)) = told.created.get(1).cloned()
        && store.trim_history(second).await.is_ok()
    {
        told.trimmed_to = Some(second);
    }
    write(&store, "late", &mut told).await;
    store.close().await;
    let backend = medium.clone();
    if let Ok(database) = disk::builder().create_with_backend(backend)
        && let Ok((disk, _)) = Disk::load(database, dir)
        && disk.replace_incarnation("restored").is_ok()
    {
        told.incarnation = Some("restored");
    }
    told
}

async fn write(store: &Embedded, word: &str, told: &mut Told) {
    for n in 0..COMMITS {
        let name = format!("{word}-{n}");
        match store.commit(creating(&name)).await {
            Ok(revision) => told.created.push((name, revision)),
            Err(_) => return,
        }
    }
}

/// What the next one finds.
async fn check(left: &Medium, told: &Told, before: &Cluster, how: &str) {
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(left, dir.path());
    let found = store.list(List::default()).await.unwrap();
    for (name, revision) in &told.created {
        let there = found.objects.iter().any(|o| o.key.name() == name && o.revision == *revision);
        assert!(there, "{how}: {name} of revision {revision} is lost");
    }
    let head = store.head().await.unwrap();
    // Each commit created one, and logged it.
    assert_eq!(head.commits, found.objects.len() as u64, "{how}: whole commits, and each once");
    let history = store.history(HistoryQuery::default()).await.unwrap();
    let all: Vec<Revision> = history.iter().map(|record| record.revision).collect();
    let forgotten = found.objects.len() - all.len();
    let kept = |up_to: Revision| all.iter().all(|revision| *revision > up_to);
    assert!(forgotten == 0 || forgotten == 2 && kept(Revision(2)), "{how}: the history is {all:?}");
    assert!(told.trimmed_to.is_none_or(kept), "{how}: {all:?} was forgotten up to {:?}", told.trimmed_to);
    let incarnation = store.cluster().await.unwrap().incarnation;
    match told.incarnation {
        Some(new) => assert_eq!(incarnation, new, "{how}: the restore was acknowledged"),
        None => assert!(incarnation == before.incarnation || incarnation == "restored", "{how}: {incarnation}"),
    }
    create(&store, "goes-on").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_or_without_power_at_any_step_nothing_acknowledged_is_lost() {
    let fresh = Medium::default();
    let dir = tempfile::tempdir().unwrap();
    let made = open_on(&fresh, dir.path());
    let before = made.cluster().await.unwrap();
    made.close().await;
    let mut lives = 0;
    for steps in 1..STEPS_MAX {
        let (dir, medium) = (tempfile::tempdir().unwrap(), fresh.after_kill());
        medium.kill_after(steps);
        let told = live(&medium, dir.path()).await;
        check(&medium.after_kill(), &told, &before, &format!("killed at step {steps}")).await;
        for seed in 0..2 {
            let how = format!("without power at step {steps}, seed {seed}");
            check(&medium.after_power_cut(seed), &told, &before, &how).await;
        }
        if !medium.was_killed() {
            assert_eq!((told.created.len(), told.incarnation), (2 * COMMITS, Some("restored")), "it lived to its end");
            break;
        }
        lives += 1;
    }
    assert!(lives > 50, "a life has many steps, not {lives}");
}

/// Another process may have been killed while it made the database, before it gave it its name.
#[tokio::test]
async fn what_a_killed_founder_left_is_not_taken_for_a_store() {
    let whole = tempfile::tempdir().unwrap();
    drop(open(whole.path()));
    let bytes = fs::read(whole.path().join(disk::FILE)).unwrap();
    let left: [&[u8]; 4] = [&[], &[7; 100], &bytes[..bytes.len() / 2], &bytes];
    for (n, left) in left.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("lock"), "").unwrap();
        fs::write(dir.path().join(format!("{}.new", disk::FILE)), left).unwrap();
        let store = open(dir.path());
        create(&store, "web").await;
        store.close().await;
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "case {n}: the lock and the database alone, not {names:?}");
        let again = open(dir.path());
        assert_eq!(again.head().await.unwrap().commits, 1, "case {n}");
    }
}
