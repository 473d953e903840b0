//! What runs on nodes that are not heard from.

use super::*;

#[test]
fn what_is_on_a_lost_node_is_given_up_and_replaced() {
    let mut world = two_nodes(&service_spec(2, 1, 0), "new-0+ new-1+@2");
    silence(&mut world, "n2", Duration::from_secs(29));
    with(
        &world,
        expect![
            "wait (NodesSilent: 1 of 2 ready; 1 on n2, which is not heard, replaced after 30s of silence (lost_after))"
        ],
    );
    silence(&mut world, "n2", Duration::from_secs(30));
    with(&world, expect!["release uid-web-new-1, web-new-1 (NodeLost)"]);
    let mut gone = fleet(&service_spec(2, 1, 0), "new-0+ new-1+@9");
    with(&gone, expect!["release uid-web-new-1, web-new-1 (NodeLost)"]);
    let spec = crate::any(crate::release::SPEC, &v1::ReleaseSpec::default());
    put(&mut gone, metadata(crate::release::KIND, "uid-web-new-1"), spec, None);
    with(&gone, expect!["release web-new-1 (NodeLost)"]);
}

#[test]
fn what_is_given_up_is_told_to_the_machine_that_it_ran_on() {
    let told = |world: &World| {
        let next = plan(world, &Services, &key()).next;
        let Next::Do(step, _) = &next else { panic!("{next:?}") };
        let model::Move::Create(draft) = &step.moves[0] else { panic!("{step:?}") };
        crate::typed::<v1::ReleaseSpec>("spec", Some(&draft.spec)).unwrap().machine_id
    };
    let mut world = two_nodes(&service_spec(2, 1, 0), "new-0+ new-1+@2");
    silence(&mut world, "n2", Duration::from_secs(30));
    let node = world.get(&Key::new("Node", "", "n2")).unwrap().resource.clone();
    let mut status: v1::NodeStatus = crate::typed("status", node.status.as_ref()).unwrap();
    status.machine_id = "m2".into();
    let is_another = v1::Metadata { uid: "another".into(), ..node.metadata.clone().unwrap() };
    let status = crate::any(crate::node::STATUS, &status);
    put(&mut world, node.metadata.unwrap(), node.spec.clone().unwrap(), Some(status.clone()));
    assert_eq!(told(&world), "m2");
    // Deleted meanwhile, and registered by whichever machine.
    bound_to(&mut world, "web-new-1", "before");
    put(&mut world, is_another, node.spec.unwrap(), Some(status));
    assert_eq!(told(&world), "");
}

/// Its node had that uid.
fn bound_to(world: &mut World, name: &str, node_uid: &str) {
    let resource = world.get(&Key::new(instance::KIND, "default", name)).unwrap().resource.clone();
    let mut spec: v1::InstanceSpec = crate::typed("spec", resource.spec.as_ref()).unwrap();
    spec.node_uid = node_uid.into();
    put(world, resource.metadata.unwrap(), crate::any(instance::SPEC, &spec), resource.status);
}

/// Of its template; the service's own is the same.
fn ends_by_itself(world: &mut World, names: &[&str]) {
    let after = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let on_disconnect = Some(v1::OnDisconnect { stop_after: after(30) });
    let template = v1::InstanceTemplate { on_disconnect, stop_grace: after(7), ..Default::default() };
    for name in names {
        let resource = world.get(&Key::new(instance::KIND, "default", name)).unwrap().resource.clone();
        let mut spec: v1::InstanceSpec = crate::typed("spec", resource.spec.as_ref()).unwrap();
        spec.template = Some(template.clone());
        put(world, resource.metadata.unwrap(), crate::any(instance::SPEC, &spec), resource.status);
    }
}

#[test]
fn what_ends_by_itself_is_replaced_only_once_it_has_surely_ended() {
    let spec = v1::ServiceSpec { lost_after: seconds(3), ..service_spec(2, 1, 0) };
    let mut world = two_nodes(&spec, "new-0+ new-1+@2");
    ends_by_itself(&mut world, &["web-new-0", "web-new-1"]);
    // 30 s until it's stopped, 7 s of grace, 5 s to be sure.
    silence(&mut world, "n2", Duration::from_millis(41_999));
    with(
        &world,
        expect![
            "wait (NodesSilent: 1 of 2 ready; 1 on n2, which is not heard, replaced after 42s of silence (until it has surely ended there: stop_after 30s, stop_grace 7s, and 5s to be sure))"
        ],
    );
    let decision = plan(&world, &Services, &key());
    let until = model::Until::Time(NOW.plus(Duration::from_millis(1)));
    assert_eq!(decision.next, Next::Wait(until, decision.next.why().clone()));
    silence(&mut world, "n2", Duration::from_secs(42));
    with(&world, expect!["release uid-web-new-1, web-new-1 (NodeLost)"]);
}

#[test]
fn what_was_asked_to_go_on_a_silent_node_is_not_replaced_before_it_has_surely_ended() {
    let mut world = two_nodes(&service_spec(2, 1, 0), "new-0+ new-1+!@2");
    silence(&mut world, "n2", Duration::from_secs(20));
    with(&world, expect!["create web-new-2 (TooFew)"]);
    ends_by_itself(&mut world, &["web-new-1"]);
    with(
        &world,
        expect![
            "wait (NotReady: 1 of 2 ready; 1 asked to go on n2, which is not heard: it counts as running until it says that it ended, or for 42s of silence (until it has surely ended there: stop_after 30s, stop_grace 7s, and 5s to be sure))"
        ],
    );
}

/// It may have a process there, so it takes the place of one that could be made; and it's said until when.
#[test]
fn what_was_asked_to_go_on_a_silent_node_holds_its_place_until_it_is_lost() {
    let mut world = two_nodes(&service_spec(1, 0, 1), "new-1!@2");
    let waits = |world: &World, expected: Expect| {
        with(world, expected);
        let decision = plan(world, &Services, &key());
        assert_eq!(
            decision.next,
            Next::Wait(model::Until::Time(NOW.plus(Duration::from_secs(10))), decision.next.why().clone())
        );
    };
    silence(&mut world, "n2", Duration::from_secs(20));
    waits(
        &world,
        expect![
            "wait (NotReady: 0 of 1 ready; 1 asked to go on n2, which is not heard: it counts as running until it says that it ended, or for 30s of silence (lost_after))"
        ],
    );
    silence(&mut world, "n2", Duration::from_secs(30));
    with(&world, expect!["release uid-web-new-1, web-new-1 (NodeLost)"]);

    // Everything else is as it should be.
    let mut world = two_nodes(&service_spec(1, 1, 0), "new-0+ new-1!@2");
    silence(&mut world, "n2", Duration::from_secs(20));
    waits(
        &world,
        expect![
            "wait (Stopping: 1 instance still stopping; 1 asked to go on n2, which is not heard: it counts as running until it says that it ended, or for 30s of silence (lost_after))"
        ],
    );

    // Deleting, too.
    let mut world = two_nodes(&service_spec(1, 1, 0), "new-1!@2");
    silence(&mut world, "n2", Duration::from_secs(20));
    let mut resource = world.get(&key()).unwrap().resource.clone();
    resource.metadata.as_mut().unwrap().deletion_time = Some(NOW.into());
    put(&mut world, resource.metadata.unwrap(), resource.spec.unwrap(), resource.status);
    waits(
        &world,
        expect![
            "wait (Deleting: waits for 1 instance to stop; 1 asked to go on n2, which is not heard: it counts as running until it says that it ended, or for 30s of silence (lost_after))"
        ],
    );
}

#[test]
fn what_ends_by_itself_is_asked_to_go_before_it_is_lost_with_a_deleted_node() {
    let mut world = fleet(&service_spec(2, 1, 0), "new-0+ new-1+@9");
    ends_by_itself(&mut world, &["web-new-1"]);
    with(&world, expect!["stop web-new-1 (NodeGone)"]);
    let asked = |ago: u64| {
        let mut world = fleet(&service_spec(2, 1, 0), "new-0+ new-1+!@9");
        ends_by_itself(&mut world, &["web-new-1"]);
        let mut resource = world.get(&Key::new(instance::KIND, "default", "web-new-1")).unwrap().resource.clone();
        let metadata = resource.metadata.as_mut().unwrap();
        metadata.deletion_time = Some(NOW.minus(Duration::from_secs(ago)).into());
        put(&mut world, resource.metadata.unwrap(), resource.spec.unwrap(), resource.status);
        world
    };
    with(
        &asked(41),
        expect![
            "wait (NotReady: 1 of 2 ready; 1 asked to go on n9, which is not heard: it counts as running until it says that it ended, or for 42s of silence (until it has surely ended there: stop_after 30s, stop_grace 7s, and 5s to be sure))"
        ],
    );
    with(&asked(42), expect!["release uid-web-new-1, web-new-1 (NodeLost)"]);
    // Its agent is there again: it will say when it has ended.
    let mut back = asked(3_600);
    add_node(&mut back, "n9", 1_000, 10);
    bound_to(&mut back, "web-new-1", "before");
    with(&back, expect!["create web-new-2 (TooFew)"]);
    silence(&mut back, "n9", Duration::from_secs(41));
    with(
        &back,
        expect![
            "wait (NotReady: 1 of 2 ready; 1 asked to go on n9, which is not heard: it counts as running until it says that it ended, or for 42s of silence (until it has surely ended there: stop_after 30s, stop_grace 7s, and 5s to be sure))"
        ],
    );
}

#[test]
fn nothing_is_lost_before_its_node_is_called_unknown() {
    let spec = v1::ServiceSpec { lost_after: seconds(3), ..service_spec(2, 1, 0) };
    let mut world = two_nodes(&spec, "new-0+ new-1+@2");
    silence(&mut world, "n2", Duration::from_secs(9));
    with(
        &world,
        expect![
            "wait (NodesSilent: 1 of 2 ready; 1 on n2, which is not heard, replaced after 10s of silence (a node is called Unknown then, and nothing is lost before))"
        ],
    );
    silence(&mut world, "n2", crate::node::UNKNOWN_AFTER);
    with(&world, expect!["release uid-web-new-1, web-new-1 (NodeLost)"]);
}

#[test]
fn what_is_on_a_node_that_is_unknown_is_not_called_ready() {
    let said = |world: &World| {
        let status = status_of(world);
        let of = |name: &str| status.conditions.iter().find(|c| c.r#type == name).unwrap();
        let words = ["Ready", "Available"].map(|name| {
            let condition = of(name);
            format!("{name} {} {}: {}", condition.status, condition.reason, condition.message)
        });
        format!("{} ready\n{}\n", status.ready_replicas, words.join("\n"))
    };
    let spec = v1::ServiceSpec { min_available: Some(1), ..service_spec(2, 1, 0) };
    let mut world = two_nodes(&spec, "new-0+ new-1+@2");
    silence(&mut world, "n2", Duration::from_secs(20));
    expect![[r#"
        1 ready
        Ready Unknown NodesSilent: 1 of 2 ready, 2 updated; 1 on n2, which is not heard, replaced after 30s of silence (lost_after)
        Available True EnoughReady: 1 ready, 1 needed
    "#]].assert_eq(&said(&world));
    silence(&mut world, "n1", Duration::from_secs(20));
    expect![[r#"
        0 ready
        Ready Unknown Brake: 0 of 2 ready, 2 updated; 2 on n1, n2, which are not heard: more than half of the nodes are silent, so nothing that runs on them is replaced
        Available Unknown Brake: 0 ready, 1 needed; 2 on n1, n2, which are not heard: more than half of the nodes are silent, so nothing that runs on them is replaced
    "#]].assert_eq(&said(&world));
    // It still counts towards what a rollout may do, and nothing is forgotten of how it went.
    assert!(status_of(&world).last_good.is_some());
}

#[test]
fn a_drain_does_not_count_on_what_is_not_heard() {
    let mut world = two_nodes(&budget(1, 0), "new-0+^ new-1+@2");
    with(&world, expect!["stop web-new-0 (Evicted)"]);
    silence(&mut world, "n2", Duration::from_secs(20));
    with(
        &world,
        expect![
            "wait (NotReady: 1 of 2 ready; web-new-0, asked to go by drain of node n1, can't go until more than 1 are ready (spec.min_available); 1 on n2, which is not heard, replaced after 30s of silence (lost_after))"
        ],
    );
}

#[test]
fn the_brake_holds_when_most_nodes_are_silent() {
    let mut world = two_nodes(&service_spec(2, 1, 0), "new-0+ new-1+@2");
    silence(&mut world, "n1", LONG);
    silence(&mut world, "n2", LONG);
    with(
        &world,
        expect![
            "blocked (Brake: 0 of 2 ready; 2 on n1, n2, which are not heard: more than half of the nodes are silent, so nothing that runs on them is replaced)"
        ],
    );
    let mut single = fleet(&service_spec(1, 1, 0), "new-0+");
    silence(&mut single, "n1", LONG);
    with(
        &single,
        expect![
            "blocked (Brake: 0 of 1 ready; 1 on n1, which is not heard: more than half of the nodes are silent, so nothing that runs on them is replaced)"
        ],
    );
}

/// What the leader said of the nodes so long ago.
fn reachable(world: &mut World, is: bool, ago: Duration) {
    let mut condition = model::condition(placement::REACHABLE, Some(is), "", "");
    condition.last_transition_time = Some(NOW.minus(ago).into());
    let status = v1::PlacementStatus { conditions: vec![condition], ..Default::default() };
    let spec = crate::any(placement::SPEC, &v1::PlacementSpec {});
    put(world, metadata(placement::KIND, placement::NAME), spec, Some(crate::any(placement::STATUS, &status)));
}

#[test]
fn after_the_brake_silence_counts_anew() {
    let mut world = two_nodes(&service_spec(2, 1, 0), "new-0+ new-1+@2");
    silence(&mut world, "n2", LONG);
    reachable(&mut world, false, Duration::from_secs(1));
    with(
        &world,
        expect![
            "blocked (Brake: 1 of 2 ready; 1 on n2, which is not heard: more than half of the nodes are silent, so nothing that runs on them is replaced)"
        ],
    );
    reachable(&mut world, true, Duration::from_secs(29));
    let decision = plan(&world, &Services, &key());
    assert_eq!(decision.next, {
        let until = model::Until::Time(NOW.plus(Duration::from_secs(1)));
        Next::Wait(until, decision.next.why().clone())
    });
    reachable(&mut world, true, Duration::from_secs(30));
    with(&world, expect!["release uid-web-new-1, web-new-1 (NodeLost)"]);
    // Whoever fell silent later has its own time.
    silence(&mut world, "n2", Duration::from_secs(29));
    with(
        &world,
        expect![
            "wait (NodesSilent: 1 of 2 ready; 1 on n2, which is not heard, replaced after 30s of silence (lost_after))"
        ],
    );
}

#[test]
fn a_word_about_the_nodes_wakes_services_on_silent_ones() {
    let mut world = two_nodes(&service_spec(2, 1, 0), "new-0+ new-1+@2");
    reachable(&mut world, true, Duration::ZERO);
    let said = |world: &World| {
        let item = world.get(&Key::new(placement::KIND, "", placement::NAME)).unwrap().clone();
        Services.wakes(world, &item)
    };
    assert_eq!(said(&world), []);
    silence(&mut world, "n2", LONG);
    assert_eq!(said(&world), [key()]);
}

#[test]
fn lost_instances_do_not_block_a_deletion() {
    let mut world = deleted("new-0+@2");
    add_node(&mut world, "n2", 1_000, 10);
    silence(&mut world, "n2", LONG);
    with(&world, expect!["release uid-web-new-0, web-new-0 (NodeLost)"]);
}

#[test]
fn what_is_declared_about_silence_is_told_where_it_comes_to_something_else() {
    let said = |lost_after: Option<i64>, stop_after: Option<i64>, surge: i32| {
        let mut spec = service_spec(1, surge, 1);
        spec.lost_after = lost_after.and_then(seconds);
        let on_disconnect = stop_after.map(|after| v1::OnDisconnect { stop_after: seconds(after) });
        spec.template.as_mut().unwrap().on_disconnect = on_disconnect;
        match super::super::admit::admit(&spec.encode_to_vec().into()) {
            Ok(template) => {
                template.warnings.into_iter().filter(|w| !w.contains("readiness")).collect::<Vec<_>>().join("\n")
            }
            Err(violations) => format!("{violations:?}"),
        }
    };
    expect![""].assert_eq(&said(None, None, 1));
    expect![""].assert_eq(&said(Some(10), None, 1));
    expect!["spec.lost_after 3s is too short: what a node ran is replaced after 10s of silence (a node is called Unknown then, and nothing is lost before)"].assert_eq(&said(Some(3), None, 1));
    expect![""].assert_eq(&said(Some(25), Some(10), 0));
    expect!["spec.lost_after 30s is too short: what a node ran is replaced after 75s of silence (until it has surely ended there: stop_after 60s, stop_grace 10s, and 5s to be sure)"].assert_eq(&said(None, Some(60), 0));
    expect!["on_disconnect.stop_after is for what must not run twice, but a rollout runs up to max_surge more beside it; declare spec.rollout: {max_surge: 0, max_unavailable: 1}"].assert_eq(&said(Some(60), Some(10), 1));
    expect![[r#"[Violation { field: "spec.template.on_disconnect.stop_after", message: "must be at least 10s: less would stop it whenever a server goes away for a moment, before its node is called Unknown" }]"#]].assert_eq(&said(None, Some(9), 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever is on a node that isn't heard, stopping or not, counts as running until it's lost.
    #[test]
    fn nothing_is_made_beside_too_many_that_may_run_on_a_silent_node(
        replicas in 0..9_i32, surge in 0..4_i32, instances in any_fleet(),
        there in proptest::collection::vec(any::<bool>(), 12), silent in 0..60_u64,
    ) {
        let placed = instances.split_whitespace().zip(there).map(|(word, there)| {
            if there && !word.contains('?') { format!("{word}@2") } else { word.to_owned() }
        });
        let placed = placed.collect::<Vec<_>>();
        let mut world = two_nodes(&service_spec(replicas, surge, 1), &placed.join(" "));
        silence(&mut world, "n2", Duration::from_secs(silent));
        let lost = if silent >= 30 { placed.iter().filter(|word| word.ends_with("@2")).count() } else { 0 };
        let Next::Do(step, _) = plan(&world, &Services, &key()).next else { return Ok(()) };
        let made = step.moves.iter().filter(|m| matches!(m, Move::Create(draft) if draft.key.kind() == instance::KIND));
        let (made, live) = (made.count(), placed.len() - lost);
        let most = usize::try_from(replicas + surge).unwrap();
        prop_assert!(made == 0 || live + made <= most, "{live} may run, {made} more made, {most} allowed");
    }
}
