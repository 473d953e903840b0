//! What is told of those that were asked to go and must stay.

use api::v1;
use expect_test::{Expect, expect};
use prost::Message;

use super::{Services, fleet, key, plan, put, service_spec};
use crate::{instance, service::evictions::HELD};

/// `web` with so many replicas, and the condition that it has once the decided step is done.
fn check(replicas: i32, min_available: i32, surge: i32, instances: &str, expected: Expect) {
    let spec = v1::ServiceSpec { min_available: Some(min_available), ..service_spec(replicas, surge, 1) };
    let decision = plan(&fleet(&spec, instances), &Services, &key());
    let status = v1::ServiceStatus::decode(decision.status.unwrap().value.as_slice()).unwrap();
    let held = status.conditions.into_iter().find(|condition| condition.r#type == HELD);
    expected.assert_eq(&held.map_or("nothing".into(), |held| format!("{}: {}", held.reason, held.message)));
}

#[test]
fn what_only_a_declaration_can_free_says_which() {
    // Raising max_surge would change nothing here.
    check(
        1,
        2,
        1,
        "new-0+^ new-1+",
        expect![
            "BudgetSpent: web-new-0, asked to go by drain of node n1, can't go: 2 must stay ready (spec.min_available), more than the 1 declared; lower min_available to 1, or raise replicas to 2"
        ],
    );
    check(
        1,
        2,
        0,
        "new-0+^",
        expect![
            "BudgetSpent: web-new-0, asked to go by drain of node n1, can't go: 2 must stay ready (spec.min_available), more than the 1 declared; lower min_available to 0, or raise replicas to 3"
        ],
    );
    check(
        2,
        2,
        0,
        "new-0+^ new-1+",
        expect![
            "BudgetSpent: web-new-0, asked to go by drain of node n1, can't go: 2 must stay ready (spec.min_available), which are all of them, and none may be made in its place first (spec.rollout.max_surge is 0); raise max_surge, or lower min_available to 1, or raise replicas to 3"
        ],
    );
}

#[test]
fn what_others_free_says_how_many_it_takes() {
    check(
        2,
        2,
        1,
        "new-0+^ new-1+",
        expect![
            "Waiting: web-new-0, asked to go by drain of node n1, can't go until more than 2 are ready (spec.min_available)"
        ],
    );
    check(
        2,
        2,
        1,
        "new-0+^ new-1+ new-2",
        expect![
            "Waiting: web-new-0, asked to go by drain of node n1, can't go until more than 2 are ready (spec.min_available)"
        ],
    );
}

#[test]
fn what_goes_is_not_held() {
    check(2, 2, 1, "new-0+^ new-1+ new-2+", expect!["nothing"]);
    check(
        2,
        1,
        0,
        "new-0+^ new-1+^",
        expect![
            "Waiting: web-new-0, asked to go by drain of node n1, can't go until more than 1 are ready (spec.min_available)"
        ],
    );
    check(2, 2, 0, "new-0^ new-1+", expect!["nothing"]);
}

#[test]
fn where_no_replacement_can_be_made_that_is_what_holds_it() {
    let mut spec = service_spec(1, 1, 0);
    spec.template.as_mut().unwrap().env_from = vec![v1::EnvFrom { config: "gone".into(), ..Default::default() }];
    let decision = plan(&fleet(&spec, "new-0+^"), &Services, &key());
    let status = v1::ServiceStatus::decode(decision.status.unwrap().value.as_slice()).unwrap();
    let held = status.conditions.into_iter().find(|condition| condition.r#type == HELD).unwrap();
    expect!["ConfigMissing: web-new-0, asked to go by drain of node n1, can't be replaced: spec.template.env_from names Config/default/gone, which does not exist; declare it"]
        .assert_eq(&format!("{}: {}", held.reason, held.message));
}

#[test]
fn a_replacement_in_trouble_is_told() {
    let mut world = fleet(&v1::ServiceSpec { min_available: Some(1), ..service_spec(1, 1, 0) }, "new-0+^ new-1?");
    let record = world.get(&key().sibling(instance::KIND, "web-new-1")).unwrap().resource.clone();
    let placed = model::condition(instance::PLACED, Some(false), "Unplaceable", "fits on no node");
    let status = v1::InstanceStatus { conditions: vec![placed], ..Default::default() };
    let status = Some(crate::any(instance::STATUS, &status));
    put(&mut world, record.metadata.unwrap(), record.spec.unwrap(), status);
    let status = v1::ServiceStatus::decode(plan(&world, &Services, &key()).status.unwrap().value.as_slice()).unwrap();
    let held = status.conditions.into_iter().find(|condition| condition.r#type == HELD).unwrap();
    expect!["Unplaceable: web-new-0, asked to go by drain of node n1, can't go until more than 1 are ready (spec.min_available); web-new-1: fits on no node"]
        .assert_eq(&format!("{}: {}", held.reason, held.message));
}

#[test]
fn of_a_service_that_was_scaled_to_nothing_nothing_is_held() {
    check(0, 1, 1, "new-0+^", expect!["nothing"]);
}
