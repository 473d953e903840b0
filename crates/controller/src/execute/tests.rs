use api::v1;
use kinds::{SPEC_BYTES_MAX, any, instance, service};
use model::{Draft, Epoch, Key, Move, Object, Revision};
use store::TRANSACTION_BYTES_MAX;

use super::*;

/// As large as admission lets one be.
fn template(bytes: usize) -> v1::InstanceTemplate {
    v1::InstanceTemplate { command: vec!["x".repeat(bytes - 16)], ..Default::default() }
}

/// A service that was complete once, with all the annotations that it may have.
fn own(bytes: usize) -> Item {
    let metadata = v1::Metadata {
        kind: service::KIND.into(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "u".into(),
        annotations: [("a".to_owned(), "x".repeat(64 * 1024 - 1))].into(),
        ..Default::default()
    };
    let spec = v1::ServiceSpec { template: Some(template(bytes)), ..Default::default() };
    let good = v1::GoodTemplate { template: Some(template(bytes)), ..Default::default() };
    let status = v1::ServiceStatus { last_good: Some(good), ..Default::default() };
    let (spec, status) = (Some(any(service::SPEC, &spec)), Some(any(service::STATUS, &status)));
    let key = Key::of(&metadata);
    let resource = v1::Resource { metadata: Some(metadata), spec, status };
    Item::read(&Object { key, revision: Revision(1), bytes: Object::encode(resource) }).expect("it can be read")
}

fn create(own: &Item, bytes: usize, slot: usize) -> Move {
    let spec = v1::InstanceSpec { template: Some(template(bytes)), ..Default::default() };
    let key = own.key.sibling(instance::KIND, &format!("web-0123456789-{slot}"));
    Move::Create(Box::new(Draft { key, labels: Vec::new(), spec: any(instance::SPEC, &spec), status: None }))
}

#[test]
fn a_step_of_whatever_may_be_declared_fits_into_a_transaction() {
    let world = World::default();
    for bytes in [100, 10_000, 50_000, 80_000, SPEC_BYTES_MAX] {
        let own = own(bytes);
        let step = Step { verb: "create", moves: (0..100).map(|slot| create(&own, bytes, slot)).collect() };
        let why = Why::new("TooFew", "");
        let wanted = Wanted { reconciler: &service::Services, own: &own, step: Some(&step), status: None, why: &why };
        let fence = Fence::Claim { claim: "shard-0".into(), epoch: Epoch(1), session: "me".into() };
        let under =
            Under { incarnation: "i", fence, actor: "controller/c", now: Time::default(), moves_max: MOVES_MAX };
        let transaction = transaction(&world, &wanted, &under);
        let written: usize = transaction.writes.iter().map(size).sum();
        // The history repeats them, with some words on each.
        let whole = 2 * written + 300 * transaction.writes.len();
        assert!(transaction.writes.len() > 1, "nothing is made of {bytes} bytes");
        assert!(whole < TRANSACTION_BYTES_MAX, "{whole} bytes, of specs of {bytes}");
    }
}
