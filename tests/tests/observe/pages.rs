//! Every role serves its pages, they are true, and they move when work is done.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use api::v1;
use driftless_tests::{Cluster, http, processes::look_until};
use model::Actor;
use store::{Api, Caller};
use telemetry::metrics::{Family, PROCESS_FAMILIES};
use wire::{Options, Remote};

use crate::{documented::SOURCES, samples::Samples};

/// Until something shows; a debug build on a busy machine takes its time.
const LONG: Duration = Duration::from_secs(60);

pub const SLEEPERS: &str = "kind: Service
metadata: { name: web }
spec:
  replicas: 2
  template: { command: [sleep, '86400'], stop_grace: 1s }
";

fn families(who: &str) -> &'static [Family] {
    SOURCES.iter().find(|(name, _)| *name == who).expect("it is documented").1
}

/// The very metrics of those families, by promtool's word well written.
#[track_caller]
fn is_page_of(address: &str, role: &str) {
    let page = http::fetch(address, "/metrics", "*/*").expect("the page is served");
    assert_eq!(page.code, 200);
    assert!(page.head.contains("content-type: text/plain; version=0.0.4"), "{}", page.head);
    check_metrics(&page.body);
    let samples = Samples::read(&page.body);
    let every = [PROCESS_FAMILIES, telemetry::trace::FAMILIES];
    let expected: Vec<&Family> = every.into_iter().flatten().chain(families(role)).collect();
    for family in &expected {
        assert!(samples.names().any(|name| name.starts_with(family.name)), "{role} doesn't show {}", family.name);
    }
    for name in samples.names() {
        assert!(
            expected.iter().any(|family| name.starts_with(family.name)),
            "{role} shows {name}, which nothing tells of"
        );
    }
    assert_eq!(http::fetch(address, "/healthz", "*/*").expect("it is served").code, 200);
    assert_eq!(http::fetch(address, "/", "*/*").expect("it is served").code, 404);
}

/// `promtool check metrics`: also what isn't wrong but against the conventions.
#[track_caller]
fn check_metrics(page: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = command.spawn().expect("promtool is installed: make setup-test");
    promtool.stdin.take().expect("piped").write_all(page.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{page}");
}

#[track_caller]
fn until_ready(address: &str, ready: bool) {
    look_until(&format!("/readyz of {address} says {ready}"), LONG, || {
        let page = http::fetch(address, "/readyz", "*/*").expect("it is served");
        assert!([200, 503].contains(&page.code), "{page:?}");
        ((page.code == 200) == ready).then_some(())
    });
}

#[test]
fn every_role_shows_what_it_does() {
    let cluster = Cluster::of_nodes(&["n1"]);
    let pages = cluster.metrics();
    let [(_, server), (_, controller), (_, agent)] = pages.as_slice() else { panic!("{pages:?}") };
    pages.iter().for_each(|(_, address)| until_ready(address, true));
    let before = Samples::of(server);
    cluster.apply_with(SLEEPERS.as_bytes(), &["--wait", "--timeout", "60s"]).ok();

    let after = look_until("the server saw all of it come true", LONG, || {
        let after = Samples::of(server);
        let count = |kind: &str| after.sum(&format!("driftless_convergence_duration_seconds_count{{kind=\"{kind}\"}}"));
        let owned = after.get("driftless_shards{owner=\"none\"}") == 0.0;
        (count("Service") == 1.0 && count("Instance") == 2.0 && owned).then_some(after)
    });
    let grew = |start: &str| assert!(after.sum(start) > before.sum(start), "{start} doesn't move");
    grew("driftless_commits_total{outcome=\"committed\"}");
    grew("driftless_store_operation_duration_seconds_count{operation=\"commit\"}");
    grew("driftless_watch_sent_total{item=\"group\"}");
    grew("driftless_watch_lag_seconds_count");
    assert_eq!(after.get("driftless_instances{phase=\"Running\"}"), 2.0);
    assert_eq!(after.get("driftless_resources{kind=\"Service\",ready=\"true\"}"), 1.0);
    assert_eq!(after.get("driftless_sessions{role=\"controller\"}"), 1.0);
    assert_eq!(after.get("driftless_shard_unowned_seconds{claim=\"shard\"}"), 0.0);

    let controlled = Samples::of(controller);
    assert!(controlled.get("driftless_reconciles_total{reconciler=\"service\",outcome=\"stepped\"}") >= 1.0);
    assert!(controlled.sum("driftless_queue_wait_seconds_count{lane=\"change\"}") >= 3.0);
    assert!(controlled.sum("driftless_informer_lag_seconds_count") >= 3.0);
    assert_eq!(controlled.get("driftless_leader"), 1.0);
    assert_eq!(controlled.get("driftless_shards_owned"), after.get("driftless_shards{owner=\"living\"}"));
    assert_eq!(Samples::of(agent).get("driftless_agent_starts_total{outcome=\"started\"}"), 2.0);

    let victim = &cluster.instances("web")[0];
    cluster.process_of(victim).signal(rustix::process::Signal::KILL);
    look_until("the restart is counted", LONG, || {
        let restarts = Samples::of(agent).get("driftless_agent_restarts_total");
        (restarts == 1.0 && Samples::of(server).get("driftless_instance_restarts") == 1.0).then_some(())
    });
    // Now that everything happened that makes a series, each page is whole.
    is_page_of(server, "Server");
    is_page_of(controller, "Controller");
    is_page_of(agent, "Agent");
}

#[test]
fn who_cannot_work_is_not_ready() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let pages = cluster.metrics();
    pages.iter().for_each(|(_, address)| until_ready(address, true));
    cluster.kill_part("server");
    for (_, address) in &pages[1..] {
        until_ready(address, false);
        let why = http::fetch(address, "/readyz", "*/*").expect("it is served").body;
        assert!(why.contains("server"), "it says what it lacks: {why}");
        assert_eq!(http::fetch(address, "/healthz", "*/*").expect("it is served").code, 200, "it lives all the same");
    }
    cluster.start_server();
    pages[1..].iter().for_each(|(_, address)| until_ready(address, true));
}

#[test]
fn dev_shows_all_of_its_roles_and_openmetrics_where_it_is_asked_for() {
    let cluster = Cluster::start();
    let (_, address) = &cluster.metrics()[0];
    until_ready(address, true);
    let samples = Samples::of(address);
    for role in ["server", "controller", "agent"] {
        assert_eq!(samples.get(&format!("driftless_ready{{role=\"{role}\"}}")), 1.0);
    }
    let asked =
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1";
    let page = http::fetch(address, "/metrics", asked).expect("the page is served");
    assert!(page.head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", page.head);
    assert!(page.body.ends_with("# EOF\n"));
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Two instances that do nothing, declared in that trace.
async fn declare(address: String, name: &str, traceparent: String) {
    let actor = Actor::new("user", "test");
    let remote = Remote::new(Options::new([address], actor.clone())).expect("an address");
    let template = v1::InstanceTemplate { command: vec!["sleep".into(), "86400".into()], ..Default::default() };
    let spec = v1::ServiceSpec { replicas: Some(2), template: Some(template), ..Default::default() };
    let resource = v1::Resource {
        metadata: Some(v1::Metadata { kind: "Service".into(), name: name.into(), ..Default::default() }),
        spec: Some(kinds::any("driftless.v1.ServiceSpec", &spec)),
        status: None,
    };
    let declarations = vec![v1::Declaration { resource: Some(resource), expected_revision: None }];
    let request = v1::ApplyRequest { declarations, ..Default::default() };
    remote.apply(&Caller { actor, traceparent }, request).await.expect("it is declared");
}

#[tokio::test]
async fn a_traced_declaration_can_be_found_from_its_figure() {
    let cluster = Cluster::of_nodes(&["n1"]);
    declare(cluster.address().to_owned(), "traced", format!("00-{TRACE}-b7ad6b7169203331-01")).await;
    cluster.wait_ready("traced", "60s");
    let server = &cluster.metrics()[0].1;
    look_until("the figure names the trace", LONG, || {
        let page = http::fetch(server, "/metrics", "application/openmetrics-text").expect("the page is served").body;
        let named = format!("# {{trace_id=\"{TRACE}\"}}");
        page.lines().any(|l| l.contains("{le=") && l.contains("kind=\"Service\"") && l.contains(&named)).then_some(())
    });
}
