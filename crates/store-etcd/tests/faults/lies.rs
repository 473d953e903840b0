//! Watches that leave something out, or say it twice: what is missing is found by the counter in `head`, healed with one
//! coalesced group, and counted.

use std::sync::Arc;

use driftless_store_etcd::{Counts, EtcdStore, testing::Etcd};
use model::Revision;
use store::{
    Change, Store, WatchItem,
    conformance::{Coordinated, Reader, shown},
};

use crate::{
    proxy::Proxy,
    support::{key, open, remove, session, write},
};

/// A store whose watches go through a proxy, and one that writes around it.
struct Lied {
    _etcd: Etcd,
    proxy: Proxy,
    watcher: Arc<EtcdStore>,
    writer: Arc<EtcdStore>,
}

impl Lied {
    async fn start() -> Self {
        let etcd = Etcd::start().await;
        let proxy = Proxy::start(&etcd.endpoints()[0]);
        let options = etcd.options();
        let mut through = options.clone();
        through.endpoints = vec![proxy.endpoint.clone()];
        Self { _etcd: etcd, proxy, watcher: open(through), writer: open(options) }
    }

    /// The reader, which checks what holds of every watch, must end up with what the store has.
    async fn assert_healed(&self, reader: &mut Reader, up_to: Revision) -> Counts {
        reader.until(up_to).await;
        let stored = self.writer.list(Default::default()).await.expect("it lists").objects;
        assert_eq!(shown(&reader.world.values().cloned().collect::<Vec<_>>()), shown(&stored));
        self.watcher.counts()
    }
}

#[tokio::test]
async fn nothing_is_listed_anew_while_nothing_lies() {
    let lied = Lied::start().await;
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    let mut last = Revision::ZERO;
    for n in 0..100 {
        last = write(&lied.writer, &format!("s{n}"), Revision::ZERO).await.expect("it's free");
    }
    let counts = lied.assert_healed(&mut reader, last).await;
    assert_eq!((counts.lies(), counts.relists_compacted, counts.repeated_events), (0, 0, 0));
}

#[tokio::test]
async fn a_dropped_event_is_missed() {
    let lied = Lied::start().await;
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    lied.proxy.drop_first(|event| event.is_of("/b"));
    write(&lied.writer, "a", Revision::ZERO).await.expect("it's free");
    let last = write(&lied.writer, "b", Revision::ZERO).await.expect("it's free");
    let counts = lied.assert_healed(&mut reader, last).await;
    assert_eq!((counts.relists_missing, counts.lies()), (1, 1));
}

#[tokio::test]
async fn a_dropped_delete_is_found_with_its_uid() {
    let lied = Lied::start().await;
    let made = write(&lied.writer, "a", Revision::ZERO).await.expect("it's free");
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    lied.proxy.drop_first(|event| event.kind == 1 && event.is_of("/a"));
    remove(&lied.writer, "a", made).await.expect("it's there");
    let group = reader.group().await;
    assert!(group.coalesced);
    let uid = "uid-a".to_owned();
    assert_eq!(group.changes, [Change::Deleted { key: key("a"), uid, revision: group.to, left: false }]);
    assert_eq!(lied.watcher.counts().relists_missing, 1);
}

#[tokio::test]
async fn a_dropped_commit_is_a_gap_at_the_next_one() {
    let lied = Lied::start().await;
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    let lost = write(&lied.writer, "z", Revision::ZERO).await.expect("it's free");
    reader.until(lost).await;
    lied.proxy.lie(move |answer| {
        let of_next = |event: &crate::proxy::Event| event.kv.as_ref().is_some_and(|kv| kv.mod_revision == lost.0 + 1);
        answer.events.retain(|event| !of_next(event));
    });
    write(&lied.writer, "a", Revision::ZERO).await.expect("it's free");
    let last = write(&lied.writer, "b", Revision::ZERO).await.expect("it's free");
    let counts = lied.assert_healed(&mut reader, last).await;
    assert_eq!((counts.relists_gap, counts.lies()), (1, 1));
}

#[tokio::test]
async fn a_dropped_last_commit_is_found_though_nothing_follows() {
    let lied = Lied::start().await;
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    lied.proxy.lie(|answer| answer.events.clear());
    let last = write(&lied.writer, "a", Revision::ZERO).await.expect("it's free");
    let counts = lied.assert_healed(&mut reader, last).await;
    assert_eq!((counts.relists_lag, counts.lies()), (1, 1));
}

#[tokio::test]
async fn a_dropped_head_is_found_though_nothing_follows() {
    let lied = Lied::start().await;
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    lied.proxy.drop_first(|event| event.is_of("/head"));
    let last = write(&lied.writer, "a", Revision::ZERO).await.expect("it's free");
    let counts = lied.assert_healed(&mut reader, last).await;
    assert_eq!((counts.relists_lag, counts.lies()), (1, 1));
}

#[tokio::test]
async fn repeated_events_are_told_once() {
    let lied = Lied::start().await;
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    let mut before = Vec::new();
    lied.proxy.lie(move |answer| {
        let now = answer.events.clone();
        answer.events.append(&mut before);
        answer.events.extend(now.clone());
        before = now;
    });
    let mut last = Revision::ZERO;
    for _ in 0..10 {
        last = write(&lied.writer, "a", last).await.expect("nobody else writes");
    }
    let counts = lied.assert_healed(&mut reader, last).await;
    assert!(counts.repeated_events >= 10, "{counts:?}");
    assert_eq!(counts.lies(), 0);
}

#[tokio::test]
async fn a_dropped_end_of_a_session_is_found_by_the_sweep() {
    let lied = Lied::start().await;
    lied.writer.open_session(session("s1")).await.expect("it opens");
    let mut members = Coordinated::open(&*lied.watcher).await;
    members.until(|state| state.members.len() == 1).await;
    lied.proxy.lie(|answer| answer.events.clear());
    assert_eq!(lied.writer.end_session("s1", None).await, Ok(true));
    members.until_gone("s1").await;
}

#[tokio::test]
async fn a_cut_connection_loses_and_repeats_nothing() {
    let mut lied = Lied::start().await;
    let mut reader = Reader::with_snapshot(&*lied.watcher).await;
    for round in 0..3 {
        lied.proxy.cut();
        write(&lied.writer, &format!("while-cut-{round}"), Revision::ZERO).await.expect("it's free");
        lied.proxy.mend();
        let last = write(&lied.writer, &format!("after-{round}"), Revision::ZERO).await.expect("it's free");
        while reader.at < last {
            let WatchItem::Changes(group) = reader.item().await else { continue };
            assert!(!group.coalesced, "etcd still has all of it: {group:?}");
        }
    }
    assert_eq!(lied.assert_healed(&mut reader, Revision::ZERO).await.lies(), 0);
}
