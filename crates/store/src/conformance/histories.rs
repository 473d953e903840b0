//! The history: written with the step, read in the store's order.

use model::Revision;

use super::{Setup, create, current, fixtures::writes, put, resource};
use crate::{HistoryQuery, LogEntry, Store, Transaction};

fn entry(root: &str, text: &str) -> LogEntry {
    LogEntry {
        root_uid: root.into(),
        step_id: format!("step-{text}"),
        bytes: text.to_owned().into(),
        slot: String::new(),
    }
}

/// A commit that creates a service named like its entry's text.
async fn log(store: &dyn Store, root: &str, text: &str) -> Revision {
    let log = vec![entry(root, text)];
    let transaction = Transaction { log, ..writes([put(resource(text), Revision::ZERO)]) };
    store.commit(transaction).await.unwrap_or_else(|e| panic!("logging {text}: {e}"))
}

/// The texts of the entries that the query yields.
async fn texts(store: &dyn Store, query: HistoryQuery) -> Vec<String> {
    let records = store.history(query).await.expect("history is read");
    assert!(records.is_sorted_by_key(|r| r.revision), "oldest first: {records:?}");
    records.iter().map(|r| String::from_utf8_lossy(&r.entry.bytes).into_owned()).collect()
}

fn everything() -> HistoryQuery {
    HistoryQuery::default()
}

pub async fn entries_come_with_their_commit_in_order(setup: Setup) {
    let store = &*setup.store;
    assert_eq!(texts(store, everything()).await, [""; 0]);
    let a = log(store, "one", "a").await;
    create(store, "unlogged").await;
    let b = log(store, "two", "b").await;
    let records = store.history(everything()).await.expect("history is read");
    let found: Vec<(Revision, LogEntry)> = records.into_iter().map(|r| (r.revision, r.entry)).collect();
    assert_eq!(found, [(a, entry("one", "a")), (b, entry("two", "b"))]);

    let roots = vec![entry("one", "c"), entry("two", "c")];
    let c = store.commit(Transaction { log: roots, ..Transaction::default() }).await.expect("it may only log");
    let records = store.history(HistoryQuery { after: b, ..everything() }).await.expect("history is read");
    let mut found: Vec<(Revision, &str)> = records.iter().map(|r| (r.revision, r.entry.root_uid.as_str())).collect();
    found.sort_unstable();
    assert_eq!(found, [(c, "one"), (c, "two")], "one entry for each root");
}

pub async fn a_refused_commit_leaves_no_entry(setup: Setup) {
    let store = &*setup.store;
    create(store, "taken").await;
    let refused = Transaction { log: vec![entry("one", "a")], ..writes([put(resource("taken"), Revision::ZERO)]) };
    assert!(store.commit(refused).await.is_err());
    assert_eq!(texts(store, everything()).await, [""; 0]);
}

pub async fn a_root_can_be_asked_for(setup: Setup) {
    let store = &*setup.store;
    let a = log(store, "one", "a").await;
    log(store, "two", "b").await;
    log(store, "one", "c").await;
    // A root whose uid merely begins alike.
    log(store, "one-more", "d").await;
    let of = |root: &str| HistoryQuery { root_uid: Some(root.into()), ..everything() };
    assert_eq!(texts(store, of("one")).await, ["a", "c"]);
    assert_eq!(texts(store, of("two")).await, ["b"]);
    assert_eq!(texts(store, of("none")).await, [""; 0]);
    assert_eq!(texts(store, HistoryQuery { after: a, ..of("one") }).await, ["c"]);
    assert_eq!(texts(store, HistoryQuery { limit: 1, ..of("one") }).await, ["c"]);
}

pub async fn the_newest_entries_are_kept_by_a_limit(setup: Setup) {
    let store = &*setup.store;
    let mut revisions = Vec::new();
    for text in ["a", "b", "c", "d"] {
        revisions.push(log(store, "one", text).await);
    }
    assert_eq!(texts(store, HistoryQuery { limit: 2, ..everything() }).await, ["c", "d"]);
    assert_eq!(texts(store, HistoryQuery { limit: 9, ..everything() }).await, ["a", "b", "c", "d"]);
    let query = HistoryQuery { after: revisions[0], limit: 2, ..everything() };
    assert_eq!(texts(store, query).await, ["c", "d"]);
    assert_eq!(texts(store, HistoryQuery { after: revisions[3], ..everything() }).await, [""; 0]);
}

pub async fn trimming_forgets_the_oldest(setup: Setup) {
    let store = &*setup.store;
    let a = log(store, "one", "a").await;
    let b = log(store, "two", "b").await;
    log(store, "one", "c").await;
    let head = store.head().await.expect("head is read");
    assert_eq!(store.trim_history(Revision(a.0 - 1)).await, Ok(0));
    assert_eq!(store.trim_history(b).await, Ok(2));
    assert_eq!(store.trim_history(b).await, Ok(0));
    assert_eq!(texts(store, everything()).await, ["c"]);
    let one = HistoryQuery { root_uid: Some("one".into()), ..everything() };
    assert_eq!(texts(store, one).await, ["c"]);
    assert_eq!(store.head().await, Ok(head), "what is true now doesn't depend on history");
    assert!(current(store, "a").await.is_some());
}

pub async fn an_entry_in_a_slot_takes_the_place_of_the_one_before(setup: Setup) {
    let store = &*setup.store;
    let folded = |root: &str, text: &str| LogEntry { slot: "loop".into(), ..entry(root, text) };
    let commit = async |log: Vec<LogEntry>| {
        store.commit(Transaction { log, ..Transaction::default() }).await.expect("it may only log")
    };
    log(store, "one", "a").await;
    let first = commit(vec![folded("one", "b")]).await;
    commit(vec![folded("two", "c")]).await;
    assert_eq!(texts(store, everything()).await, ["a", "b", "c"], "each root has slots of its own");
    let newest = commit(vec![entry("one", "d"), folded("one", "e")]).await;
    assert_eq!(texts(store, everything()).await, ["a", "c", "d", "e"]);
    let one = HistoryQuery { root_uid: Some("one".into()), ..everything() };
    assert_eq!(texts(store, HistoryQuery { after: first, ..one.clone() }).await, ["d", "e"]);
    assert_eq!(texts(store, HistoryQuery { up_to: Some(first), ..one }).await, ["a"]);

    let refused = Transaction { log: vec![folded("one", "f")], ..writes([put(resource("a"), Revision::ZERO)]) };
    assert!(store.commit(refused).await.is_err());
    assert_eq!(texts(store, everything()).await, ["a", "c", "d", "e"], "what isn't committed replaces nothing");
    assert_eq!(store.trim_history(newest).await, Ok(4));
    commit(vec![folded("one", "g")]).await;
    assert_eq!(texts(store, everything()).await, ["g"], "a slot outlives what was trimmed of it");
}

pub async fn the_end_of_a_range_can_be_asked_for(setup: Setup) {
    let store = &*setup.store;
    let mut revisions = Vec::new();
    for text in ["a", "b", "c", "d"] {
        revisions.push(log(store, "one", text).await);
    }
    let up_to = |n: usize| HistoryQuery { up_to: Some(revisions[n]), ..everything() };
    assert_eq!(texts(store, up_to(2)).await, ["a", "b", "c"]);
    assert_eq!(texts(store, HistoryQuery { limit: 1, ..up_to(1) }).await, ["b"]);
    assert_eq!(texts(store, HistoryQuery { after: revisions[0], ..up_to(2) }).await, ["b", "c"]);
    assert_eq!(texts(store, HistoryQuery { up_to: Some(Revision::ZERO), ..everything() }).await, [""; 0]);
}
