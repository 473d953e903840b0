//! From one template to another: what counts as working, what waits for it, and the way back.

use super::*;

fn rollout(change: impl FnOnce(&mut v1::Rollout)) -> v1::ServiceSpec {
    let mut spec = service_spec(2, 1, 0);
    change(spec.rollout.as_mut().unwrap());
    spec
}

#[test]
fn an_instance_counts_only_after_min_ready() {
    let spec = rollout(|r| r.min_ready = seconds(30));
    check_spec(&spec, "old-0+ old-1+ new-2+", expect!["stop web-old-1 (Outdated)"]);
    let spec = rollout(|r| r.min_ready = seconds(90));
    check_spec(
        &spec,
        "old-0+ old-1+ new-2+",
        expect!["wait (NotReady: 0 of 2 of the declared template ready, 2 instances of another left)"],
    );
}

/// With a readiness check, which says when they're ready.
fn checked(spec: v1::ServiceSpec) -> v1::ServiceSpec {
    let mut spec = spec;
    let exec = Some(v1::ExecCheck { command: vec!["true".into()] });
    let readiness = v1::Check { exec, ..Default::default() };
    let template = spec.template.as_mut().unwrap();
    template.health = Some(v1::Health { readiness: Some(readiness), ..Default::default() });
    spec
}

#[test]
fn what_nothing_checks_must_have_run_for_a_while_before_what_works_goes_for_it() {
    let fresh = "old-0+ old-1+ new-2+*";
    check(2, fresh, expect!["wait (NotReady: 0 of 2 of the declared template ready, 2 instances of another left)"]);
    check_spec(&checked(service_spec(2, 1, 0)), fresh, expect!["stop web-old-1 (Outdated)"]);
    check_spec(&rollout(|r| r.min_ready = seconds(0)), fresh, expect!["stop web-old-1 (Outdated)"]);
    // Where nothing is at stake it counts at once.
    check(2, "new-0+* new-1+*", expect!["settled (AllReady: 2 of 2 ready)"]);
    check(2, "old-0 new-1+* new-2+*", expect!["stop web-old-0 (Outdated)"]);
    // No deadline is missed by waiting.
    check_spec(&rollout(|r| r.progress_deadline = seconds(2)), fresh, expect!["stop web-old-1 (Outdated)"]);
}

#[test]
fn what_crashes_in_a_loop_counts_only_once_it_ran_stably() {
    for spec in [service_spec(2, 1, 0), checked(service_spec(2, 1, 0))] {
        let looping = fleet(&spec, "new-0+ new-1+*~");
        let decision = plan(&looping, &Services, &key());
        let stable = model::Until::Time(NOW.plus(instance::STABLE - Duration::from_secs(1)));
        assert!(matches!(&decision.next, Next::Wait(until, why) if *until == stable && why.reason == "NotReady"));
        assert!(
            decision
                .next
                .why()
                .message
                .ends_with("; web-new-1: ended 3 times in a row; counts as ready once it has run for 10 s")
        );
        let ready = status_of(&looping);
        let ready = ready.conditions.iter().find(|c| c.r#type == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "InstancesFailing"));
        assert!(ready.message.contains("web-new-1: ended 3 times in a row"), "{}", ready.message);
        check_spec(&spec, "new-0+ new-1+~", expect!["settled (AllReady: 2 of 2 ready)"]);
    }
    // Old ones in a loop are as good as unready ones, and don't back a drain.
    check(2, "old-0+~* old-1+ new-2", expect!["stop web-old-0 (Outdated)"]);
    check_spec(
        &budget(1, 0),
        "new-0+^ new-1+~*",
        expect![
            "wait (NotReady: 1 of 2 ready; web-new-0, asked to go by drain of node n1, can't go until more than 1 are ready (spec.min_available); web-new-1: ended 3 times in a row; counts as ready once it has run for 10 s)"
        ],
    );
}

#[test]
fn what_runs_without_its_limits_is_ready_and_the_service_says_so() {
    let mut world = fleet(&service_spec(2, 1, 0), "new-0+ new-1+");
    let instance = Key::new(instance::KIND, "default", "web-new-1");
    let mut resource = world.get(&instance).unwrap().resource.clone();
    let mut status: v1::InstanceStatus = crate::typed("status", resource.status.as_ref()).unwrap();
    status.conditions.push(model::condition("Limited", Some(false), "NotEnforced", "no control groups"));
    assert_eq!(instance::InstanceKind.caveat(&resource), None);
    resource.status = Some(crate::any(instance::STATUS, &status));
    assert_eq!(instance::InstanceKind.caveat(&resource).as_deref(), Some("no control groups"), "for who waited for it");
    put(&mut world, resource.metadata.unwrap(), resource.spec.unwrap(), resource.status);
    let decision = plan(&world, &Services, &key());
    expect!["settled (AllReady: 2 of 2 ready; limits are not enforced for 1 instance)"].assert_eq(&words(&decision));
    assert_eq!(decision.next.why().because_of, [instance], "why goes on to it");
}

#[test]
fn somebody_who_waits_believes_what_is_checked_at_once() {
    let proof = |spec: &v1::ServiceSpec| {
        let spec = Some(crate::any(crate::service::SPEC, spec));
        ServiceKind.proof(&v1::Resource { spec, ..Default::default() })
    };
    assert_eq!(proof(&service_spec(2, 1, 0)), instance::UNCHECKED_PROOF);
    assert_eq!(proof(&checked(service_spec(2, 1, 0))), Duration::ZERO);
    assert_eq!(proof(&service_spec(0, 1, 0)), Duration::ZERO, "nothing of it can fail");
}

#[test]
fn a_paused_rollout_replaces_nothing_but_what_is_missing() {
    let spec = rollout(|r| r.pause = Some(true));
    check_spec(
        &spec,
        "old-0+ old-1+",
        expect!["blocked (Paused: the rollout is paused with 2 instances of another template)"],
    );
    check_spec(&spec, "old-0+", expect!["create web-new-1 (TooFew)"]);
    check_spec(
        &spec,
        "old-0+ old-1+ new-2+",
        expect!["blocked (Paused: the rollout is paused with 2 instances of another template)"],
    );
}

fn set_status(world: &mut World, status: &v1::ServiceStatus) {
    let resource = world.get(&key()).unwrap().resource.clone();
    put(world, resource.metadata.unwrap(), resource.spec.unwrap(), Some(crate::any(crate::service::STATUS, status)));
}

fn reason(status: &v1::ServiceStatus, condition_type: &str) -> String {
    status.conditions.iter().find(|c| c.r#type == condition_type).unwrap().reason.clone()
}

#[test]
fn a_rollout_without_progress_fails_at_its_deadline_and_goes_back() {
    let spec = rollout(|r| (r.progress_deadline, r.auto_rollback) = (seconds(60), true));
    let mut world = fleet(&spec, "old-0+ old-1+ new-2");
    let good = v1::GoodTemplate {
        template_hash: "old".into(),
        version: "v1".into(),
        template: Some(v1::InstanceTemplate { command: vec!["good".into()], ..Default::default() }),
    };
    let progress = |ago: u64| v1::Progress {
        template_hash: "new".into(),
        time: Some(NOW.minus(Duration::from_secs(ago)).into()),
        ready: 0,
    };
    let status =
        |ago| v1::ServiceStatus { last_good: Some(good.clone()), progress: Some(progress(ago)), ..Default::default() };
    set_status(&mut world, &status(59));
    with(&world, expect!["wait (NotReady: 0 of 2 of the declared template ready, 2 instances of another left)"]);
    set_status(&mut world, &status(60));
    let failed = status_of(&world);
    assert_eq!(reason(&failed, "Progressing"), "DeadlineExceeded");
    assert_eq!(failed.rolled_back, "new");
    set_status(&mut world, &failed);
    with(&world, expect!["stop web-new-2 (Outdated)"]);
    let mut back = fleet(&spec, "old-0+ old-1+");
    set_status(&mut back, &failed);
    with(
        &back,
        expect![
            "blocked (RolledBack: 2 of 2 ready; rolled back from new to old because no progress within 60s: 2 of 2 ready, 1 updated; declare a fix to try again)"
        ],
    );
    let back = status_of(&back);
    assert_eq!((reason(&back, "Ready"), reason(&back, "Progressing")), ("RolledBack".into(), "RolledBack".into()));
    assert_eq!((back.ready_replicas, back.updated_replicas), (2, 0));
    assert_eq!(back.rolled_back_because, failed.rolled_back_because, "it's still known when all is quiet again");
}

#[test]
fn progress_pushes_the_deadline_and_a_complete_rollout_is_remembered() {
    let spec = rollout(|r| r.progress_deadline = seconds(60));
    let mut world = fleet(&spec, "old-0+ new-2+");
    let progress = v1::Progress { template_hash: "new".into(), time: Some(NOW.minus(LONG).into()), ready: 0 };
    set_status(&mut world, &v1::ServiceStatus { progress: Some(progress), ..Default::default() });
    let progress = status_of(&world).progress.unwrap();
    assert_eq!((progress.ready, Time::from(&progress.time.unwrap())), (1, NOW));
    let done = status_of(&fleet(&spec, "new-0+ new-1+"));
    assert_eq!((done.progress, done.last_good.unwrap().template_hash), (None, "new".to_owned()));
}

/// The template once more, with nothing but field 2000: decoders merge the two.
const NEWER: [u8; 7] = [0x1a, 0x05, 0x82, 0x7d, 0x02, b'h', b'i'];

fn has_newer(bytes: &[u8]) -> bool {
    bytes.windows(5).any(|window| window == &NEWER[2..])
}

#[test]
fn going_back_brings_what_a_newer_version_had_declared() {
    let declare = |instances: &str, hash: &str, newer: bool, status: Option<prost_types::Any>| {
        let mut world = fleet(&service_spec(2, 1, 0), instances);
        let resource = world.get(&key()).unwrap().resource.clone();
        let metadata = v1::Metadata { template_hash: hash.into(), ..resource.metadata.unwrap() };
        let mut spec = resource.spec.unwrap();
        if newer {
            spec.value.extend(NEWER);
        }
        put(&mut world, metadata, spec, status);
        world
    };
    let status_in = |world: &World| plan(world, &Services, &key()).status.unwrap();
    let complete = status_in(&declare("new-0+ new-1+", "new", true, None));
    assert!(has_newer(&complete.value), "it's kept with what was complete");
    let rolling = status_in(&declare("new-0+ new-1+", "next", false, Some(complete)));
    assert!(has_newer(&rolling.value), "and stays while something else is tried");
    let given_up = v1::ServiceStatus { rolled_back: "next".into(), ..Default::default() };
    // A later field than any of the rest: appended, it's merged.
    let given_up = prost_types::Any { value: [rolling.value, given_up.encode_to_vec()].concat(), ..rolling };
    let back = declare("", "next", false, Some(given_up));
    let Next::Do(step, _) = plan(&back, &Services, &key()).next else { panic!("should create") };
    let model::Move::Create(draft) = &step.moves[0] else { panic!("should create") };
    assert_eq!(draft.key.name(), "web-new-0");
    assert!(has_newer(&draft.spec.value), "what runs again has it");
    let gone_back = status_in(&declare("new-0+ new-1+", "next", false, back.get(&key()).unwrap().status().cloned()));
    assert!(has_newer(&gone_back.value), "so it will the next time");
    let settled = declare("new-0+ new-1+", "next", false, Some(gone_back.clone()));
    assert_eq!(status_in(&settled), gone_back, "byte for byte: there's nothing to write");
}
