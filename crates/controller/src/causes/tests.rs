use std::collections::BTreeSet;

use api::v1;
use kinds::{any, placement, service};
use model::{Key, Object};

use super::*;

const NOW: Time = Time(1_000_000_000_000);

fn reconciler(kind: &str) -> usize {
    RECONCILERS.iter().position(|reconciler| reconciler.kind() == kind).unwrap()
}

fn work(name: &str) -> Work {
    Work { reconciler: reconciler(service::KIND), key: Key::new(service::KIND, "default", name) }
}

fn written(kind: &str, name: &str, revision: i64, traceparent: &str, at: Time) -> Changed {
    let metadata = v1::Metadata {
        kind: kind.into(),
        namespace: if kind == placement::KIND { "" } else { "default" }.into(),
        name: name.into(),
        updated_time: Some(at.into()),
        last_writer: Some(v1::Writer { traceparent: traceparent.into(), ..Default::default() }),
        ..Default::default()
    };
    let key = Key::of(&metadata);
    let spec = any(service::SPEC, &v1::ServiceSpec::default());
    let resource = v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None };
    let object = Object { key, revision: Revision(revision), bytes: Object::encode(resource) };
    (None, Some(Arc::new(Item::read(&object).unwrap())))
}

fn note(waiting: &Waiting, revision: i64, traceparent: &str, woken: &[Work]) {
    waiting.note(&[written(service::KIND, "web", revision, traceparent, NOW)], &[woken.to_vec()], Came::Live);
}

fn sampled() -> Context {
    Context::random(true)
}

fn linked(cause: Option<Cause>) -> Vec<Context> {
    match cause {
        Some(Cause::Sampled(causes)) => causes.deliveries.iter().map(|delivery| delivery.context).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unsampled_write_leaves_a_flag_and_one_in_no_trace_leaves_nothing() {
    let waiting = Waiting::default();
    note(&waiting, 1, "", &[work("a")]);
    assert!(waiting.take(&work("a")).is_none());
    note(&waiting, 2, &Context::random(false).to_string(), &[work("a")]);
    assert!(waiting.take(&work("b")).is_none());
    assert!(matches!(waiting.take(&work("a")), Some(Cause::Unsampled)));
    assert!(waiting.take(&work("a")).is_none(), "a look uses it up");
    assert_eq!(waiting.count.load(Relaxed), 0, "what follows costs one load again");
}

#[test]
fn what_is_sampled_counts_whatever_else_woke_the_key() {
    let waiting = Waiting::default();
    let (unsampled, first, second) = (Context::random(false).to_string(), sampled(), sampled());
    note(&waiting, 3, &unsampled, &[work("a")]);
    note(&waiting, 7, &second.to_string(), &[work("a")]);
    note(&waiting, 5, &first.to_string(), &[work("a")]);
    note(&waiting, 9, &unsampled, &[work("a")]);
    assert_eq!(linked(waiting.take(&work("a"))), [first, second], "in the order of their revisions");
}

#[test]
fn of_very_many_causes_the_newest_are_linked_and_all_are_counted() {
    let waiting = Waiting::default();
    let contexts: Vec<Context> = (0..CAUSES_MAX + 3).map(|_| sampled()).collect();
    for (n, context) in contexts.iter().enumerate() {
        note(&waiting, i64::try_from(n).unwrap() + 1, &context.to_string(), &[work("a")]);
    }
    let cause = waiting.take(&work("a"));
    assert!(matches!(&cause, Some(Cause::Sampled(causes)) if causes.count == CAUSES_MAX as i64 + 3));
    assert_eq!(linked(cause), contexts[3..]);
}

#[test]
fn what_a_look_leaves_undone_has_its_cause_again() {
    let waiting = Waiting::default();
    let (first, second) = (sampled(), sampled());
    note(&waiting, 1, &first.to_string(), &[work("a")]);
    let cause = waiting.take(&work("a")).unwrap();
    note(&waiting, 2, &second.to_string(), &[work("a")]);
    // What came meanwhile may have been seen already; the look that it woke has it all the same.
    assert_eq!(linked(waiting.late(&work("a"))), [second]);
    waiting.put_back(&work("a"), cause);
    waiting.put_back(&work("a"), Cause::Unsampled);
    assert_eq!(linked(waiting.take(&work("a"))), [first, second]);
}

#[test]
fn a_key_that_serves_many_is_not_its_own_cause() {
    let waiting = Waiting::default();
    let key = Key::new(placement::KIND, "", placement::NAME);
    let own = Work { reconciler: reconciler(placement::KIND), key };
    let woken = [vec![own.clone(), work("a")]];
    waiting.note(&[written(placement::KIND, placement::NAME, 1, &sampled().to_string(), NOW)], &woken, Came::Live);
    assert!(waiting.take(&own).is_none());
    assert!(waiting.take(&work("a")).is_some());
}

#[test]
fn what_is_listed_causes_something_only_while_it_is_new() {
    let waiting = Waiting::default();
    let of_age = |age: Duration| {
        let at = Time(NOW.0 - i64::try_from(age.as_micros()).unwrap());
        let changed = [written(service::KIND, "web", 1, &sampled().to_string(), at)];
        waiting.note(&changed, &[vec![work("a")]], Came::Listed(Some(NOW)));
        waiting.take(&work("a")).is_some()
    };
    assert!(of_age(AGE_MAX - Duration::from_secs(1)));
    assert!(!of_age(AGE_MAX));
}

#[test]
fn where_there_is_no_room_no_look_draws_anew_until_there_is() {
    let waiting = Waiting::default();
    let works: Vec<Work> = (0..=KEYS_MAX).map(|n| work(&n.to_string())).collect();
    note(&waiting, 1, &Context::random(false).to_string(), &works);
    let lost = works.last().unwrap();
    assert!(matches!(waiting.take(lost), Some(Cause::Unsampled)), "it isn't known, but nothing is drawn");
    for work in &works[..KEYS_MAX] {
        assert!(waiting.take(work).is_some());
    }
    assert!(waiting.take(lost).is_none(), "all that was known is used up");
    assert_eq!(works.iter().collect::<BTreeSet<_>>().len(), KEYS_MAX + 1);
}
