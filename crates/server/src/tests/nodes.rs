//! Agents: registering and reporting.

use std::{sync::Arc, time::Duration};

use api::v1;
use kinds::{any, instance, typed};
use model::{Fence, Key, Revision, condition};
use store::{Api, Caller, Error, Faults, Faulty, Memory, SessionOpen, Store, Write};

use super::fixtures::*;
use crate::Server;

fn agent() -> Caller {
    Caller::new(model::Actor::new("agent", "n1"))
}

fn node() -> Key {
    Key::new("Node", "", "n1")
}

fn hello(session: &str, attach: u64, machine: &str) -> v1::NodeHello {
    v1::NodeHello {
        node: "n1".into(),
        session: session.into(),
        attach,
        status: Some(v1::NodeStatus { machine_id: machine.into(), driver: "sim".into(), ..Default::default() }),
        labels: [("zone".to_owned(), "a".to_owned())].into(),
    }
}

async fn join(server: &Server, session: &str, machine: &str) -> store::Result<(String, Fence)> {
    let attach = open_session(server, session, "agent", "n1").await;
    let uid = server.register_node(&agent(), hello(session, attach, machine)).await?;
    Ok((uid, Fence::Session { session: session.into(), attach }))
}

/// A node, and so many instances bound to it.
async fn populated(server: &Server, count: usize) -> (Fence, Vec<v1::Resource>) {
    let (uid, agent) = join(server, "a1", "m1").await.unwrap();
    let parent = declare(server, "web").await;
    let shard = shard_fence(server, metadata(&parent).shard).await;
    let creates = (0..count).map(|i| put(instance_of(&parent, &format!("web-abc-{i}"))));
    server.commit(step(shard, creates.chain([put(parent.clone())]).collect())).await.unwrap();
    let leader = claim_as(server, "leader", "c2").await;
    let mut bound = Vec::new();
    for i in 0..count {
        let resource = get(server, &Key::new("Instance", "default", &format!("web-abc-{i}"))).await;
        let mut spec: v1::InstanceSpec = typed("spec", resource.spec.as_ref()).unwrap();
        (spec.node, spec.node_uid) = ("n1".into(), uid.clone());
        bound.push(put(v1::Resource { spec: Some(any(instance::SPEC, &spec)), ..resource }));
    }
    server.commit(step(leader, bound)).await.unwrap();
    let mut instances = Vec::new();
    for i in 0..count {
        instances.push(get(server, &Key::new("Instance", "default", &format!("web-abc-{i}"))).await);
    }
    (agent, instances)
}

fn running(resource: &v1::Resource) -> v1::InstanceReport {
    let status = v1::InstanceStatus {
        phase: "Running".into(),
        ready: true,
        pid: 42,
        conditions: vec![condition("Ready", Some(true), "Up", "")],
        ..Default::default()
    };
    let metadata = metadata(resource);
    v1::InstanceReport {
        key: Some((&Key::of(&metadata)).into()),
        uid: metadata.uid,
        status: Some(status),
        ..Default::default()
    }
}

fn batch(instances: impl IntoIterator<Item = v1::InstanceReport>) -> v1::ReportBatch {
    v1::ReportBatch { sequence: 1, instances: instances.into_iter().collect(), node: None }
}

async fn status_of(server: &Server, resource: &v1::Resource) -> v1::InstanceStatus {
    let now = get(server, &Key::of(&metadata(resource))).await;
    typed("status", now.status.as_ref()).unwrap()
}

#[tokio::test]
async fn registering_makes_the_node_and_again_writes_nothing() {
    let server = start().await;
    let (uid, _) = join(&server, "a1", "m1").await.unwrap();
    let node = get(&server, &node()).await;
    assert_eq!((metadata(&node).uid, metadata(&node).shard), (uid.clone(), 0));
    assert_eq!(metadata(&node).labels["zone"], "a");
    let head = server.head().await.unwrap();
    let attach = open_session(&server, "a1", "agent", "n1").await;
    assert_eq!(server.register_node(&agent(), hello("a1", attach, "m1")).await.unwrap(), uid);
    assert_eq!(server.head().await.unwrap(), head);
}

#[tokio::test]
async fn another_machine_cannot_take_a_living_nodes_name() {
    let server = start().await;
    let (uid, fence) = join(&server, "a1", "m1").await.unwrap();
    let said = message(join(&server, "b1", "m2").await);
    assert!(said.contains("node \"n1\" is another machine's"), "{said}");
    server.end_session("b1", None).await.unwrap();
    let (again, _) = join(&server, "a2", "m1").await.unwrap();
    assert_eq!(again, uid, "the machine itself may come back");
    let news = Some(v1::NodeStatus { driver: "late".into(), ..Default::default() });
    let late = server.report(&agent(), fence, "n1", v1::ReportBatch { node: news, ..batch([]) }).await;
    assert!(matches!(late, Err(Error::Fenced(_))), "its older incarnation was replaced");
    server.end_session("a2", None).await.unwrap();
    assert_eq!(join(&server, "b2", "m2").await.unwrap().0, uid, "a name whose agent is gone is free");
}

#[tokio::test]
async fn another_machine_gets_no_name_under_which_something_may_run() {
    let server = start().await;
    populated(&server, 2).await;
    server.end_session("a1", None).await.unwrap();
    let open = |session: &str, machine: &str| {
        server.open_session(SessionOpen {
            session: session.into(),
            role: "agent".into(),
            name: "n1".into(),
            server: String::new(),
            server_address: String::new(),
            ttl: Duration::from_secs(3600),
            machine_id: machine.into(),
        })
    };
    let refused = |said: String| {
        assert!(said.contains("2 instances are bound to it") && said.contains("driftless delete node n1"), "{said}");
    };
    refused(message(open("b1", "m2").await));
    // One that doesn't say which it is before it registers.
    refused(message(join(&server, "b2", "m2").await));
    server.end_session("b2", None).await.unwrap();
    assert_eq!(server.counters().nodes_refused.get(), 2);
    open("a2", "m1").await.expect("the machine itself may come back");
    server.end_session("a2", None).await.unwrap();
    let request = v1::DeleteRequest { key: Some((&node()).into()), ..Default::default() };
    server.delete(&caller(), request).await.unwrap();
    join(&server, "b3", "m2").await.expect("somebody said that the node is gone");
}

#[tokio::test]
async fn a_node_in_use_is_deleted_only_by_saying_so() {
    let server = start().await;
    let (_, instances) = populated(&server, 2).await;
    let request = v1::DeleteRequest { key: Some((&node()).into()), ..Default::default() };
    let said = server.delete(&caller(), request.clone()).await.unwrap_err();
    assert!(matches!(&said, Error::InUse { key, .. } if *key == node()), "{said:?}");
    let said = said.to_string();
    assert!(said.contains("2 instances are bound to it") && said.contains("driftless drain n1"), "{said}");
    get(&server, &node()).await;
    let now = v1::DeleteRequest { now: true, ..request };
    assert_eq!(server.delete(&caller(), now).await.unwrap().resource, None);
    assert_eq!(status_of(&server, &instances[0]).await, v1::InstanceStatus::default());
}

/// A check before the commit alone would let it through.
#[tokio::test]
async fn a_node_to_which_something_is_bound_meanwhile_is_in_use() {
    let (faults, backend) = (Faults::new(), Arc::new(Memory::default()));
    let server = over(Arc::new(Faulty::new(backend.clone(), faults.clone()))).await;
    let placing = over(backend).await;
    let (uid, _) = join(&server, "a1", "m1").await.unwrap();
    let parent = declare(&server, "web").await;
    let shard = shard_fence(&server, metadata(&parent).shard).await;
    let create = [put(instance_of(&parent, "web-abc-0")), put(parent.clone())];
    server.commit(step(shard, create.into())).await.unwrap();
    let leader = claim_as(&placing, "leader", "c2").await;
    let instance = get(&placing, &Key::new("Instance", "default", "web-abc-0")).await;
    let mut spec: v1::InstanceSpec = typed("spec", instance.spec.as_ref()).unwrap();
    (spec.node, spec.node_uid) = ("n1".into(), uid);
    let bound = put(v1::Resource { spec: Some(any(instance::SPEC, &spec)), ..instance });
    let placement = put(get(&placing, &crate::founding::placement()).await);
    let bind = std::sync::Mutex::new(Some(step(leader, vec![bound, placement])));
    faults.on_before_commit(move |_, _| {
        let (bind, placing) = (bind.lock().unwrap().take(), placing.clone());
        Box::pin(async move {
            if let Some(bind) = bind {
                placing.commit(bind).await.expect("it's bound between the look and the commit");
            }
        })
    });
    // Also of whoever says which revision it read: that is the node's, and unchanged.
    let revision = metadata(&get(&server, &node()).await).revision;
    let request = v1::DeleteRequest { key: Some((&node()).into()), revision, ..Default::default() };
    let said = server.delete(&caller(), request).await.unwrap_err();
    assert!(matches!(&said, Error::InUse { key, .. } if *key == node()), "{said:?}");
    get(&server, &node()).await;
}

#[tokio::test]
async fn a_node_without_an_agent_or_without_instances_is_deleted_at_once() {
    let server = start().await;
    let request = v1::DeleteRequest { key: Some((&node()).into()), ..Default::default() };
    join(&server, "a0", "m1").await.unwrap();
    assert_eq!(server.delete(&caller(), request.clone()).await.unwrap().resource, None);
    populated(&server, 2).await;
    server.end_session("a0", None).await.unwrap();
    server.end_session("a1", None).await.unwrap();
    assert_eq!(server.delete(&caller(), request).await.unwrap().resource, None);
}

#[tokio::test]
async fn a_registration_needs_a_name_and_the_agents_session() {
    let server = start().await;
    let attach = open_session(&server, "a1", "agent", "n1").await;
    let bad = v1::NodeHello { node: "N 1".into(), ..hello("a1", attach, "m1") };
    assert!(message(server.register_node(&agent(), bad).await).starts_with("node: \"N 1\": lower-case letters"));
    let other = v1::NodeHello { node: "n2".into(), ..hello("a1", attach, "m1") };
    assert!(message(server.register_node(&agent(), other).await).contains("takes agent/n2's"));
}

#[tokio::test]
async fn reports_become_statuses_and_the_same_again_writes_nothing() {
    let server = start().await;
    let (fence, instances) = populated(&server, 3).await;
    let reports: Vec<_> = instances.iter().map(running).collect();
    let (revision, refused) = server.report(&agent(), fence.clone(), "n1", batch(reports.clone())).await.unwrap();
    assert!(refused.is_empty());
    for resource in &instances {
        let now = get(&server, &Key::of(&metadata(resource))).await;
        assert_eq!(metadata(&now).revision, revision.0, "all in one transaction");
        assert_eq!(status_of(&server, resource).await.pid, 42);
    }
    let head = server.head().await.unwrap();
    server.report(&agent(), fence, "n1", batch(reports)).await.unwrap();
    assert_eq!(server.head().await.unwrap(), head);
}

#[tokio::test(start_paused = true)]
async fn a_report_that_takes_the_one_before_it_back_is_written_though_this_server_has_seen_neither() {
    let faults = Faults::new();
    let server = over(Arc::new(Faulty::new(Arc::new(Memory::default()), faults.clone()))).await;
    let (fence, instances) = populated(&server, 1).await;
    let first = running(&instances[0]);
    let mut second = first.clone();
    second.status.as_mut().unwrap().pid = 43;
    server.report(&agent(), fence.clone(), "n1", batch([first.clone()])).await.unwrap();
    assert_eq!(status_of(&server, &instances[0]).await.pid, 42);
    faults.delay_watches(Duration::from_millis(100));
    server.report(&agent(), fence.clone(), "n1", batch([second])).await.unwrap();
    server.report(&agent(), fence, "n1", batch([first])).await.unwrap();
    faults.delay_watches(Duration::ZERO);
    assert_eq!(status_of(&server, &instances[0]).await.pid, 42);
}

#[tokio::test]
async fn a_report_leaves_others_parts_of_the_status_alone() {
    let server = start().await;
    let (fence, instances) = populated(&server, 1).await;
    let asked = v1::DeleteRequest { key: Some((&Key::of(&metadata(&instances[0]))).into()), ..Default::default() };
    server.delete(&caller(), asked).await.unwrap();
    assert!(status_of(&server, &instances[0]).await.evict.is_some(), "a deletion by hand asks for the eviction");
    server.report(&agent(), fence, "n1", batch([running(&instances[0])])).await.unwrap();
    let status = status_of(&server, &instances[0]).await;
    assert_eq!((status.pid, status.evict.is_some()), (42, true));
}

#[tokio::test]
async fn more_reports_than_fit_go_in_several_transactions() {
    let server = start().await;
    let (fence, instances) = populated(&server, 100).await;
    let mut reports: Vec<_> = instances.iter().map(running).collect();
    let later = reports.iter().cloned().map(|mut report| {
        report.status.as_mut().unwrap().restarts = 1;
        report
    });
    let later: Vec<_> = later.collect();
    reports.extend(later);
    let before = server.head().await.unwrap().commits;
    server.report(&agent(), fence, "n1", batch(reports)).await.unwrap();
    assert_eq!(server.head().await.unwrap().commits, before + 2);
    assert_eq!(status_of(&server, &instances[99]).await.restarts, 1, "the later report of one resource counts");
}

/// What counts is how large they become, not how large they were.
#[tokio::test]
async fn reports_that_say_much_go_in_several_transactions() {
    let server = start().await;
    let (fence, instances) = populated(&server, 30).await;
    let much = |resource: &v1::Resource| {
        let mut report = running(resource);
        report.status.as_mut().unwrap().conditions[0].message = "x".repeat(30_000);
        report
    };
    server.report(&agent(), fence, "n1", batch(instances.iter().map(much))).await.unwrap();
    assert_eq!(status_of(&server, &instances[29]).await.pid, 42);
}

#[tokio::test]
async fn a_report_of_what_is_not_its_own_is_refused() {
    let server = start().await;
    let (fence, instances) = populated(&server, 1).await;
    let other = v1::InstanceReport { uid: "another".into(), ..running(&instances[0]) };
    let gone = v1::InstanceReport {
        key: Some(v1::ResourceKey { kind: "Instance".into(), namespace: "default".into(), name: "gone".into() }),
        ..running(&instances[0])
    };
    let unbound = running(&instance_of(&declare(&server, "web").await, "web-abc-9"));
    let batch = batch([other, running(&instances[0]), gone, unbound]);
    let (_, refused) = server.report(&agent(), fence.clone(), "n1", batch.clone()).await.unwrap();
    assert_eq!(refused.iter().map(|key| key.name()).collect::<Vec<_>>(), ["web-abc-0", "gone", "web-abc-9"]);
    assert_eq!(status_of(&server, &instances[0]).await.pid, 42, "what is its own is taken all the same");
    let (_, refused) = server.report(&agent(), fence, "n2", batch).await.unwrap();
    assert_eq!(refused.len(), 4, "another node's");
}

#[tokio::test]
async fn what_is_gone_and_was_asked_to_go_is_removed() {
    let server = start().await;
    let (fence, instances) = populated(&server, 2).await;
    let key = Key::of(&metadata(&instances[0]));
    let asked = v1::DeleteRequest { key: Some((&key).into()), now: true, ..Default::default() };
    server.delete(&caller(), asked).await.unwrap();
    let gone = instances.iter().map(|resource| v1::InstanceReport { gone: true, ..running(resource) });
    server.report(&agent(), fence, "n1", batch(gone)).await.unwrap();
    assert_eq!(server.get(&key).await.unwrap(), None);
    assert!(status_of(&server, &instances[1]).await.ready, "what nobody asked to go stays");
}

#[tokio::test]
async fn an_agent_commits_on_its_own_node_alone() {
    let server = start().await;
    let (fence, instances) = populated(&server, 1).await;
    let elsewhere = {
        let attach = open_session(&server, "x1", "agent", "n2").await;
        Fence::Session { session: "x1".into(), attach }
    };
    let as_agent = |fence: &Fence, write: Write| store::Transaction {
        actor: Some(model::Actor::new("agent", "n")),
        ..step(fence.clone(), vec![write])
    };
    let said = message(server.commit(as_agent(&elsewhere, put(instances[0].clone()))).await);
    assert_eq!(said, "denied: Instance/default/web-abc-0 belongs to n1; the session is node n2's");
    let mut placed = instances[0].clone();
    let status =
        v1::InstanceStatus { conditions: vec![condition("Placed", Some(true), "X", "")], ..Default::default() };
    placed.status = Some(any(instance::STATUS, &status));
    let said = message(server.commit(as_agent(&fence, put(placed))).await);
    assert_eq!(said, "denied: an agent may not write status.conditions[Placed] of Instance/default/web-abc-0");
    let metadata = metadata(&instances[0]);
    let remove = Write::Remove { key: Key::of(&metadata), uid: metadata.uid, revision: Revision(metadata.revision) };
    server.commit(as_agent(&fence, remove)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_agents_watch_tells_of_its_node_at_once_and_of_nothing_else() {
    let server = start().await;
    let filter = |node: &str| model::Filter { node: node.into(), ..Default::default() };
    let options = |node| store::WatchOptions { filter: filter(node), ..Default::default() };
    let mut own = Watch::open(server.as_ref(), options("n1")).await;
    let mut other = Watch::open(server.as_ref(), options("n2")).await;
    own.snapshot().await;
    other.snapshot().await;
    let began = tokio::time::Instant::now();
    populated(&server, 2).await;
    let told = own.group().await;
    assert_eq!(told.changes.iter().map(|change| change.key().clone()).collect::<Vec<_>>(), [node()]);
    let told = own.group().await;
    let names: Vec<&str> = told.changes.iter().map(|change| change.key().name()).collect();
    assert_eq!(names, ["web-abc-0", "web-abc-1"], "once they are bound to it");
    assert_eq!(began.elapsed(), std::time::Duration::ZERO);
    let store::WatchItem::Bookmark(_) = other.next().await else { panic!("nothing is bound to n2") };
}

/// Of the newest entry.
async fn why(server: &Server) -> String {
    let entries = server.entries(v1::HistoryRequest::default()).await.unwrap().entries;
    let why = entries.last().and_then(|entry| entry.why.clone()).unwrap();
    format!("{}: {}", why.reason, why.message)
}

#[tokio::test]
async fn the_history_tells_what_a_report_says() {
    let server = start().await;
    let (fence, instances) = populated(&server, 3).await;
    let up: Vec<_> = instances.iter().map(running).collect();
    let report = async |reports: Vec<v1::InstanceReport>| {
        server.report(&agent(), fence.clone(), "n1", batch(reports)).await.unwrap();
        why(&server).await
    };
    assert_eq!(report(vec![up[0].clone()]).await, "Ready: ready");
    assert_eq!(report(up.clone()).await, "Ready: 2 resources: ready");
    let change = |n: usize, change: &dyn Fn(&mut v1::InstanceStatus)| {
        let mut changed = up[n].clone();
        change(changed.status.as_mut().unwrap());
        changed
    };
    let exit = v1::Exit { code: Some(3), log_tail: "starting\nno cheese".into(), ..Default::default() };
    let exited = change(0, &|status| {
        (status.ready, status.phase, status.last_exit) = (false, "BackOff".into(), Some(exit.clone()));
        status.conditions =
            vec![condition("Ready", Some(false), "BackOff", "it exited with code 3; starts again at ...")];
    });
    assert_eq!(report(vec![exited]).await, "Exited: exited with code 3: no cheese");
    let backing_off = [1, 2].map(|n| change(n, &|status| status.phase = "BackOff".into())).to_vec();
    assert_eq!(report(backing_off).await, "Phase: 2 resources: not running; to be started again after a pause");
    report(up[1..].to_vec()).await;
    let restarted = change(0, &|status| (status.restarts, status.last_exit) = (1, Some(exit.clone())));
    assert_eq!(report(vec![restarted]).await, "Ready: started again, and ready");
    let failing = change(1, &|status| {
        status.ready = false;
        status.conditions = vec![condition("Ready", Some(false), "CheckFailing", "http: connection refused")];
    });
    let unlimited = change(2, &|status| {
        status.conditions.push(condition("Limited", Some(false), "NotEnforced", "no cgroups here"))
    });
    assert_eq!(
        report(vec![failing, unlimited]).await,
        "Observed: web-abc-1: no longer ready: http: connection refused; web-abc-2: Limited is False: no cgroups here"
    );
}

#[tokio::test]
async fn the_history_tells_what_a_user_asks_of_a_node() {
    let server = start().await;
    join(&server, "a1", "m1").await.unwrap();
    let mut resource = get(&server, &node()).await;
    resource.spec = Some(any(kinds::node::SPEC, &v1::NodeSpec { cordon: true, ..Default::default() }));
    resource.status = None;
    let declaration = v1::Declaration { resource: Some(resource), ..Default::default() };
    let request =
        v1::ApplyRequest { declarations: vec![declaration], field_manager: "edit".into(), ..Default::default() };
    server.apply(&caller(), request).await.unwrap();
    assert_eq!(why(&server).await, "Declared: Node/n1 cordoned: nothing new is placed there");
}

/// What the chain says of the first, as the CLI does.
async fn explained(server: &Server, key: &Key) -> String {
    let explained = server.explain(v1::ExplainRequest { key: Some(key.into()) }).await.unwrap();
    let first = &explained.chain[0];
    let why = first.why.clone().unwrap();
    format!("{} ({}): {}", first.state, why.reason, why.message)
}

#[tokio::test]
async fn why_leaves_out_no_condition_that_is_not_as_it_should_be() {
    let server = start().await;
    let (fence, instances) = populated(&server, 3).await;
    let doubt = condition("Confirmed", Some(false), "OtherIncarnation", "another store (driftless node confirm n1)");
    let new = condition("Cooled", Some(false), "Hot", "a newer agent may say what this server has no name for");
    let status = v1::NodeStatus { machine_id: "m1".into(), conditions: vec![doubt, new], ..Default::default() };
    let changed = |n: usize, change: &dyn Fn(&mut v1::InstanceStatus)| {
        let mut report = running(&instances[n]);
        change(report.status.as_mut().unwrap());
        report
    };
    let looping = changed(0, &|status| status.failures = 5);
    let limited = changed(1, &|status| {
        status.conditions.push(condition("Limited", Some(false), "NotEnforced", "no control groups"));
        status.conditions.push(condition("LimitsReached", Some(true), "PidsLimit", "it was refused a process"));
    });
    let unready = changed(2, &|status| {
        status.ready = false;
        status.conditions = vec![condition("Ready", Some(false), "CheckFailing", "http: connection refused")];
    });
    let reports = v1::ReportBatch { node: Some(status), ..batch([looping, limited, unready]) };
    server.report(&agent(), fence, "n1", reports).await.unwrap();

    assert_eq!(
        explained(&server, &node()).await,
        "blocked (Unconfirmed): another store (driftless node confirm n1); Cooled=False (Hot): a newer agent may say what \
         this server has no name for"
    );
    let of = async |n: usize| explained(&server, &Key::of(&metadata(&instances[n]))).await;
    assert_eq!(
        of(0).await,
        "wait (Unproven): Running on n1; ended 5 times in a row; counts as ready once it has run for 10 s"
    );
    assert_eq!(
        of(1).await,
        "settled (Ready): Running on n1; Limited=False (NotEnforced): no control groups; LimitsReached=True (PidsLimit): \
         it was refused a process"
    );
    assert_eq!(
        of(2).await,
        "wait (NotReady): Running on n1, not ready yet; Ready=False (CheckFailing): http: connection refused"
    );
}
