mod evictions;
mod rollouts;
mod silence;

use std::time::Duration;

use api::v1;
use bytes::Bytes;
use expect_test::{Expect, expect};
use model::{Key, Move, Next, Time};
use proptest::prelude::*;
use prost::Message;

use super::{KIND, ServiceKind, Services, admit::template_hash};
use crate::{
    Kind, Reconciler, World, instance,
    instance::Instance,
    placement,
    service::Service,
    simulation::{Healthy, Nodes, Simulation},
    testing::{NOW, add_node, bare_fleet, fleet, metadata, plan, put, service_spec, silence, words},
};

fn key() -> Key {
    Key::new(KIND, "default", "web")
}

fn check_spec(spec: &v1::ServiceSpec, instances: &str, expected: Expect) {
    expected.assert_eq(&words(&plan(&fleet(spec, instances), &Services, &key())));
}

/// `replicas` declared with surge 1 and unavailable 0.
fn check(replicas: i32, instances: &str, expected: Expect) {
    check_spec(&service_spec(replicas, 1, 0), instances, expected);
}

#[test]
fn makes_what_is_missing_in_the_lowest_free_slots() {
    check(3, "", expect!["create web-new-0, web-new-1, web-new-2 (TooFew)"]);
    check(3, "new-0+ new-2+", expect!["create web-new-1 (TooFew)"]);
    check(3, "new-0+ new-1 new-2+", expect!["wait (NotReady: 2 of 3 ready)"]);
    check(2, "new-0+ new-1+", expect!["settled (AllReady: 2 of 2 ready)"]);
    check(0, "", expect!["settled (AllReady: 0 of 0 ready)"]);
}

#[test]
fn a_floor_above_what_is_declared_is_warned_of() {
    let warned = |replicas, min_available| {
        let spec = v1::ServiceSpec { min_available: Some(min_available), ..service_spec(replicas, 1, 0) };
        let admitted = ServiceKind.admit(&Bytes::from(spec.encode_to_vec())).expect("it's well formed");
        admitted.warnings.iter().any(|warning| warning.starts_with("spec.min_available: "))
    };
    assert_eq!([(2, 9), (2, 2), (0, 1)].map(|(replicas, floor)| warned(replicas, floor)), [true, false, false]);
}

/// Work that ends isn't ready to serve, and needn't be.
#[test]
fn what_is_finished_is_as_declared() {
    check(2, "new-0= new-1", expect!["wait (NotReady: 1 of 2 ready (1 finished))"]);
    check(2, "new-0= new-1=", expect!["settled (AllReady: 2 of 2 ready (2 finished))"]);
    check(2, "old-0= old-1=", expect!["create web-new-2 (TooFew)"]);
    check(1, "new-0= new-1=", expect!["stop web-new-1 (TooMany)"]);
}

#[test]
fn what_is_finished_is_not_lost_with_its_node_and_run_once_more() {
    let spec = service_spec(2, 1, 0);
    for gone in [false, true] {
        let mut world = if gone { bare_fleet(&spec, "new-0= new-1=@2") } else { fleet(&spec, "new-0= new-1=@2") };
        add_node(&mut world, "n2", 64_000, 100);
        add_node(&mut world, "n3", 64_000, 100);
        if !gone {
            silence(&mut world, "n1", Duration::from_secs(3_600));
        }
        expect!["settled (AllReady: 2 of 2 ready (2 finished))"].assert_eq(&words(&plan(&world, &Services, &key())));
    }
}

#[test]
fn a_stopping_instance_holds_its_slot_and_counts_against_the_surge() {
    check(2, "new-0+ new-1!", expect!["create web-new-2 (TooFew)"]);
    check(2, "new-0! new-1! new-2!", expect!["wait (NotReady: 0 of 2 ready)"]);
    check(1, "new-0+ new-1!", expect!["wait (Stopping: 1 instance still stopping)"]);
}

#[test]
fn stops_the_surplus_unready_and_high_slots_first() {
    check(2, "new-0+ new-1+ new-2+ new-3", expect!["stop web-new-3, web-new-2 (TooMany)"]);
    check(1, "new-0 new-1+", expect!["stop web-new-0 (TooMany)"]);
}

#[test]
fn replaces_one_at_a_time_by_default() {
    check(2, "old-0+ old-1+", expect!["create web-new-2 (TooFew)"]);
    check(
        2,
        "old-0+ old-1+ new-2",
        expect!["wait (NotReady: 0 of 2 of the declared template ready, 2 instances of another left)"],
    );
    check(2, "old-0+ old-1+ new-2+", expect!["stop web-old-1 (Outdated)"]);
    check(
        2,
        "old-0+ old-1! new-2+",
        expect!["wait (NotReady: 1 of 2 of the declared template ready, 1 instance of another left)"],
    );
    check(2, "old-0+ new-2+", expect!["create web-new-1 (TooFew)"]);
}

#[test]
fn unready_old_ones_go_at_once_and_ready_ones_stay_above_the_floor() {
    check(2, "old-0+ old-1 new-2", expect!["stop web-old-1 (Outdated)"]);
    check_spec(&service_spec(4, 0, 1), "old-0+ old-1+ old-2+ old-3+", expect!["stop web-old-3 (Outdated)"]);
    check_spec(&service_spec(4, 0, 1), "old-0+ old-1+ old-2+", expect!["create web-new-3 (TooFew)"]);
    check_spec(
        &service_spec(4, 0, 1),
        "old-0+ old-1+ old-2+ new-3",
        expect!["wait (NotReady: 0 of 4 of the declared template ready, 3 instances of another left)"],
    );
}

#[test]
fn a_foreign_name_blocks_instead_of_taking_the_next_slot() {
    let mut world = fleet(&service_spec(1, 1, 0), "");
    let spec = crate::any(instance::SPEC, &v1::InstanceSpec::default());
    put(&mut world, metadata(instance::KIND, "web-new-0"), spec, None);
    expect!["blocked (NameTaken: Instance/default/web-new-0 exists and isn't this service's; delete it or rename one of them)"]
        .assert_eq(&words(&plan(&world, &Services, &key())));
}

fn deleted(instances: &str) -> World {
    let mut world = fleet(&service_spec(2, 1, 0), instances);
    let mut resource = world.get(&key()).unwrap().resource.clone();
    let metadata = resource.metadata.as_mut().unwrap();
    metadata.deletion_time = Some(NOW.into());
    let (metadata, spec) = (metadata.clone(), resource.spec.unwrap());
    put(&mut world, metadata, spec, None);
    world
}

#[test]
fn deletes_its_instances_before_its_own_record() {
    let check =
        |instances: &str, expected: Expect| expected.assert_eq(&words(&plan(&deleted(instances), &Services, &key())));
    check("new-0+ old-1", expect!["stop web-new-0, web-old-1 (Deleting)"]);
    check("new-0! new-1?!", expect!["remove web-new-1 (NeverPlaced)"]);
    check("new-0!", expect!["wait (Deleting: waits for 1 instance to stop)"]);
    check("", expect!["remove web (Deleted)"]);
}

#[test]
fn a_huge_service_is_made_in_bounded_steps() {
    let decision = plan(&fleet(&service_spec(1_000, 1, 0), ""), &Services, &key());
    let Next::Do(step, _) = decision.next else { panic!("{decision:?}") };
    assert_eq!(step.moves.len(), 100);
}

#[test]
fn the_status_says_what_is_wrong() {
    let world = {
        let mut world = fleet(&service_spec(1, 1, 0), "new-0");
        let item = world.get(&Key::new(instance::KIND, "default", "web-new-0")).unwrap().resource.clone();
        let started = model::condition("Started", Some(false), "CannotStart", "command not found: /no/such");
        let status = v1::InstanceStatus { phase: "Failed".into(), conditions: vec![started], ..Default::default() };
        put(&mut world, item.metadata.unwrap(), item.spec.unwrap(), Some(crate::any(instance::STATUS, &status)));
        world
    };
    let status = plan(&world, &Services, &key()).status.unwrap();
    let status = v1::ServiceStatus::decode(status.value.as_slice()).unwrap();
    let ready = status.conditions.iter().find(|c| c.r#type == "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "InstancesFailing"));
    assert_eq!(ready.message, "0 of 1 ready, 1 updated; web-new-0: command not found: /no/such");
}

#[test]
fn what_failed_fits_nowhere_or_merely_warms_up_is_told_apart_and_the_worst_is_told() {
    let conditions = [
        (instance::PLACED, "Unplaceable", "fits on no node"),
        ("Healthy", "CheckFailing", "readiness: exited with code 1"),
        ("Healthy", "CheckFailed", "liveness: exited with code 1"),
    ];
    let told = |of: &[usize]| {
        let mut world = fleet(&service_spec(1, 1, 0), "new-0+ new-1 new-2");
        for (slot, n) in of.iter().enumerate() {
            let (condition_type, reason, message) = conditions[*n];
            let key = Key::new(instance::KIND, "default", &format!("web-new-{}", slot + 1));
            let item = world.get(&key).unwrap().resource.clone();
            let conditions = vec![model::condition(condition_type, Some(false), reason, message)];
            let status = v1::InstanceStatus { phase: "Running".into(), conditions, ..Default::default() };
            put(&mut world, item.metadata.unwrap(), item.spec.unwrap(), Some(crate::any(instance::STATUS, &status)));
        }
        let view = crate::View { world: &world, now: NOW, live_since: Time::default() };
        let item = world.get(&key()).unwrap();
        let service = item.body::<super::Service>().unwrap();
        let target = super::target::Target::of(&view, item, service).unwrap();
        let (keeps, words) = super::fleet::Fleet::of(&view, item, service, &target).trouble().unwrap();
        format!("{}: {words}", super::status::reason(keeps))
    };
    expect!["Unplaceable: web-new-1: fits on no node"].assert_eq(&told(&[0]));
    expect!["ChecksFailing: web-new-1: readiness: exited with code 1"].assert_eq(&told(&[1]));
    expect!["Unplaceable: web-new-2: fits on no node"].assert_eq(&told(&[1, 0]));
    expect!["InstancesFailing: web-new-2: liveness: exited with code 1"].assert_eq(&told(&[0, 2]));
}

/// Two versions of the software must call the same template the same.
#[test]
fn template_hashes_are_stable() {
    let hash = |yaml_like: v1::ServiceSpec| template_hash(&yaml_like);
    let mut spec = service_spec(3, 1, 0);
    expect!["9e2fef28fc"].assert_eq(&hash(spec.clone()));
    spec.replicas = Some(9);
    spec.rollout = None;
    expect!["9e2fef28fc"].assert_eq(&hash(spec.clone()));
    spec.version = "v2".into();
    expect!["ffa09a919a"].assert_eq(&hash(spec));
}

fn violations(spec: &v1::ServiceSpec) -> String {
    match ServiceKind.admit(&Bytes::from(spec.encode_to_vec())) {
        Ok(_) => "admitted".into(),
        Err(violations) => violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn admission_names_everything_that_is_wrong() {
    expect!["spec.template: missing: say what to run, e.g. template: {command: [sleep, '60']}"]
        .assert_eq(&violations(&v1::ServiceSpec::default()));
    let mut spec = service_spec(-1, 0, 0);
    let template = spec.template.as_mut().unwrap();
    template.command.clear();
    template.restart = "Sometimes".into();
    template.env.insert("1A".into(), "x\0".into());
    template.ports = vec![v1::Port { name: "http".into(), port: 70_000 }, v1::Port { name: "HTTP".into(), port: 0 }];
    let http = v1::HttpCheck { path: "x".into(), port: "web".into() };
    template.health = Some(v1::Health {
        readiness: Some(v1::Check { http: Some(http), tcp: Some(v1::TcpCheck::default()), ..Default::default() }),
        ..Default::default()
    });
    template.resources = Some(v1::Resources {
        requests: Some(v1::Amounts { cpu: "many".into(), memory: "1Zi".into(), pids: 0 }),
        limits: None,
    });
    expect![[r#"
        spec.replicas: is -1; must be from 0 to 10000
        spec.template.command: missing: program and arguments, e.g. [python3, -m, http.server]
        spec.template.env["1A"]: a name holds letters, digits and '_', and starts with no digit
        spec.template.env["1A"]: holds a NUL byte, which no process can be given
        spec.template.ports[0].port: is 70000; 1 to 65535, or 0 for any free one
        spec.template.ports[1].name: "HTTP" is there twice
        spec.template.health.readiness: needs exactly one of http, tcp, exec, grpc; 2 are set
        spec.template.health.readiness.http.port: "web" is no declared port; there is http, HTTP
        spec.template.health.readiness.http.path: starts with '/' and holds no spaces or control characters
        spec.template.resources.requests.cpu: "many" is no amount of cores; write 2, 0.5 or 500m
        spec.template.resources.requests.memory: "1Zi" is no amount of memory; write 128Mi, 1Gi or bytes
        spec.template.restart: is "Sometimes"; must be Always, OnFailure or Never"#]]
    .assert_eq(&violations(&spec));
    expect![
        "spec.rollout: max_surge and max_unavailable are both 0, so nothing could ever be replaced; raise one of them"
    ]
    .assert_eq(&violations(&service_spec(1, 0, 0)));
}

#[test]
fn what_contradicts_itself_is_refused_of_what_is_declared_from_now_on() {
    let port = |name: &str| v1::Port { name: name.into(), port: 0 };
    let amounts = |cpu: &str, memory: &str, pids| v1::Amounts { cpu: cpu.into(), memory: memory.into(), pids };
    let mut spec = service_spec(1, 1, 0);
    let template = spec.template.as_mut().unwrap();
    template.ports = vec![port("a-b"), port("c"), port("A_b")];
    template.env_from = vec![v1::EnvFrom { config: "c".into(), ..Default::default() }; 101];
    template.resources =
        Some(v1::Resources { requests: Some(amounts("2", "1Gi", 5)), limits: Some(amounts("500m", "512Mi", 9)) });
    expect![[r#"
        spec.template.ports[2].name: "a-b" and "A_b" would both be PORT_A_B in the environment; rename one
        spec.template.resources.requests.cpu: 2 is more than the limit, 500m; lower it, or raise limits.cpu
        spec.template.resources.requests.memory: 1Gi is more than the limit, 512Mi; lower it, or raise limits.memory
        spec.template.resources.requests.pids: nothing reserves processes, they can only be limited; write it under limits
        spec.template.env_from: names 101 Configs; at most 100: put what belongs together into one"#]]
    .assert_eq(&violations(&spec));
    assert!(super::admit::service(&spec).is_ok(), "what was stored before is still acted on");

    let template = spec.template.as_mut().unwrap();
    template.ports.pop();
    template.env_from.pop();
    template.resources =
        Some(v1::Resources { requests: Some(amounts("0.5", "1Gi", 0)), limits: Some(amounts("500m", "", 9)) });
    assert_eq!(violations(&spec), "admitted", "what isn't limited has no bound");
}

#[test]
fn a_name_that_nothing_fills_in_is_warned_of() {
    let mut spec = service_spec(1, 1, 0);
    spec.template.as_mut().unwrap().command = ["sh", "-c", "$(NOPE) $(date)"].map(str::to_owned).into();
    let warnings = ServiceKind.admit(&Bytes::from(spec.encode_to_vec())).unwrap().warnings;
    let warned: Vec<String> = warnings.into_iter().filter(|warning| warning.contains("$(")).collect();
    let told = "spec.template.command[2]: $(NOPE) stays as it is: no variable of that name is declared; $$(NOPE) says that \
                it's meant so";
    assert_eq!(warned, [told]);
}

#[test]
fn shares_of_replicas_round_up_for_surge_and_down_for_unavailable() {
    let mut spec = service_spec(10, 0, 0);
    spec.rollout =
        Some(v1::Rollout { max_surge_percent: Some(25), max_unavailable_percent: Some(25), ..Default::default() });
    let service = super::admit::service(&spec).unwrap();
    assert_eq!((service.surge, service.unavailable), (3, 2));
}

/// Instances of template `new` never get ready.
struct Broken;

impl Nodes for Broken {
    fn gets_ready(&self, _item: &crate::Item, instance: &Instance) -> bool {
        instance.template_hash != "new"
    }
}

fn counts(world: &World) -> (usize, usize) {
    let all = || world.children("uid-web");
    let body = |item: &crate::Item| item.body::<Instance>().cloned().unwrap();
    let ready = all().filter(|item| !item.deleting() && body(item).ready).count();
    (all().count(), ready)
}

/// Any mixture of old, new, ready, unready, stopping and unbound instances.
fn any_fleet() -> impl Strategy<Value = String> {
    let one = (0..2, 0..3_u8, any::<bool>());
    proptest::collection::vec(one, 0..12).prop_map(|all| {
        let word = |(slot, (template, flag, ready)): (usize, (i32, u8, bool))| {
            let template = if template == 0 { "old" } else { "new" };
            let flags = match flag {
                0 => "!",
                1 => "?",
                _ => "",
            };
            let ready = if ready && flag == 2 { "+" } else { "" };
            format!("{template}-{slot}{flags}{ready}")
        };
        all.into_iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// From any state, without faults: settled in bounded steps, as declared; the bounds held all the way; and nothing is
    /// planned after.
    #[test]
    fn settles_within_its_bounds_from_any_state(
        replicas in 0..9_i32, surge in 0..4_i32, unavailable in 0..4_i32, instances in any_fleet(), broken in any::<bool>(),
    ) {
        prop_assume!(surge + unavailable > 0);
        let mut world = fleet(&service_spec(replicas, surge, unavailable), &instances);
        put(&mut world, metadata(placement::KIND, placement::NAME), crate::any(placement::SPEC, &v1::PlacementSpec {}), None);
        let (before, mut ready_before) = counts(&world);
        let service = world.get(&key()).unwrap().body::<Service>().cloned().unwrap();
        let most = before.max(service.replicas + service.surge);
        let floor = service.replicas.saturating_sub(service.unavailable);
        let nodes: &dyn Nodes = if broken { &Broken } else { &Healthy };
        let observed = std::cell::RefCell::new(Vec::new());
        let mut simulation = Simulation::new(world, NOW, nodes);
        simulation.observe = Some(Box::new(|world| observed.borrow_mut().push(counts(world))));
        let taken = simulation.settle(200);
        prop_assert!(taken.is_ok(), "{taken:?}");
        for (total, ready) in observed.borrow().iter() {
            prop_assert!(*total <= most, "{total} live, {most} allowed");
            // Whatever was below the floor may stay below it, yet never sinks further while old ones are ready.
            prop_assert!(broken || *ready >= floor.min(ready_before), "{ready} ready, floor {floor}");
            ready_before = *ready;
        }
        let again = simulation.settle(0);
        prop_assert!(again.is_ok_and(|taken| taken.is_empty()), "planned something after settling");
        let world = &simulation.world;
        if broken {
            return Ok(());
        }
        let (total, ready) = counts(world);
        prop_assert_eq!((total, ready), (service.replicas, service.replicas));
        prop_assert!(world.children("uid-web").all(|item| item.body::<Instance>().unwrap().template_hash == "new"));
    }
}

#[test]
fn a_broken_template_never_takes_down_what_is_ready() {
    let mut world = fleet(&service_spec(5, 1, 0), "old-0+ old-1+ old-2+ old-3+ old-4+");
    add_node(&mut world, "n1", 64_000, 100);
    put(
        &mut world,
        metadata(placement::KIND, placement::NAME),
        crate::any(placement::SPEC, &v1::PlacementSpec {}),
        None,
    );
    let mut simulation = Simulation::new(world, NOW, &Broken);
    simulation.settle(20).unwrap();
    assert_eq!(counts(&simulation.world), (6, 5));
    assert_eq!(simulation.now, Time(NOW.0));
}

const LONG: Duration = Duration::from_secs(3_600);

fn two_nodes(spec: &v1::ServiceSpec, instances: &str) -> World {
    let mut world = fleet(spec, instances);
    add_node(&mut world, "n2", 64_000, 100);
    world
}

fn with(world: &World, expected: Expect) {
    expected.assert_eq(&words(&plan(world, &Services, &key())));
}

fn budget(min_available: i32, surge: i32) -> v1::ServiceSpec {
    v1::ServiceSpec { min_available: Some(min_available), ..service_spec(2, surge, 1) }
}

#[test]
fn evictions_are_granted_within_the_budget_one_after_the_other() {
    check_spec(&budget(1, 0), "new-0+^ new-1+^", expect!["stop web-new-1 (Evicted)"]);
    check_spec(
        &budget(1, 0),
        "new-0+^ new-1+!",
        expect![
            "wait (NotReady: 1 of 2 ready; web-new-0, asked to go by drain of node n1, can't go until more than 1 are ready (spec.min_available))"
        ],
    );
    check_spec(&budget(1, 0), "new-0+^ new-2+", expect!["stop web-new-0 (Evicted)"]);
}

#[test]
fn a_replacement_comes_first_where_the_budget_is_spent() {
    check_spec(&budget(2, 1), "new-0+^ new-1+", expect!["create web-new-2 (TooFew)"]);
    check_spec(
        &budget(2, 1),
        "new-0+^ new-1+ new-2",
        expect![
            "wait (NotReady: 2 of 2 ready; web-new-0, asked to go by drain of node n1, can't go until more than 2 are ready (spec.min_available))"
        ],
    );
    check_spec(&budget(2, 1), "new-0+^ new-1+ new-2+", expect!["stop web-new-0 (Evicted)"]);
    check_spec(
        &budget(2, 0),
        "new-0+^ new-1+",
        expect![
            "blocked (BudgetSpent: web-new-0, asked to go by drain of node n1, can't go: 2 must stay ready (spec.min_available), which are all of them, and none may be made in its place first (spec.rollout.max_surge is 0); raise max_surge, or lower min_available to 1, or raise replicas to 3)"
        ],
    );
}

#[test]
fn an_unready_instance_never_blocks_a_drain() {
    check_spec(&budget(1, 0), "new-0^ new-1+", expect!["stop web-new-0 (Evicted)"]);
    check_spec(&budget(2, 0), "new-0^ new-1^", expect!["stop web-new-0, web-new-1 (Evicted)"]);
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn status_of(world: &World) -> v1::ServiceStatus {
    v1::ServiceStatus::decode(plan(world, &Services, &key()).status.unwrap().value.as_slice()).unwrap()
}

#[test]
fn a_config_is_part_of_the_template() {
    let mut spec = service_spec(1, 1, 0);
    let template = spec.template.as_mut().unwrap();
    template.env_from = vec![v1::EnvFrom { config: "settings".into(), prefix: "APP_".into() }];
    template.env.insert("APP_B".into(), "own".into());
    let mut world = fleet(&spec, "");
    with(
        &world,
        expect![
            "blocked (ConfigMissing: spec.template.env_from names Config/default/settings, which does not exist; declare it)"
        ],
    );
    let mut names = Vec::new();
    for (hash, generation) in [("one", 1), ("two", 2)] {
        let data = [("A", "1"), ("B", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let metadata =
            v1::Metadata { template_hash: hash.into(), generation, ..metadata(crate::config::KIND, "settings") };
        put(&mut world, metadata, crate::any(crate::config::SPEC, &v1::ConfigSpec { data }), None);
        let decision = plan(&world, &Services, &key());
        let status = v1::ServiceStatus::decode(decision.status.unwrap().value.as_slice()).unwrap();
        assert_eq!(status.observed_configs, [("settings".to_owned(), generation)].into());
        let Next::Do(step, _) = decision.next else { panic!("should create") };
        let model::Move::Create(draft) = &step.moves[0] else { panic!("should create") };
        let made = v1::InstanceSpec::decode(draft.spec.value.as_slice()).unwrap();
        let env = made.template.unwrap().env;
        assert_eq!((env["APP_A"].as_str(), env["APP_B"].as_str()), ("1", "own"));
        names.push(draft.key.clone());
    }
    assert_ne!(names[0], names[1], "another content is another template");
}

/// Each is within its bound, but no instance could ever be written.
#[test]
fn configs_that_are_too_much_together_block_and_say_so() {
    let mut spec = service_spec(1, 1, 0);
    let names = ["a", "b", "c"];
    let from = |name: &&str| v1::EnvFrom { config: (*name).into(), prefix: format!("{}_", name.to_uppercase()) };
    spec.template.as_mut().unwrap().env_from = names.iter().map(from).collect();
    let mut world = fleet(&spec, "");
    for name in names {
        let data = [("A".to_owned(), "x".repeat(50_000))].into();
        put(
            &mut world,
            metadata(crate::config::KIND, name),
            crate::any(crate::config::SPEC, &v1::ConfigSpec { data }),
            None,
        );
    }
    let said = words(&plan(&world, &Services, &key()));
    assert!(said.starts_with("blocked (TemplateTooLarge: the template has 150"), "{said}");
}
