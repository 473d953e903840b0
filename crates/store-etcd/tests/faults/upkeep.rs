//! Upkeep on a quick clock: what is old goes, what is young stays, and space that gets scarce is told before it's gone.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api::v1;
use bytes::Bytes;
use driftless_store_etcd::{
    DEADLINE_DEFAULT, FULL_PERCENT, Upkeep,
    testing::{
        Etcd,
        grpc_proxy::{GrpcProxy, Hold},
    },
};
use model::{Revision, Time};
use prost::Message;
use store::{
    Error, HistoryQuery, List, LogEntry, Store, Transaction,
    conformance::{Reader, put, resource},
};

use crate::{
    compaction::Passer,
    space::{QUOTA_BYTES, write_big},
    support::{PATIENCE, open, remove, until, write},
};

const HOUR: Duration = Duration::from_secs(3600);

fn quick() -> Upkeep {
    let tick = Duration::from_millis(100);
    Upkeep { every: tick, look_every: tick / 2, history_max_age: HOUR, history_max_bytes: u64::MAX }
}

/// An entry that says so, stamped that long ago.
fn entry(text: &str, ago: Duration) -> LogEntry {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it's after 1970");
    let time = Some(Time::default().plus(now - ago).into());
    let bytes = v1::HistoryEntry { time, verb: text.into(), ..Default::default() }.encode_to_vec();
    LogEntry { root_uid: "root".into(), step_id: text.into(), bytes: bytes.into(), slot: String::new() }
}

async fn log(store: &dyn Store, entries: Vec<LogEntry>) -> Revision {
    store.commit(Transaction { log: entries, ..Transaction::default() }).await.expect("it may only log")
}

async fn steps(store: &dyn Store) -> Vec<String> {
    let records = store.history(HistoryQuery::default()).await.expect("history is read");
    records.into_iter().map(|record| record.entry.step_id).collect()
}

#[tokio::test]
async fn what_is_old_goes_and_what_is_young_stays() {
    let etcd = Etcd::start().await;
    let options = etcd.options();
    let (store, other) = (open(options.clone()), open(options));
    let made = write(&store, "a", Revision::ZERO).await.expect("it's free");
    write(&store, "a", made).await.expect("nobody else writes");
    log(&*store, vec![entry("old", 2 * HOUR)]).await;
    log(&*store, vec![entry("young", HOUR / 2)]).await;
    let mut reader = Reader::with_snapshot(&*store).await;
    store.keep(quick());
    other.keep(quick());
    until("the old entry goes", || async { steps(&*store).await == ["young"] }).await;
    let of_then = List { at: Some(made), ..List::default() };
    until("the old revision goes", || async { matches!(store.list(of_then.clone()).await, Err(Error::Compacted(_))) })
        .await;
    let last = write(&other, "b", Revision::ZERO).await.expect("it's free");
    reader.until(last).await;
    assert_eq!((reader.world.len(), store.counts().lies(), other.counts().lies()), (2, 0, 0));
    assert_eq!(steps(&*store).await, ["young"]);
}

#[tokio::test]
async fn of_too_much_history_the_oldest_goes() {
    let etcd = Etcd::start().await;
    let store = open(etcd.options());
    for n in 0..20 {
        let big = LogEntry { bytes: Bytes::from(vec![0; 10_000]), ..entry(&n.to_string(), HOUR) };
        log(&*store, vec![big]).await;
    }
    store.keep(Upkeep { history_max_bytes: 50_000, ..quick() });
    until("it's within bounds", || async { steps(&*store).await == ["15", "16", "17", "18", "19"] }).await;
}

/// Some may hold as much as a transaction may.
#[tokio::test]
async fn history_that_no_one_answer_holds_is_read_and_forgotten_all_the_same() {
    let etcd = Etcd::start().await;
    let store = open(etcd.options());
    let (mut first, mut last) = (None, Revision::ZERO);
    for n in 0..100 {
        let [big, small] = [("big", 900_000), ("small", 1)].map(|(size, bytes)| {
            let text = format!("{n}-{size}");
            LogEntry { bytes: Bytes::from(vec![0; bytes]), ..entry(&text, HOUR) }
        });
        last = log(&*store, vec![big, small]).await;
        first.get_or_insert(last);
    }
    let all = steps(&*store).await;
    assert_eq!(all, (0..100).flat_map(|n| [format!("{n}-big"), format!("{n}-small")]).collect::<Vec<_>>());
    for (up_to, limit, expected) in [(None, 150, &all[50..]), (Some(Revision(last.0 - 1)), 3, &all[195..198])] {
        let records = store.history(HistoryQuery { up_to, limit, ..HistoryQuery::default() }).await;
        let steps: Vec<_> = records.expect("it's read").into_iter().map(|record| record.entry.step_id).collect();
        assert_eq!(steps, expected);
    }
    let made = write(&store, "a", Revision::ZERO).await.expect("it's free");
    write(&store, "a", made).await.expect("nobody else writes");
    store.keep(Upkeep { history_max_bytes: 5_000_000, ..quick() });
    // Not all of it again and again, which would keep etcd from forgetting it.
    let oldest = HistoryQuery { up_to: first, ..HistoryQuery::default() };
    until("the oldest goes", || async { store.history(oldest.clone()).await.is_ok_and(|told| told.is_empty()) }).await;
    until("it's within bounds", || async { store.history(HistoryQuery::default()).await.is_ok_and(|h| h.len() < 20) })
        .await;
    let of_then = List { at: Some(made), ..List::default() };
    until("the old revision goes", || async { matches!(store.list(of_then.clone()).await, Err(Error::Compacted(_))) })
        .await;
}

/// As of much, on a machine that has other things to do.
#[tokio::test]
async fn history_that_takes_longer_than_other_calls_is_waited_for() {
    let etcd = Etcd::start().await;
    let proxy = GrpcProxy::start(&etcd.endpoints()[0], Arc::new(Passer)).await;
    let mut options = etcd.options();
    options.endpoints = vec![proxy.address.to_string()];
    let store = open(options);
    log(&*store, vec![entry("told", HOUR)]).await;
    proxy.hold.send_replace(Hold::Answers("/Range"));
    let mut asking = Box::pin(steps(&*store));
    let answered = tokio::time::timeout(DEADLINE_DEFAULT + Duration::from_millis(500), &mut asking).await;
    assert!(answered.is_err(), "it's still at it: {answered:?}");
    proxy.hold.send_replace(Hold::Nothing);
    assert_eq!(asking.await, ["told"]);
}

#[tokio::test]
async fn scarce_space_refuses_what_is_new_and_lets_go_of_what_is_old() {
    // etcd itself has much more, so that it's we who refuse.
    let etcd = Etcd::start().await;
    let mut options = etcd.options();
    options.quota_bytes = QUOTA_BYTES as u64;
    let store = open(options.clone());
    let small = write(&store, "small", Revision::ZERO).await.expect("it's free");
    // It looks, but its turn doesn't come.
    store.keep(Upkeep { every: 10 * PATIENCE, look_every: Duration::from_millis(50), ..quick() });
    let mut last = Revision::ZERO;
    while store.space_percent() < FULL_PERCENT {
        last = write_big(&store, last).await.expect("what exists can change");
    }
    let refused = write(&store, "new", Revision::ZERO).await;
    assert!(matches!(&refused, Err(Error::Unavailable(why)) if why.contains("nothing new is created")), "{refused:?}");
    let old_too = Transaction { writes: vec![put(resource("small"), Revision::ZERO)], ..Transaction::default() };
    assert!(matches!(store.commit(old_too).await, Err(Error::Conflict { .. })), "what is wrong anyway is said first");
    remove(&store, "small", small).await.expect("deletes pass");

    let keeper = open(options);
    keeper.keep(quick());
    until("there is space again", || async { write(&store, "new", Revision::ZERO).await.is_ok() }).await;
}
