//! What clients asked and were answered, against the log.

use super::{Checked, Content, Fault, Log, Operation, Outcome, Violation, What};

pub fn check(log: &Log<'_>, operations: &[Operation], checked: &mut Checked, violations: &mut Vec<Violation>) {
    for operation in operations {
        if let What::Wrote { marker, outcome } = &operation.what {
            count(*outcome, checked);
            violations.extend(wrote(log, operation, marker, *outcome));
        }
    }
    let order = Order::of(log, operations);
    for operation in operations {
        let (least, most) = (order.least(operation), order.most(operation));
        match &operation.what {
            What::Wrote { outcome: Outcome::Acknowledged(revision), .. } => {
                if *revision <= least {
                    let what =
                        format!("{}'s write is at {revision}, but {least} was answered before", operation.client);
                    violations.push(Violation { fault: Fault::OutOfOrder, what });
                }
            }
            What::Wrote { .. } => {}
            What::Got { .. } | What::Listed { .. } => {
                checked.reads += 1;
                violations.extend(read(log, operation, least, most));
            }
        }
    }
}

fn count(outcome: Outcome, checked: &mut Checked) {
    match outcome {
        Outcome::Acknowledged(_) => checked.acknowledged += 1,
        Outcome::Refused => checked.refused += 1,
        Outcome::Unknown => checked.unknown += 1,
    }
}

fn wrote(log: &Log<'_>, operation: &Operation, marker: &str, outcome: Outcome) -> Option<Violation> {
    let client = &operation.client;
    let (fault, what) = match (outcome, log.written(marker)) {
        (Outcome::Acknowledged(answered), Some(written)) if answered != written => {
            (Fault::LostWrite, format!("{client}'s {marker} was answered {answered}, and is at {written}"))
        }
        (Outcome::Acknowledged(answered), None) => {
            (Fault::LostWrite, format!("{client}'s {marker} was answered {answered}, and is nowhere"))
        }
        (Outcome::Refused, Some(written)) => {
            (Fault::GhostWrite, format!("{client}'s {marker} was refused, and is at {written}"))
        }
        _ => return None,
    };
    Some(Violation { fault, what })
}

fn read(log: &Log<'_>, operation: &Operation, least: i64, most: i64) -> Option<Violation> {
    let client = &operation.client;
    match &operation.what {
        What::Got { key, found } => {
            let found = found.as_ref().map(|(revision, content)| (*revision, content));
            if log.was(key, found, least, most) {
                return None;
            }
            let fault = if log.was(key, found, 0, most) { Fault::StaleRead } else { Fault::WrongState };
            let what = format!("{client} got {key} as {}, not as of {least} to {most}", shown(found));
            Some(Violation { fault, what })
        }
        What::Listed { prefix, revision, found } => {
            if *revision < least || *revision > most {
                let what = format!("{client} listed {prefix:?} as of {revision}, not of {least} to {most}");
                return Some(Violation { fault: Fault::StaleRead, what });
            }
            let state = log.state(prefix, *revision);
            let same = state.len() == found.len()
                && state.iter().all(|(key, now)| found.get(*key).is_some_and(|(r, content)| (*r, content) == *now));
            let what = || format!("{client} listed {prefix:?} as of {revision}, not as it was then");
            (!same).then(|| Violation { fault: Fault::WrongState, what: what() })
        }
        What::Wrote { .. } => None,
    }
}

fn shown(found: Option<(i64, &Content)>) -> String {
    found.map_or("absent".into(), |(revision, content)| format!("{revision} ({})", content.marker))
}

/// What real time says about revisions.
struct Order {
    /// By the time of the answer: the greatest revision that was answered until then.
    answered: Vec<(std::time::Duration, i64)>,
    /// By the time of the question, latest first: the least revision that was written by what was asked from then on.
    asked: Vec<(std::time::Duration, i64)>,
}

impl Order {
    fn of(log: &Log<'_>, operations: &[Operation]) -> Self {
        let mut answered: Vec<_> = operations.iter().filter_map(|o| Some((o.answered, shows(o)?))).collect();
        answered.sort_unstable();
        let mut greatest = 0;
        for (_, revision) in &mut answered {
            greatest = greatest.max(*revision);
            *revision = greatest;
        }
        let written = |o: &Operation| match &o.what {
            What::Wrote { marker, .. } => log.written(marker),
            What::Got { .. } | What::Listed { .. } => None,
        };
        let mut asked: Vec<_> = operations.iter().filter_map(|o| Some((o.asked, written(o)?))).collect();
        asked.sort_unstable_by(|a, b| b.cmp(a));
        let mut smallest = i64::MAX;
        for (_, revision) in &mut asked {
            smallest = smallest.min(*revision);
            *revision = smallest;
        }
        Self { answered, asked }
    }

    /// It must be after this (a write), or not before it (a read).
    fn least(&self, operation: &Operation) -> i64 {
        let before = self.answered.partition_point(|(answered, _)| *answered < operation.asked);
        self.answered[..before].last().map_or(0, |(_, revision)| *revision)
    }

    /// A read can't show what was only asked for after its answer.
    fn most(&self, operation: &Operation) -> i64 {
        let after = self.asked.partition_point(|(asked, _)| *asked > operation.answered);
        self.asked[..after].last().map_or(i64::MAX, |(_, revision)| revision - 1)
    }
}

/// A revision that the answer proves to have been committed.
fn shows(operation: &Operation) -> Option<i64> {
    match &operation.what {
        What::Wrote { outcome: Outcome::Acknowledged(revision), .. } | What::Listed { revision, .. } => Some(*revision),
        What::Got { found, .. } => found.as_ref().map(|(revision, _)| *revision),
        What::Wrote { .. } => None,
    }
}
