//! Stands for the server: keeps instances, serves their watch, takes reports, and can be made to misbehave. It is no
//! store; the real one is tested elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use api::v1;
use async_trait::async_trait;
use futures::{StreamExt, stream};
use model::{Fence, Key, Object, Revision, Time};
use prost::Message;
use store::*;
use tokio::sync::watch as signal;

#[derive(Default)]
pub struct Server {
    state: Arc<Mutex<State>>,
    /// Bumped with every change.
    changed: signal::Sender<u64>,
}

#[derive(Default)]
struct State {
    incarnation: String,
    revision: i64,
    instances: BTreeMap<Key, v1::Resource>,
    /// What watchers see of each instance; the reports above don't come back to them.
    log: Vec<(i64, Change)>,
    sessions: BTreeSet<String>,
    ended: BTreeSet<String>,
    attach: u64,
    down: bool,
    /// Whoever asks for that panics.
    panics: Option<Asked>,
    cut_short: bool,
    snapshots: usize,
    /// The node is another machine's.
    taken: bool,
    batches: Vec<v1::ReportBatch>,
    hellos: Vec<v1::NodeHello>,
    node: Option<v1::NodeStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Watch,
    Report,
}

impl Server {
    pub fn new() -> Arc<Self> {
        let server = Self::default();
        server.state.lock().unwrap().incarnation = "store-a".into();
        Arc::new(server)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let out = change(&mut self.state.lock().unwrap());
        self.changed.send_modify(|n| *n += 1);
        out
    }

    pub fn assign(&self, resource: v1::Resource) {
        self.change(|state| state.put(resource));
    }

    pub fn delete(&self, key: &Key) {
        self.change(|state| {
            let mut resource = state.instances[key].clone();
            resource.metadata.as_mut().unwrap().deletion_time = Some(Time::from_millis(1).into());
            state.put(resource);
        });
    }

    /// The record goes, though nobody asked for it.
    pub fn vanish(&self, key: &Key) {
        self.change(|state| state.remove(key));
    }

    /// The same without a word to watchers.
    pub fn vanish_unsaid(&self, key: &Key) {
        self.change(|state| _ = state.instances.remove(key));
    }

    /// Loses all records without a word to watchers, as a restored or lying store does. Returns what is lost.
    pub fn lose_everything(&self, incarnation: &str) -> Vec<v1::Resource> {
        self.change(|state| {
            state.log.clear();
            state.incarnation = incarnation.into();
            std::mem::take(&mut state.instances).into_values().collect()
        })
    }

    /// Snapshots break off before their end from now on.
    pub fn set_cut_short(&self, cut_short: bool) {
        self.change(|state| state.cut_short = cut_short);
    }

    /// That were begun.
    pub fn snapshots(&self) -> usize {
        self.state.lock().unwrap().snapshots
    }

    /// Watches break, and nothing answers until it's up again.
    pub fn set_down(&self, down: bool) {
        self.change(|state| state.down = down);
    }

    pub fn set_panics(&self, asked: Asked) {
        self.change(|state| state.panics = Some(asked));
    }

    fn may_panic(&self, asked: Asked) {
        let panics = self.state.lock().unwrap().panics;
        assert_ne!(panics, Some(asked), "as the test wants");
    }

    pub fn set_taken(&self, taken: bool) {
        self.change(|state| state.taken = taken);
    }

    pub fn end_sessions(&self) {
        self.change(|state| {
            let ended = std::mem::take(&mut state.sessions);
            state.ended.extend(ended);
        });
    }

    pub fn status(&self, key: &Key) -> Option<v1::InstanceStatus> {
        let state = self.state.lock().unwrap();
        let status = state.instances.get(key)?.status.as_ref()?;
        Some(v1::InstanceStatus::decode(status.value.as_slice()).unwrap())
    }

    pub fn exists(&self, key: &Key) -> bool {
        self.state.lock().unwrap().instances.contains_key(key)
    }

    pub fn node(&self) -> Option<v1::NodeStatus> {
        self.state.lock().unwrap().node.clone()
    }

    /// Every report of an instance, in order.
    pub fn reports(&self, key: &Key) -> Vec<v1::InstanceReport> {
        let state = self.state.lock().unwrap();
        let all = state.batches.iter().flat_map(|batch| &batch.instances);
        all.filter(|r| r.key.as_ref().map(Key::from).as_ref() == Some(key)).cloned().collect()
    }

    pub fn batches(&self) -> Vec<v1::ReportBatch> {
        self.state.lock().unwrap().batches.clone()
    }

    pub fn hellos(&self) -> Vec<v1::NodeHello> {
        self.state.lock().unwrap().hellos.clone()
    }

    pub async fn until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        while !condition(self) {
            changed.changed().await.unwrap();
        }
    }

    /// Each change after that revision, until the server is down.
    fn follow(&self, from: i64) -> impl futures::Stream<Item = Result<WatchItem>> + use<> {
        let start = (from, self.changed.subscribe(), Arc::clone(&self.state));
        stream::unfold(start, |(from, mut changed, state)| async move {
            loop {
                changed.borrow_and_update();
                match state.lock().unwrap().since(from) {
                    None => return None,
                    Some(group) if group.changes.is_empty() => {}
                    Some(group) => {
                        let next = group.to.0;
                        return Some((Ok(WatchItem::Changes(group)), (next, changed, Arc::clone(&state))));
                    }
                }
                changed.changed().await.ok()?;
            }
        })
    }

    fn up(&self) -> Result<()> {
        let down = self.state.lock().unwrap().down;
        if down { Err(Error::Unavailable("down".into())) } else { Ok(()) }
    }
}

impl State {
    fn put(&mut self, mut resource: v1::Resource) {
        self.revision += 1;
        let key = Key::of(resource.metadata.as_ref().unwrap());
        resource.metadata.as_mut().unwrap().revision = self.revision;
        let object =
            Object { key: key.clone(), revision: Revision(self.revision), bytes: Object::encode(resource.clone()) };
        self.log.push((self.revision, Change::Put(object)));
        self.instances.insert(key, resource);
    }

    fn remove(&mut self, key: &Key) {
        self.revision += 1;
        let resource = self.instances.remove(key).unwrap();
        let uid = resource.metadata.unwrap().uid;
        let revision = Revision(self.revision);
        self.log.push((self.revision, Change::Deleted { key: key.clone(), uid, revision, left: false }));
    }

    /// None: it's down.
    fn since(&self, from: i64) -> Option<Group> {
        let changes = self.log.iter().filter(|(revision, _)| *revision > from).map(|(_, c)| c.clone()).collect();
        let group = Group { from: Revision(from), to: Revision(self.revision), coalesced: true, changes, head: None };
        (!self.down).then_some(group)
    }

    fn snapshot(&self) -> Vec<WatchItem> {
        let object = |(key, resource): (&Key, &v1::Resource)| {
            let revision = Revision(resource.metadata.as_ref().unwrap().revision);
            Object { key: key.clone(), revision, bytes: Object::encode(resource.clone()) }
        };
        let revision = Revision(self.revision);
        let start = WatchItem::SnapshotStart {
            incarnation: self.incarnation.clone(),
            revision,
            time: Time::default(),
            partial: None,
        };
        vec![
            start,
            WatchItem::Snapshot(self.instances.iter().map(object).collect()),
            WatchItem::SnapshotEnd { revision },
        ]
    }
}

fn not_here<T>() -> Result<T> {
    Err(Error::Unavailable("not in this double".into()))
}

#[async_trait]
impl Store for Server {
    async fn cluster(&self) -> Result<Cluster> {
        not_here()
    }

    async fn get(&self, _key: &Key) -> Result<Option<Object>> {
        not_here()
    }

    async fn list(&self, _list: List) -> Result<Page> {
        not_here()
    }

    async fn watch(&self, options: WatchOptions) -> Result<WatchStream> {
        self.up()?;
        self.may_panic(Asked::Watch);
        let mut state = self.state.lock().unwrap();
        let resumed = options.resume.filter(|token| token.incarnation == state.incarnation);
        let (first, from) = match resumed {
            Some(token) => (Vec::new(), token.revision.0),
            None => (state.snapshot(), state.revision),
        };
        let revision = Revision(state.revision);
        let asked = options.min_revision > Revision::ZERO && options.min_revision <= revision;
        let bookmark = Bookmark { incarnation: state.incarnation.clone(), revision, ..Default::default() };
        let answer = asked.then(|| WatchItem::Bookmark(bookmark));
        state.snapshots += usize::from(!first.is_empty());
        if state.cut_short && !first.is_empty() {
            let begun: Vec<_> = first.into_iter().take(2).map(Ok).collect();
            return Ok(stream::iter(begun).boxed());
        }
        drop(state);
        Ok(stream::iter(first.into_iter().chain(answer).map(Ok)).chain(self.follow(from)).boxed())
    }

    /// Agents remove releases, nothing else.
    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        self.up()?;
        self.change(|state| {
            for write in &transaction.writes {
                assert!(matches!(write, Write::Remove { .. }) && write.key().kind() == "Release");
                state.remove(&write.key());
            }
            Ok(Revision(state.revision))
        })
    }

    async fn head(&self) -> Result<Head> {
        not_here()
    }

    async fn coordination(&self) -> Result<CoordinationStream> {
        not_here()
    }

    async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        self.up()?;
        self.change(|state| {
            if state.ended.contains(&open.session) {
                return Err(Error::SessionEnded(open.session));
            }
            state.sessions.insert(open.session);
            state.attach += 1;
            Ok(state.attach)
        })
    }

    async fn beat(&self, session: &str, _report: Option<v1::MemberReport>) -> Result<()> {
        self.up()?;
        let alive = self.state.lock().unwrap().sessions.contains(session);
        if alive { Ok(()) } else { Err(Error::SessionEnded(session.into())) }
    }

    async fn end_session(&self, _session: &str, _attach: Option<u64>) -> Result<bool> {
        not_here()
    }

    async fn change_claim(&self, _change: ClaimChange) -> Result<v1::Claim> {
        not_here()
    }

    async fn history(&self, _query: HistoryQuery) -> Result<Vec<LogRecord>> {
        not_here()
    }

    async fn trim_history(&self, _up_to: Revision) -> Result<usize> {
        not_here()
    }
}

#[async_trait]
impl Api for Server {
    async fn apply(&self, _caller: &Caller, _request: v1::ApplyRequest) -> Result<v1::ApplyResponse> {
        not_here()
    }

    async fn delete(&self, _caller: &Caller, _request: v1::DeleteRequest) -> Result<v1::DeleteResponse> {
        not_here()
    }

    async fn update_status(&self, _: &Caller, _: v1::UpdateStatusRequest) -> Result<v1::UpdateStatusResponse> {
        not_here()
    }

    async fn entries(&self, _request: v1::HistoryRequest) -> Result<v1::HistoryResponse> {
        not_here()
    }

    async fn register_node(&self, _caller: &Caller, hello: v1::NodeHello) -> Result<String> {
        self.up()?;
        if self.state.lock().unwrap().taken {
            return Err(Error::Denied("the node is another machine's".into()));
        }
        self.change(|state| {
            state.node = hello.status.clone();
            let key = Key::new("Node", "", &hello.node);
            if !state.instances.contains_key(&key) {
                state.put(super::world::resource(&key, &v1::NodeSpec::default()));
            }
            state.hellos.push(hello);
        });
        Ok("node-uid".into())
    }

    async fn report(
        &self,
        _caller: &Caller,
        fence: Fence,
        _node: &str,
        batch: v1::ReportBatch,
    ) -> Result<(Revision, Vec<Key>)> {
        self.up()?;
        self.may_panic(Asked::Report);
        let Fence::Session { session, attach } = fence else { return not_here() };
        self.change(|state| {
            if !state.sessions.contains(&session) || state.attach != attach {
                return Err(Error::Fenced("no such session".into()));
            }
            let mut refused = Vec::new();
            for report in &batch.instances {
                let key = Key::from(report.key.as_ref().unwrap());
                match state.instances.get_mut(&key) {
                    Some(resource) if resource.metadata.as_ref().unwrap().uid == report.uid => {
                        let value = report.status.clone().unwrap().encode_to_vec();
                        resource.status = Some(prost_types::Any { type_url: String::new(), value });
                        if report.gone {
                            state.remove(&key);
                        }
                    }
                    _ => refused.push(key),
                }
            }
            state.node = batch.node.clone().or(state.node.take());
            state.batches.push(batch);
            Ok((Revision(state.revision), refused))
        })
    }
}
