//! What is told of a rollout, and of one that failed.

use api::v1;

use super::went_back;
use crate::{
    Kind,
    service::{SPEC, STATUS, ServiceKind, admit},
    testing::service_spec,
};

/// Columns VERSION and STATUS of a service that is declared as v2, and what is said to whoever waits for it.
fn told(status: &v1::ServiceStatus, observed: i64) -> (String, String, Option<String>) {
    let spec = v1::ServiceSpec { version: "v2".into(), ..service_spec(2, 1, 0) };
    let status = v1::ServiceStatus { observed_generation: observed, ..status.clone() };
    let resource = v1::Resource {
        metadata: Some(v1::Metadata { generation: 3, ..Default::default() }),
        spec: Some(crate::any(SPEC, &spec)),
        status: Some(crate::any(STATUS, &status)),
    };
    let row = ServiceKind.row(&resource);
    (row[2].clone(), row[3].clone(), ServiceKind.failed(&resource))
}

fn said(condition_type: &str, status: bool, reason: &'static str) -> v1::Condition {
    model::condition(condition_type, Some(status), reason, "the words")
}

#[test]
fn the_version_shown_is_the_one_that_runs_and_a_failed_rollout_is_told_as_failed() {
    let good = |version: &str| Some(v1::GoodTemplate { version: version.into(), ..Default::default() });
    let ready = v1::ServiceStatus { conditions: vec![said("Ready", true, "AllReady")], ..Default::default() };
    assert_eq!(told(&ready, 3), ("v2".into(), "Ready".into(), None));
    let going = [said("Ready", false, "Progressing"), said("Progressing", true, "Progressing")];
    let going = v1::ServiceStatus { conditions: going.into(), ..Default::default() };
    assert_eq!(told(&going, 3).0, "v2", "nothing is known to have run before");
    let replaces = v1::ServiceStatus { last_good: good("v1"), ..going.clone() };
    assert_eq!(told(&replaces, 3), ("v1->v2".into(), "Progressing".into(), None));
    assert_eq!(told(&v1::ServiceStatus { last_good: good("v2"), ..going }, 3).0, "v2", "it's only being mended");
    let stuck = [said("Ready", false, "Progressing"), said("Progressing", false, "DeadlineExceeded")];
    let stuck = v1::ServiceStatus { conditions: stuck.into(), last_good: good("v1"), ..Default::default() };
    assert_eq!(told(&stuck, 3).2.as_deref(), Some("the words"));
    let back = v1::ServiceStatus {
        conditions: vec![said("Ready", false, "RolledBack"), said("Progressing", false, "RolledBack")],
        last_good: good("v1"),
        rolled_back: "hash".into(),
        ..Default::default()
    };
    assert_eq!(told(&back, 3), ("v1".into(), "RolledBack".into(), Some("the words".into())));
    assert_eq!(told(&back, 2), ("v1".into(), "Pending".into(), None), "of what was declared since nothing is known");
}

#[test]
fn a_rollback_is_told_by_versions_where_they_differ_and_by_templates_where_not() {
    let words = |from: &str, to: &str| {
        let spec = v1::ServiceSpec { version: from.into(), ..service_spec(2, 1, 0) };
        let mut service = admit::service(&spec).unwrap();
        let good = v1::GoodTemplate { version: to.into(), template_hash: "old".into(), ..Default::default() };
        service.status.last_good = Some(good);
        went_back(&service, "new", "it crashed").split(" because").next().unwrap().to_owned()
    };
    assert_eq!(words("v2", "v1"), "rolled back from v2 to v1");
    assert_eq!(words("v1", "v1"), "rolled back from new to old");
    assert_eq!(words("", "v1"), "rolled back from new to old");
}
