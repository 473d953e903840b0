//! etcd's own log of what was committed, read past everything of ours: keys and values as they are documented to be, not
//! by the code that writes them.

use std::{collections::BTreeMap, time::Duration};

use api::v1;
use driftless_tests::history::{Commit, Content};
use etcd_client::{Client, Event, EventType, WatchOptions};
use prost::Message;
use store_etcd::testing::Etcd;
use tokio::time::timeout;

use crate::recorder::digest;

const PREFIX: &str = "driftless/";
/// A key that nobody else knows. What was committed before it's written has been told, and whole, once it is told.
const MARK: &str = "driftless/end-of-the-log";
const PATIENCE: Duration = Duration::from_secs(30);

/// Every commit from the first on; nothing may have been compacted.
pub async fn read(etcd: &Etcd) -> Vec<Commit> {
    let mut client = client(etcd).await;
    let mark = client.put(MARK, "", None).await.expect("etcd answers");
    let end = mark.header().expect("an answer has a header").revision();
    let options = WatchOptions::new().with_prefix().with_start_revision(1).with_fragment();
    let mut watch = client.watch(PREFIX, Some(options)).await.expect("etcd answers");
    let mut commits: BTreeMap<i64, Commit> = BTreeMap::new();
    let mut at = 0;
    while at < end {
        let message = timeout(PATIENCE, watch.message()).await.expect("the log comes in time");
        let message = message.expect("the log can be read").expect("the log doesn't end");
        assert!(!message.canceled(), "the log is gone: {}", message.cancel_reason());
        for event in message.events() {
            at = at.max(event.kv().map_or(0, |kv| kv.mod_revision()));
            if at < end {
                take(&mut commits, event);
            }
        }
    }
    let told = |commit: &Commit| commit.announced.is_some() || !commit.changes.is_empty();
    commits.into_values().filter(told).collect()
}

pub async fn client(etcd: &Etcd) -> Client {
    for index in 0..etcd.members.len() {
        if etcd.answers(index).await {
            return etcd.client(index).await.expect("it just answered");
        }
    }
    panic!("no member of etcd answers");
}

fn take(commits: &mut BTreeMap<i64, Commit>, event: &Event) {
    let kv = event.kv().expect("an event has a key");
    let key = std::str::from_utf8(kv.key()).expect("keys are text");
    let revision = kv.mod_revision();
    let commit = commits.entry(revision).or_insert_with(|| Commit { revision, ..Commit::default() });
    let put = event.event_type() == EventType::Put;
    match key.strip_prefix(PREFIX).map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
        Some(("w", "head")) => commit.announced = std::str::from_utf8(kv.value()).ok().and_then(|n| n.parse().ok()),
        Some(("w", object)) => {
            let key = object.strip_prefix("o/").expect("an object's key").to_owned();
            commit.changes.insert(key, put.then(|| content(kv.value())));
        }
        Some(("m", member)) => {
            if let (Some(claim), true) = (member.strip_prefix("c/"), put) {
                let text = std::str::from_utf8(kv.value()).expect("a claim is text");
                let epoch = text.split(' ').next().and_then(|epoch| epoch.parse().ok()).expect("a claim has an epoch");
                commit.claims.push((claim.to_owned(), epoch));
            }
        }
        Some(("h", _)) if put => {
            let kept = Kept::decode(kv.value()).expect("a history record can be decoded");
            let entry = v1::HistoryEntry::decode(kept.entry.as_slice()).expect("an entry can be decoded");
            let under = (entry.claim, entry.epoch);
            if !under.0.is_empty() && !commit.under.contains(&under) {
                commit.under.push(under);
            }
        }
        _ => {}
    }
}

/// A history record, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct Kept {
    #[prost(bytes = "vec", tag = "3")]
    entry: Vec<u8>,
}

pub fn content(bytes: &[u8]) -> Content {
    let resource = v1::Resource::decode(bytes).expect("a resource can be decoded");
    let metadata = resource.metadata.unwrap_or_default();
    let marker = metadata.labels.get(crate::recorder::MARKER).cloned().unwrap_or_default();
    Content { uid: metadata.uid, digest: digest(bytes), marker }
}
