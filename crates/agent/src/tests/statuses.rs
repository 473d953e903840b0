//! What people and controllers are told of each state.

use std::time::Duration;

use api::v1;
use expect_test::{Expect, expect};
use model::Time;

use crate::{
    driver::{Exit, How, Memory, Reached},
    plan::{Backoff, Run, Seen, Stopping, Want},
    status::{Facts, status},
    template::Restart,
};

fn exited(how: How) -> Run {
    Run::Exited(Exit::new(how, Time::from_millis(1_000)))
}

fn told(want: Want, run: Run, change: impl FnOnce(&mut Seen), trouble: Option<&str>) -> v1::InstanceStatus {
    let mut seen = Seen {
        run,
        restart: Restart::Always,
        grace: Duration::from_secs(10),
        started: Time::default(),
        failures: 2,
        dead: false,
        ready: true,
        ready_noted: true,
        not_before: None,
        start_until: None,
        stop_noted: None,
    };
    change(&mut seen);
    let memory = Memory { run: 1, ..Memory::default() };
    let facts = Facts {
        generation: 1,
        want,
        seen: &seen,
        memory: &memory,
        pid: 7,
        starting_up: false,
        unenforced: None,
        reached: Reached::default(),
        trouble,
    };
    status(&facts, &Backoff::default())
}

/// Phase, readiness, and each condition.
fn check(want: Want, run: Run, change: impl FnOnce(&mut Seen), trouble: Option<&str>, expected: Expect) {
    let status = told(want, run, change, trouble);
    let mut text = format!("{} ready={} pid={}\n", status.phase, status.ready, status.pid);
    for c in status.conditions {
        text += &format!("{}={} {} {}", c.r#type, c.status, c.reason, c.message);
        text = text.trim_end().to_owned() + "\n";
    }
    expected.assert_eq(&text);
}

fn same(_: &mut Seen) {}

#[test]
fn what_runs() {
    let running = || Run::Running { stopping: None };
    check(
        Want::Run,
        running(),
        same,
        None,
        expect![[r#"
            Running ready=true pid=7
            Started=True Running
            Ready=True Running
        "#]],
    );
    check(
        Want::Run,
        running(),
        |seen| seen.ready = false,
        Some("GET /: status 503"),
        expect![[r#"
            Running ready=false pid=7
            Started=True Running
            Healthy=False CheckFailing GET /: status 503
            Ready=False CheckFailing GET /: status 503
        "#]],
    );
    check(
        Want::Stop,
        running(),
        same,
        None,
        expect![[r#"
            Stopping ready=false pid=7
            Started=True Running
            Ready=False Stopping
        "#]],
    );
    let stopping = Some(Stopping { since: Time::default(), killed: None });
    check(
        Want::Run,
        Run::Running { stopping },
        |seen| seen.dead = true,
        Some("its liveness check failed 3 times: no answer within 1s"),
        expect![[r#"
            Stopping ready=false pid=7
            Started=True Running
            Healthy=False CheckFailing its liveness check failed 3 times: no answer within 1s
            Ready=False Stopping
        "#]],
    );
}

#[test]
fn what_failed_says_its_last_words() {
    let long = "x".repeat(1000);
    let log_tail = format!("reading /etc/app.toml\n\nno such \x1b[31mfile\n{long}");
    let exit = Exit { log_tail, ..Exit::new(How::Code(1), Time::from_millis(1_000)) };
    check(
        Want::Run,
        Run::Exited(exit),
        |seen| seen.restart = Restart::Never,
        None,
        expect![[r#"
            Failed ready=false pid=0
            Ready=False Failed it exited with code 1; it wrote last: reading /etc/app.toml / no such [31mfile / xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
        "#]],
    );
}

#[test]
fn what_ended_after_it_lost_a_process_for_want_of_memory_says_both() {
    let exit = Exit { lost_some: true, ..Exit::new(How::Code(3), Time::from_millis(1_000)) };
    check(
        Want::Run,
        Run::Exited(exit),
        |seen| seen.restart = Restart::Never,
        None,
        expect![[r#"
            Failed ready=false pid=0
            Ready=False Failed it exited with code 3, having lost a process that needed more memory than spec.template.resources.limits.memory allows
        "#]],
    );
}

#[test]
fn what_was_stopped_since_it_was_unwell_did_not_succeed() {
    let unwell = Some("its liveness check failed 3 times: GET /: status 503".to_owned());
    let exit = Exit { unwell, ..Exit::new(How::Code(0), Time::from_millis(1_000)) };
    check(
        Want::Run,
        Run::Exited(exit),
        |seen| seen.restart = Restart::OnFailure,
        None,
        expect![[r#"
            BackOff ready=false pid=0
            Healthy=False CheckFailed its liveness check failed 3 times: GET /: status 503
            Ready=False BackOff its liveness check failed 3 times: GET /: status 503; stopped for that, it exited with code 0; starts again at 1970-01-01T00:00:03Z
        "#]],
    );
}

#[test]
fn what_ended() {
    check(
        Want::Run,
        exited(How::Code(3)),
        same,
        None,
        expect![[r#"
            BackOff ready=false pid=0
            Ready=False BackOff it exited with code 3; starts again at 1970-01-01T00:00:03Z
        "#]],
    );
    check(
        Want::Run,
        exited(How::CannotStart("command not found: /no/such".into())),
        same,
        None,
        expect![[r#"
            BackOff ready=false pid=0
            Started=False CannotStart command not found: /no/such
            Ready=False BackOff command not found: /no/such; starts again at 1970-01-01T00:00:05Z
        "#]],
    );
    check(
        Want::Run,
        exited(How::SupervisorLost),
        |seen| seen.restart = Restart::Never,
        None,
        expect![[r#"
            Failed ready=false pid=0
            Ready=False Failed its supervisor vanished, so its processes were killed
        "#]],
    );
    check(
        Want::Run,
        exited(How::Code(0)),
        |seen| seen.restart = Restart::OnFailure,
        None,
        expect![[r#"
            Finished ready=false pid=0
            Ready=False Finished it ended by itself, with code 0
        "#]],
    );
    check(
        Want::Run,
        Run::Never,
        same,
        Some("writing memory.json: No space left on device"),
        expect![[r#"
            BackOff ready=false pid=0
            Started=False NodeTrouble writing memory.json: No space left on device
            Ready=False BackOff writing memory.json: No space left on device
        "#]],
    );
}

/// A command may be as long as a spec, and the message repeats it.
#[test]
fn no_message_is_endless() {
    let why = format!("command not found: {}", "\u{e4}".repeat(200_000));
    let status = told(Want::Run, exited(How::CannotStart(why)), same, None);
    let long: usize = status.conditions.iter().map(|condition| condition.message.len()).max().unwrap_or(0);
    assert!((2048..10_000).contains(&long), "{long} bytes");
}
