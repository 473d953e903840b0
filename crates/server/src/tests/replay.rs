//! Whatever happens, and however late a watcher looks: what it was told, replayed, is what its filter covers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::v1;
use futures::{FutureExt, StreamExt};
use kinds::{
    instance::{self, PHASES},
    node, service,
};
use model::{Digest, Filter, Key, Object, Revision};
use proptest::prelude::*;
use prost::Message;
use prost_types::Any;
use store::{Change, Group, HeadNote, Memory, ShardSet, WatchItem, WatchOptions, WatchStream};
use tokio::sync::watch;

use super::fixtures::config;
use crate::{
    Config,
    record::Record,
    shared::Shared,
    watch::{LAG_GROUPS_MAX, stream_of},
};

const INCARNATION: &str = "i1";
/// Small, so that watchers fall out of it.
const RING: usize = 400;

#[derive(Clone, Debug)]
enum Op {
    /// So many transactions, each with one to three changes made from the seed.
    Commit {
        seed: u64,
        times: usize,
    },
    /// A watcher reads all there is for it.
    Pull {
        watcher: usize,
    },
    /// The store is listed anew, having lost so many changes on the way.
    Relist {
        lost: u64,
        times: usize,
    },
    Shards {
        watcher: usize,
        shards: Vec<u32>,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let few = prop_oneof![6 => 1..4_usize, 1 => Just(LAG_GROUPS_MAX + 5), 1 => Just(RING + 5)];
    let op = prop_oneof![
        5 => (any::<u64>(), few).prop_map(|(seed, times)| Op::Commit { seed, times }),
        5 => (0..6_usize).prop_map(|watcher| Op::Pull { watcher }),
        1 => (any::<u64>(), 0..3_usize).prop_map(|(lost, times)| Op::Relist { lost, times }),
        2 => (4..6_usize, prop::collection::btree_set(0..4_u32, 0..4))
            .prop_map(|(watcher, shards)| Op::Shards { watcher, shards: shards.into_iter().collect() }),
    ];
    prop::collection::vec(op, 1..40)
}

/// The store as it really is.
#[derive(Default)]
struct Truth {
    objects: BTreeMap<Key, Object>,
    revision: i64,
    commits: u64,
    uids: u64,
}

impl Truth {
    fn commit(&mut self, seed: u64) -> Group {
        let from = Revision(self.revision);
        self.revision += 1 + i64::try_from(seed % 2).unwrap();
        self.commits += 1;
        let mut changes = BTreeMap::new();
        for n in 0..=(seed >> 8) % 3 {
            let bits = (seed >> (16 + 12 * n)) & 0xfff;
            let kind = ["Service", "Instance", "Node"][usize::try_from(bits % 3).unwrap()];
            let key = Key::new(kind, if kind == "Node" { "" } else { "default" }, &format!("r{}", (bits >> 2) % 4));
            let change = self.change(&key, bits);
            changes.entry(key).or_insert(change);
        }
        let changes: Vec<Change> = changes.into_values().flatten().collect();
        for change in &changes {
            match change {
                Change::Put(object) => drop(self.objects.insert(object.key.clone(), object.clone())),
                Change::Deleted { key, .. } => drop(self.objects.remove(key)),
            }
        }
        let writes = u32::try_from(changes.len()).unwrap();
        let head = Some(HeadNote { commits: self.commits, writes });
        Group { from, to: Revision(self.revision), coalesced: false, changes, head }
    }

    /// A put (of a new one where there's none), or a removal.
    fn change(&mut self, key: &Key, bits: u64) -> Option<Change> {
        let known = self.objects.get(key).map(|object| object.resource().unwrap().metadata.unwrap());
        let revision = Revision(self.revision);
        if (bits >> 5).is_multiple_of(4) {
            let uid = known?.uid;
            return Some(Change::Deleted { key: key.clone(), uid, revision, left: false });
        }
        self.uids += 1;
        let shard = u32::try_from((bits >> 7) % 4).unwrap();
        let fresh = || v1::Metadata {
            kind: key.kind().into(),
            namespace: key.namespace().into(),
            name: key.name().into(),
            uid: format!("u{}", self.uids),
            shard: if key.kind() == "Node" { 0 } else { shard },
            ..Default::default()
        };
        let mut metadata = known.unwrap_or_else(fresh);
        metadata.labels = [("app".to_owned(), format!("a{}", (bits >> 9) % 2))].into();
        metadata.generation += 1;
        let status = status(key.kind(), metadata.generation, bits);
        let spec = (key.kind() == "Instance").then(|| bound(&metadata));
        let bytes = Object::encode(v1::Resource { metadata: Some(metadata), status, spec });
        Some(Change::Put(Object { key: key.clone(), revision, bytes }))
    }

    fn covered(&self, filter: &Filter) -> BTreeMap<Key, Object> {
        let visible = |object: &&Object| filter.matches(&Record::new(object).facts(&object.key));
        self.objects.values().filter(visible).map(|object| (object.key.clone(), object.clone())).collect()
    }
}

/// Some are on a node of their own name, which may be there.
fn bound(metadata: &v1::Metadata) -> Any {
    let node = if metadata.uid.ends_with(['0', '1', '2']) { String::new() } else { metadata.name.clone() };
    kinds::any(instance::SPEC, &v1::InstanceSpec { node, ..Default::default() })
}

/// What a status may say, also of a generation before, and what an older or newer build says; often nothing.
fn status(kind: &str, generation: i64, bits: u64) -> Option<Any> {
    let pick = |shift: u64, words: &[&str]| words[usize::try_from(bits >> shift).unwrap() % words.len()].to_owned();
    let condition = |r#type: &str, status| v1::Condition { r#type: r#type.into(), status, ..Default::default() };
    let ready = condition("Ready", pick(3, &["True", "False", "Unknown", "", "True"]));
    let conditions = match (bits >> 6) % 4 {
        0 => vec![],
        1 => vec![condition("Progressing", pick(4, &["True", "False"])), ready],
        _ => vec![
            ready,
            condition("Placed", "True".into()),
            condition(&pick(7, &node::TROUBLES), pick(8, &["True", "False"])),
        ],
    };
    let observed_generation = generation - i64::from((bits >> 2).is_multiple_of(5));
    match (kind, bits % 7) {
        (_, 0) => None,
        ("Service", _) => {
            let status = v1::ServiceStatus { observed_generation, conditions, replicas: 3, ..Default::default() };
            Some(kinds::any(service::STATUS, &status))
        }
        ("Instance", _) => {
            let phase = pick(5, &["Running", "Pending", "Failed", "Hibernating", "", "BackOff", "Finished"]);
            let restarts = i32::try_from(bits % 5).unwrap();
            let status = v1::InstanceStatus { observed_generation, conditions, phase, restarts, ..Default::default() };
            Some(kinds::any(instance::STATUS, &status))
        }
        _ => {
            let status = v1::NodeStatus { observed_generation, conditions, ..Default::default() };
            Some(kinds::any(node::STATUS, &status))
        }
    }
}

/// A reader that believes what it's told, and checks how it's told.
struct Reader {
    stream: WatchStream,
    filter: Filter,
    shards: Option<watch::Sender<ShardSet>>,
    known: BTreeMap<Key, Object>,
    /// (object, revision) pairs since the last whole snapshot.
    seen: BTreeSet<(Key, Revision)>,
    told: Revision,
    partial: Option<Vec<u32>>,
}

impl Reader {
    fn open(shared: &Arc<Shared>, filter: Filter, changeable: bool) -> Self {
        let sender = changeable.then(|| watch::Sender::new(filter.shards.clone().map(Arc::new)));
        let options = WatchOptions {
            filter: filter.clone(),
            shards: sender.as_ref().map(watch::Sender::subscribe),
            ..Default::default()
        };
        Self {
            stream: stream_of(shared.clone(), options),
            filter,
            shards: sender,
            known: BTreeMap::new(),
            seen: BTreeSet::new(),
            told: Revision::ZERO,
            partial: None,
        }
    }

    /// Reads all there is; a watch that lags must not hand out more than a bounded number of groups.
    fn pull(&mut self) {
        let mut groups = 0;
        while let Some(item) = self.stream.next().now_or_never() {
            match item.expect("the watch goes on").expect("the watch works") {
                WatchItem::SnapshotStart { partial, revision, .. } => self.start(partial, revision),
                WatchItem::Snapshot(objects) => objects.into_iter().for_each(|object| self.listed(object)),
                WatchItem::SnapshotEnd { revision } => self.told = revision,
                WatchItem::Changes(group) => {
                    groups += 1;
                    self.take(group);
                }
                WatchItem::Bookmark(bookmark) => {
                    assert!(bookmark.revision >= self.told, "bookmarks never go back");
                    self.told = bookmark.revision;
                }
                WatchItem::End { reason, .. } => panic!("ended: {reason}"),
            }
        }
        assert!(groups <= LAG_GROUPS_MAX, "{groups} groups at once");
    }

    fn start(&mut self, partial: Option<Vec<u32>>, revision: Revision) {
        assert!(revision >= self.told, "snapshots never go back");
        match &partial {
            None => {
                self.known.clear();
                self.seen.clear();
            }
            Some(shards) => self.keep(|shard| !shards.contains(&shard)),
        }
        self.partial = partial;
    }

    /// Forgets what isn't in these shards, and what it was told of it.
    fn keep(&mut self, keeps: impl Fn(u32) -> bool) {
        let global = |key: &Key| key.kind() == "Node";
        let shard = |object: &Object| object.resource().unwrap().metadata.unwrap().shard;
        self.known.retain(|key, object| global(key) || keeps(shard(object)));
        let known = &self.known;
        self.seen.retain(|(key, _)| known.contains_key(key));
    }

    fn listed(&mut self, object: Object) {
        if let Some(shards) = &self.partial {
            let shard = object.resource().unwrap().metadata.unwrap().shard;
            assert!(shards.contains(&shard) && object.key.kind() != "Node", "{} is not asked for", object.key);
        }
        self.seen.insert((object.key.clone(), object.revision));
        self.known.insert(object.key.clone(), object);
    }

    fn take(&mut self, group: Group) {
        assert_eq!(group.from, self.told, "groups follow on");
        assert!(group.to >= group.from);
        assert!(!group.changes.is_empty(), "an empty group tells nothing");
        for change in group.changes {
            match change {
                Change::Put(object) => {
                    assert!(object.revision <= group.to);
                    let first = self.seen.insert((object.key.clone(), object.revision));
                    assert!(first, "{} at {} was told twice", object.key, object.revision);
                    if let Some(known) = self.known.get(&object.key) {
                        assert!(known.revision < object.revision, "{} went back", object.key);
                    }
                    self.known.insert(object.key.clone(), object);
                }
                Change::Deleted { key, uid, revision, .. } => {
                    let known = self.known.remove(&key).unwrap_or_else(|| panic!("{key} wasn't known"));
                    assert_eq!(known.resource().unwrap().metadata.unwrap().uid, uid, "{key} is another one");
                    assert!(revision <= group.to && revision >= known.revision);
                }
            }
        }
        self.told = group.to;
    }

    fn set_shards(&mut self, shards: Vec<u32>) {
        self.pull();
        self.keep(|shard| shards.contains(&shard));
        self.filter.shards = Some(shards.clone());
        self.shards.as_ref().unwrap().send_replace(Some(Arc::new(shards)));
        // A set that is replaced before the server saw it was never asked for.
        self.pull();
    }
}

fn filters() -> Vec<(Filter, bool)> {
    let shards = |shards: &[u32]| Filter { shards: Some(shards.to_vec()), ..Filter::default() };
    vec![
        (Filter::default(), false),
        (Filter::kind("Service"), false),
        (Filter::default().with_labels("app=a1").unwrap(), false),
        (Filter { node: "r1".into(), ..Filter::default() }, false),
        (shards(&[1, 2]), true),
        (shards(&[]), true),
    ]
}

fn run(ops: Vec<Op>) {
    let config = Config { ring_groups_max: RING, ..config("s1") };
    let shared = Arc::new(Shared::new(config, Arc::new(Memory::default())));
    let mut truth = Truth::default();
    shared.install(INCARNATION, Revision::ZERO, &[]);
    shared.filled(false);
    let mut readers: Vec<Reader> =
        filters().into_iter().map(|(filter, changeable)| Reader::open(&shared, filter, changeable)).collect();
    for op in ops {
        match op {
            Op::Commit { seed, times } => {
                for n in 0..times {
                    let group = truth.commit(seed.rotate_left(u32::try_from(n % 64).unwrap()).wrapping_add(n as u64));
                    shared.apply(vec![group]).expect("nothing was lost");
                }
            }
            Op::Pull { watcher } => readers[watcher].pull(),
            Op::Relist { lost, times } => {
                for n in 0..times {
                    truth.commit(lost.rotate_left(u32::try_from(n).unwrap()));
                }
                let objects: Vec<Object> = truth.objects.values().cloned().collect();
                shared.install(INCARNATION, Revision(truth.revision), &objects);
            }
            Op::Shards { watcher, shards } => readers[watcher].set_shards(shards),
        }
    }
    for reader in &mut readers {
        reader.pull();
        assert_eq!(reader.known, truth.covered(&reader.filter), "through {:?}", reader.filter);
    }
    check_digests(&shared, &truth);
    check_tally(&shared, &truth);
}

/// Kept change by change, they are what one would compute from scratch.
fn check_digests(shared: &Shared, truth: &Truth) {
    let mut digests: BTreeMap<(u32, &str), Digest> = BTreeMap::new();
    for object in truth.objects.values() {
        let metadata = object.resource().unwrap().metadata.unwrap();
        let term = Digest::term(&object.key, &metadata.uid, object.revision, &object.bytes);
        digests.entry((metadata.shard, object.key.kind())).or_default().add(term);
    }
    for kind in ["Service", "Instance", "Node"] {
        for shard in 0..4 {
            let expected = digests.get(&(shard, kind)).copied().unwrap_or_default();
            assert_eq!(shared.cache().digest(shard, kind), expected, "{kind} of shard {shard}");
        }
    }
}

/// Kept change by change, it is what one counts who decodes everything.
fn check_tally(shared: &Shared, truth: &Truth) {
    let mut by_ready: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    let mut by_phase: BTreeMap<&str, i64> = PHASES.iter().chain(&["Unknown"]).map(|phase| (*phase, 0)).collect();
    let mut troubles: BTreeMap<&str, i64> = node::TROUBLES.iter().map(|trouble| (*trouble, 0)).collect();
    let mut restarts = 0;
    for (key, object) in &truth.objects {
        let resource = object.resource().unwrap();
        let status = resource.status.clone().unwrap_or_default().value;
        let generation = resource.metadata.clone().unwrap().generation;
        let ready = match key.kind() {
            "Service" => {
                let status = v1::ServiceStatus::decode(status.as_slice()).unwrap();
                ready(&status.conditions, generation == status.observed_generation)
            }
            "Instance" => {
                let status = v1::InstanceStatus::decode(status.as_slice()).unwrap();
                restarts += i64::from(status.restarts);
                let phase = PHASES.into_iter().find(|phase| *phase == status.phase).unwrap_or("Pending");
                let unheard = phase != "Finished" && is_on_silent_node(truth, &resource);
                *by_phase.get_mut(if unheard { "Unknown" } else { phase }).unwrap() += 1;
                let ready = ready(&status.conditions, generation == status.observed_generation);
                if unheard { "unknown" } else { ready }
            }
            _ => {
                let status = v1::NodeStatus::decode(status.as_slice()).unwrap();
                let wrong =
                    |trouble: &str| status.conditions.iter().any(|c| c.r#type == trouble && c.status == "False");
                troubles.iter_mut().for_each(|(trouble, count)| *count += i64::from(wrong(trouble)));
                ready(&status.conditions, generation == status.observed_generation)
            }
        };
        *by_ready.entry((key.kind(), ready)).or_default() += 1;
    }
    let tally = shared.cache().tally().totals().clone();
    assert_eq!(tally.by_ready().map(|([kind, ready], n)| ((kind, ready), n)).collect::<BTreeMap<_, _>>(), by_ready);
    assert_eq!(tally.by_phase().map(|([phase], n)| (phase, n)).collect::<BTreeMap<_, _>>(), by_phase);
    assert_eq!(tally.troubles().map(|([trouble], n)| (trouble, n)).collect::<BTreeMap<_, _>>(), troubles);
    assert_eq!(tally.restarts(), restarts);
}

fn ready(conditions: &[v1::Condition], is_declared: bool) -> &'static str {
    let said = conditions.iter().find(|c| c.r#type == "Ready").map_or("", |c| &c.status);
    match (said, is_declared) {
        ("True", true) => "true",
        ("True" | "False", _) => "false",
        _ => "unknown",
    }
}

/// Its node is Unknown, or there's no record of it.
fn is_on_silent_node(truth: &Truth, instance: &v1::Resource) -> bool {
    let spec: v1::InstanceSpec = kinds::typed("spec", instance.spec.as_ref()).unwrap();
    let node = truth.objects.get(&Key::new("Node", "", &spec.node));
    let status = node.and_then(|node| node.resource().unwrap().status).unwrap_or_default();
    let status = v1::NodeStatus::decode(status.value.as_slice()).unwrap();
    !spec.node.is_empty() && ready(&status.conditions, true) == "unknown"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_a_watcher_was_told_is_what_there_is(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async { run(ops) });
    }
}
