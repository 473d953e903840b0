use kinds::{any, instance};

use super::*;
use crate::tests::fixtures::Counting;

fn crashed(restarts: i32, phase: &str) -> Done {
    let status = v1::InstanceStatus { phase: phase.into(), restarts, ..Default::default() };
    let metadata = v1::Metadata { kind: instance::KIND.into(), generation: 1, ..Default::default() };
    let spec = Some(any(instance::SPEC, &v1::InstanceSpec::default()));
    let after = v1::Resource { metadata: Some(metadata), spec, status: Some(any(instance::STATUS, &status)) };
    let key = model::Key::new(instance::KIND, "default", "web-0");
    let replaced = Revision(100 + i64::from(restarts));
    Done { key, uid: "uid".into(), root_uid: "root".into(), replaced, after: Some(after), traceparent: String::new() }
}

fn note(verb: &str) -> Note {
    Note { verb: verb.into(), ..Default::default() }
}

/// The count of the fold that it goes into; none: it's kept as it is.
fn write(folds: &mut Folds, stamps: &Counting, done: Done, verb: &str) -> Option<(i32, i64)> {
    let folding = folds.look(stamps, &note(verb), &[done]);
    let fold = folding.fold("uid").map(|fold| (fold.count, fold.since.0));
    folds.keep(folding);
    fold
}

#[test]
fn a_loop_is_folded_from_its_third_round_on_each_phase_by_itself() {
    let (mut folds, stamps) = (Folds::default(), Counting::default());
    let mut told = Vec::new();
    for restarts in 1..=5 {
        for phase in ["Running", "BackOff"] {
            told.push(write(&mut folds, &stamps, crashed(restarts, phase), "report"));
        }
    }
    let folded = |count: i32| [Some((count, 103)), Some((count, 103))];
    assert_eq!(told[..4], [None; 4]);
    assert_eq!(told[4..], [folded(1), folded(2), folded(3)].concat());
}

#[test]
fn steps_and_other_words_are_never_folded() {
    let (mut folds, stamps) = (Folds::default(), Counting::default());
    for restarts in 1..=5 {
        assert_eq!(write(&mut folds, &stamps, crashed(restarts, "Running"), "create"), None);
    }
    for phase in ["a", "b", "c", "d", "e"] {
        assert_eq!(write(&mut folds, &stamps, crashed(1, phase), "report"), None);
    }
}

#[test]
fn what_is_not_committed_is_not_counted() {
    let (mut folds, stamps) = (Folds::default(), Counting::default());
    for restarts in 1..=2 {
        write(&mut folds, &stamps, crashed(restarts, "Running"), "report");
    }
    for _ in 0..3 {
        let folding = folds.look(&stamps, &note("report"), &[crashed(3, "Running")]);
        assert_eq!(folding.fold("uid").map(|fold| fold.count), Some(1));
    }
}

#[test]
fn memory_is_bounded() {
    let (mut folds, stamps) = (Folds::default(), Counting::default());
    for n in 0..RESOURCES_MAX + 10 {
        let done = Done { uid: format!("uid-{n}"), ..crashed(1, "Running") };
        let folding = folds.look(&stamps, &note("report"), &[done]);
        folds.keep(folding);
    }
    assert_eq!(folds.0.len(), RESOURCES_MAX);
}
