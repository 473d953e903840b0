//! The pure parts, by tables.

use std::{sync::Arc, time::Duration};

use api::v1;
use model::Time;

use crate::{
    Together,
    assigned::Assigned,
    driver::{Exit, How, Memory, NodeMemory},
    metrics::Metrics,
    node::{Confirmation, Doubt, Missing, Trust, trust},
    outbox::{Failed, Outbox},
    plan::*,
    slot::Slot,
    template::{Probe, Restart, Template},
    tests::world::instance,
};

const SECOND: Duration = Duration::from_secs(1);

fn seen(run: Run) -> Seen {
    Seen {
        run,
        restart: Restart::Always,
        grace: 10 * SECOND,
        started: at(0),
        failures: 0,
        dead: false,
        ready: true,
        ready_noted: true,
        not_before: None,
        start_until: None,
        stop_noted: None,
    }
}

fn at(seconds: i64) -> Time {
    Time::from_millis(seconds * 1000)
}

fn exited(how: How, seconds: i64) -> Run {
    Run::Exited(Exit::new(how, at(seconds)))
}

fn noted(stop: bool, run: Run) -> Seen {
    Seen { stop_noted: Some(stop), ..seen(run) }
}

fn running(stopping: Option<Stopping>) -> Run {
    Run::Running { stopping }
}

fn stopping(since: i64, killed: Option<i64>) -> Run {
    running(Some(Stopping { since: at(since), killed: killed.map(at) }))
}

/// At second 100.
fn check(want: Want, seen: &Seen, expected: Action) {
    let action = plan(want, seen, &Backoff::default(), at(100));
    assert_eq!(action, expected, "{want:?} of {seen:?}");
}

#[test]
fn one_step_for_what_is_wanted_and_what_is_so() {
    let (start, again) = (Action::Start { again: false }, Action::Start { again: true });
    let stop = Action::Stop { note: false };
    let dead = Seen { dead: true, ..seen(running(None)) };
    let unnoted = Seen { ready_noted: false, ..seen(running(None)) };
    let cut_off = Seen { start_until: Some(at(100)), ..seen(Run::Never) };
    let in_contact = Seen { start_until: Some(at(101)), ..seen(Run::Never) };
    let troubled = Seen { not_before: Some(at(101)), ..seen(Run::Never) };
    for (want, seen, action) in [
        (Want::Run, seen(Run::Never), start),
        (Want::Unknown, seen(Run::Never), start),
        (Want::Stray { stop: false }, seen(Run::Never), start),
        (Want::Stop, seen(Run::Never), Action::Nothing),
        (Want::Forget, seen(Run::Never), Action::Forget),
        (Want::Run, seen(running(None)), Action::Nothing),
        (Want::Unknown, seen(running(None)), Action::Nothing),
        (Want::Stray { stop: false }, seen(running(None)), Action::Nothing),
        (Want::Stop, seen(running(None)), stop),
        (Want::Forget, seen(running(None)), stop),
        (Want::Stray { stop: true }, seen(running(None)), stop),
        (Want::Run, dead.clone(), stop),
        (Want::Unknown, dead, stop),
        (Want::Run, unnoted, Action::NoteReady(true)),
        (Want::Run, cut_off, Action::Nothing),
        (Want::Run, in_contact, start),
        (Want::Run, troubled, Action::Wait(at(101))),
        // A stop for good is noted first, and then isn't given up.
        (Want::Stop, noted(false, running(None)), Action::Stop { note: true }),
        (Want::Stray { stop: true }, noted(false, running(None)), Action::Stop { note: true }),
        (Want::Stop, noted(false, stopping(95, None)), Action::NoteStop(true)),
        (Want::Stop, noted(false, exited(How::Code(1), 99)), Action::NoteStop(true)),
        (Want::Stop, noted(true, running(None)), stop),
        (Want::Unknown, noted(true, running(None)), stop),
        (Want::Unknown, noted(true, exited(How::Code(1), 99)), Action::Nothing),
        (Want::Forget, noted(true, exited(How::Code(1), 99)), Action::Forget),
        (Want::Run, noted(true, exited(How::Code(1), 99)), Action::NoteStop(false)),
        (Want::Unknown, noted(false, running(None)), Action::Nothing),
        // A stop goes on, by degrees.
        (Want::Stop, seen(stopping(90, None)), Action::Wait(at(105))),
        (Want::Stop, seen(stopping(85, None)), Action::Kill),
        (Want::Stop, seen(stopping(85, Some(99))), Action::Wait(at(104))),
        (Want::Stop, seen(stopping(85, Some(95))), Action::Destroy),
        (Want::Run, seen(stopping(85, None)), Action::Kill),
        // What ended.
        (Want::Stop, seen(exited(How::Code(1), 99)), Action::Nothing),
        (Want::Forget, seen(exited(How::Code(1), 99)), Action::Forget),
        (Want::Stray { stop: true }, seen(exited(How::Code(1), 99)), Action::Forget),
        (Want::Run, seen(exited(How::Code(1), 100)), again),
        (Want::Unknown, seen(exited(How::Code(1), 100)), again),
        (Want::Run, seen(Run::Broken), Action::Clean),
        (Want::Stop, seen(Run::Broken), Action::Clean),
        (Want::Unknown, seen(Run::Broken), Action::Clean),
        (Want::Stop, seen(Run::Unknown), Action::Look),
    ] {
        check(want, &seen, action);
    }
}

#[test]
fn restarts_follow_the_policy() {
    for (restart, how, finished_) in [
        (Restart::Always, How::Code(0), false),
        (Restart::Always, How::Code(1), false),
        (Restart::OnFailure, How::Code(0), true),
        (Restart::OnFailure, How::Code(1), false),
        (Restart::OnFailure, How::Signal(9), false),
        (Restart::OnFailure, How::MachineRestarted, false),
        (Restart::Never, How::Code(0), true),
        (Restart::Never, How::Code(1), true),
        (Restart::Never, How::SupervisorLost, true),
    ] {
        let exit = Exit::new(how, at(0));
        assert_eq!(finished(restart, &exit), finished_, "{restart:?} after {exit:?}");
    }
}

#[test]
fn the_first_restart_is_immediate_and_later_ones_double() {
    let backoff = Backoff::default();
    let delays: Vec<u64> = (0..12).map(|n| backoff.delay(n, &How::Code(1)).as_secs()).collect();
    assert_eq!(delays, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    let hopeless: Vec<u64> = (0..4).map(|n| backoff.delay(n, &How::CannotStart(String::new())).as_secs()).collect();
    assert_eq!(hopeless, [1, 2, 4, 8]);
    let crashing = Seen { failures: 5, ..seen(Run::Never) };
    assert_eq!(backoff.restart_at(&crashing, &Exit::new(How::Code(1), at(9))), at(9 + 16));
    assert_eq!(backoff.restart_at(&crashing, &Exit::new(How::Code(1), at(10))), at(10), "it ran stably");
    let far = Seen { failures: u32::MAX, ..seen(Run::Never) };
    assert_eq!(backoff.restart_at(&far, &Exit::new(How::Code(1), at(1))), at(301));
}

#[test]
fn never_more_than_half_of_the_strays_but_always_one() {
    for (strays, running, stopped) in [(6, 6, 3), (3, 3, 1), (1, 1, 1), (1, 10, 1), (5, 10, 5), (6, 10, 5), (0, 4, 0)] {
        assert_eq!(strays_to_stop((0..strays).collect(), running).len(), stopped, "{strays} of {running}");
    }
}

fn memory(recorded: Option<&str>) -> NodeMemory {
    NodeMemory { incarnation: recorded.map(String::from), ..NodeMemory::default() }
}

fn confirmation(incarnation: &str, second: i64) -> Confirmation {
    Confirmation { incarnation: incarnation.into(), time: at(second) }
}

#[test]
fn a_store_counts_once_it_is_known_or_nothing_is_at_stake() {
    let check = |recorded, confirmed, incarnation, strays, expected| {
        let missing = Missing { of: 6, strays };
        let trust = trust(&memory(recorded), &confirmation(confirmed, 1), incarnation, missing, missing);
        assert_eq!(trust, expected, "{recorded:?} {confirmed} {incarnation} {strays}");
    };
    let other = Trust::Unconfirmed(Doubt::OtherIncarnation);
    check(Some("a"), "", "a", 3, Trust::Known);
    check(Some("a"), "", "b", 3, other);
    check(Some("a"), "c", "b", 3, other);
    check(Some("a"), "a", "b", 3, other);
    check(Some("a"), "b", "b", 3, Trust::Adopt);
    check(Some("a"), "", "b", 0, Trust::Adopt);
    check(None, "", "a", 0, Trust::Adopt);
    check(None, "", "a", 1, other);
    check(Some(""), "", "", 6, Trust::Unconfirmed(Doubt::MostMissing));
}

#[test]
fn a_store_that_misses_most_of_what_is_here_is_not_believed_unless_vouched_for() {
    let check = |confirmed, (strays, of), (all_strays, all), expected| {
        let all = Missing { of: all, strays: all_strays };
        let trust = trust(&memory(Some("a")), &confirmation(confirmed, 1), "a", Missing { of, strays }, all);
        assert_eq!(trust, expected, "{confirmed} {strays} of {of}");
    };
    let most = Trust::Unconfirmed(Doubt::MostMissing);
    check("", (3, 6), (3, 6), Trust::Known);
    check("", (4, 6), (4, 6), most);
    check("", (1, 1), (1, 1), most);
    check("", (2, 2), (2, 6), most);
    check("", (0, 2), (4, 6), most);
    check("", (0, 0), (0, 0), Trust::Known);
    check("a", (6, 6), (6, 6), Trust::Vouched);
    check("a", (0, 6), (0, 6), Trust::Vouched);
    check("b", (6, 6), (6, 6), most);
}

#[test]
fn a_confirmation_that_was_used_up_is_good_for_nothing_more() {
    let used = NodeMemory { used: Some(confirmation("a", 1)), ..memory(Some("a")) };
    let most = Missing { of: 6, strays: 6 };
    let check = |memory: &NodeMemory, confirmed, expected| {
        assert_eq!(trust(memory, &confirmed, "a", most, most), expected, "{confirmed:?}");
    };
    check(&used, confirmation("a", 1), Trust::Unconfirmed(Doubt::MostMissing));
    check(&used, confirmation("a", 2), Trust::Vouched);
    let since = NodeMemory { incarnation: Some("b".into()), ..used };
    check(&since, confirmation("a", 1), Trust::Unconfirmed(Doubt::OtherIncarnation));
    check(&since, confirmation("a", 2), Trust::Adopt);
}

#[test]
fn absent_fields_get_the_documented_defaults() {
    let http = v1::Check { http: Some(v1::HttpCheck::default()), ..Default::default() };
    let health = v1::Health { startup: Some(http.clone()), readiness: Some(http.clone()), liveness: Some(http) };
    let template = v1::InstanceTemplate { health: Some(health), ..Default::default() };
    let read = Template::from(&template);
    assert_eq!((read.stop_grace, read.restart, read.working_dir), (10 * SECOND, Restart::Always, None));
    let checks = [read.startup, read.readiness, read.liveness].map(Option::unwrap);
    let numbers = checks.each_ref().map(|c| (c.interval.as_secs(), c.timeout.as_secs(), c.successes, c.failures));
    assert_eq!(numbers, [(1, 1, 1, 60), (1, 1, 1, 3), (5, 1, 1, 3)]);
    assert_eq!(checks[0].probe, Probe::Http { path: String::new(), port: String::new() });
    let nothing = v1::Health { readiness: Some(v1::Check::default()), ..Default::default() };
    let template = v1::InstanceTemplate { health: Some(nothing), ..Default::default() };
    assert_eq!(Template::from(&template).readiness, None);
}

#[test]
fn interruptions_of_many_agents_are_told_together() {
    let together = Together::new(1);
    let first: Vec<bool> = (0..3).map(|_| together.interrupted()).collect();
    assert_eq!((first, together.take_interruptions()), (vec![true, false, false], Some(3)));
    assert!(together.interrupted(), "it's told of again");
}

#[tokio::test(start_paused = true)]
async fn what_fails_again_and_again_is_told_once_and_then_once_a_minute() {
    let together = Together::new(1);
    let mut told = Vec::new();
    for second in 0..120 {
        told.extend(together.report_failed().map(|times| (second, times)));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(told, [(0, 1), (60, 60)]);
    assert_eq!(together.clearing_failed(), Some(1), "it's another thing");
}

fn report(uid: &str, phase: &str) -> v1::InstanceReport {
    let status = v1::InstanceStatus { phase: phase.into(), ..Default::default() };
    v1::InstanceReport { uid: uid.into(), status: Some(status), ..Default::default() }
}

fn uids(batch: &v1::ReportBatch) -> Vec<&str> {
    batch.instances.iter().map(|r| r.uid.as_str()).collect()
}

#[test]
fn the_outbox_coalesces_and_never_repeats_itself() {
    let mut outbox = Outbox::default();
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    let running = |uid: &str| Some(report(uid, "Running"));
    outbox.mark(&a);
    let first = outbox.next(running).unwrap();
    assert_eq!(uids(&first), ["a"]);
    outbox.mark(&a);
    outbox.mark(&b);
    outbox.mark(&b);
    assert_eq!(outbox.next(running), None, "one at a time");
    outbox.acknowledged(first.sequence, &[]);
    let second = outbox.next(running).unwrap();
    assert_eq!(uids(&second), ["b"], "what is known isn't said again");
    outbox.failed(second.sequence, Failed::Retry);
    let third = outbox.next(|uid| Some(report(uid, "BackOff"))).unwrap();
    assert_eq!(third.instances, [report("b", "BackOff")], "as it is by then");
    outbox.acknowledged(second.sequence, &[]);
    outbox.mark(&a);
    assert_eq!(outbox.next(running), None, "a late answer to an older batch says nothing");
    outbox.start_over([a, b].into_iter(), v1::NodeStatus::default());
    assert_eq!(uids(&outbox.next(running).unwrap()), ["a", "b"], "a new link may know nothing");
}

#[test]
fn the_outbox_keeps_its_bounds() {
    let mut outbox = Outbox::default();
    for n in 0..250 {
        outbox.mark(&format!("{n:03}").into());
    }
    let mut sizes = Vec::new();
    while let Some(batch) = outbox.next(|uid| Some(report(uid, "Running"))) {
        sizes.push(batch.instances.len());
        outbox.acknowledged(batch.sequence, &[]);
    }
    assert_eq!(sizes, [100, 100, 50]);
    let big = "x".repeat(100 * 1024);
    (0..5).for_each(|n| outbox.mark(&format!("big-{n}").into()));
    let batch = outbox.next(|uid| Some(report(uid, &big))).unwrap();
    assert_eq!(batch.instances.len(), 3, "three of 100 KiB reach 256 KiB");
}

#[test]
fn the_nodes_status_is_told_once() {
    let mut outbox = Outbox::default();
    let node = v1::NodeStatus { driver: "sim".into(), ..Default::default() };
    outbox.start_over(std::iter::empty(), node.clone());
    outbox.set_node(node.clone());
    assert_eq!(outbox.next(|_| None), None, "it was told with the link");
    let changed = v1::NodeStatus { driver: "process".into(), ..Default::default() };
    outbox.set_node(changed.clone());
    let batch = outbox.next(|_| None).unwrap();
    assert_eq!(batch.node, Some(changed));
    outbox.failed(batch.sequence, Failed::Retry);
    let batch = outbox.next(|_| None).unwrap();
    outbox.acknowledged(batch.sequence, &[]);
    assert_eq!(outbox.next(|_| None), None);
}

/// The machine's clock was set, or it slept, since the agent began; supervisors date ends by it.
#[test]
fn an_end_that_cannot_be_so_is_one_of_now() {
    let backoff = Backoff::default();
    let again = |failures: u32, end: i64| {
        let resource = instance("web-0", v1::InstanceTemplate::default());
        let mut slot = Slot::new(&Assigned::read(resource).unwrap());
        slot.remember(Memory { run: 1, started: at(100), failures, ..Memory::default() });
        slot.ended(Exit::new(How::Code(1), at(end)), at(105));
        plan(Want::Run, &slot.seen, &backoff, at(105))
    };
    assert_eq!(again(0, 104), Action::Start { again: true });
    assert_eq!(again(0, 4_000), Action::Start { again: true }, "not in an hour");
    assert_eq!(again(3, 103), Action::Wait(at(107)), "by its own time");
    assert_eq!(again(3, 10), Action::Wait(at(109)), "not at once, again and again");
}

/// What the store takes; the rest is refused for good, as something too large is.
fn tell(outbox: &mut Outbox, takes: impl Fn(&v1::ReportBatch) -> bool) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..1_000 {
        let Some(batch) = outbox.next(|uid| Some(report(uid, "Running"))) else { return told };
        if takes(&batch) {
            told.extend(uids(&batch).into_iter().map(str::to_owned));
            outbox.acknowledged(batch.sequence, &[]);
        } else {
            outbox.failed(batch.sequence, Failed::Refused);
        }
    }
    panic!("it goes on for ever");
}

#[test]
fn what_can_never_be_reported_keeps_nothing_else_from_being() {
    let all: Vec<String> = (0..250).map(|n| format!("{n:03}")).collect();
    let bad = ["007", "099", "249"];
    let mut outbox = Outbox::default();
    outbox.set_node(v1::NodeStatus { driver: "sim".into(), ..Default::default() });
    all.iter().for_each(|uid| outbox.mark(&uid.as_str().into()));
    let good = |batch: &v1::ReportBatch| !uids(batch).iter().any(|uid| bad.contains(uid));
    let told = tell(&mut outbox, good);
    let expected: Vec<&String> = all.iter().filter(|uid| !bad.contains(&uid.as_str())).collect();
    assert_eq!(told.iter().collect::<Vec<_>>(), expected, "each once, in order");
    outbox.mark(&"007".into());
    assert_eq!(outbox.next(|uid| Some(report(uid, "Running"))), None, "not again, as it was");
    assert!(outbox.next(|uid| Some(report(uid, "BackOff"))).is_none(), "nothing changed of the others");
    outbox.mark(&"007".into());
    assert_eq!(uids(&outbox.next(|uid| Some(report(uid, "BackOff"))).unwrap()), ["007"], "but when it changes");
}

#[test]
fn a_node_that_can_never_be_reported_keeps_no_instance_from_being() {
    let mut outbox = Outbox::default();
    outbox.set_node(v1::NodeStatus { driver: "sim".into(), ..Default::default() });
    ["a", "b"].iter().for_each(|uid| outbox.mark(&(*uid).into()));
    assert_eq!(tell(&mut outbox, |batch| batch.node.is_none()), ["a", "b"]);
}

#[test]
fn an_agent_that_is_told_nothing_any_more_is_not_ready() {
    let metrics = Metrics::default();
    [&metrics.linked, &metrics.told, &metrics.hears].iter().for_each(|gauge| gauge.set(1));
    assert_eq!(metrics.ready(), Ok(()));
    metrics.hears.set(0);
    assert!(metrics.ready().is_err());
}
