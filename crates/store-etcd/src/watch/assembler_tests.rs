use super::*;

fn put(revision: i64, name: &str) -> Event {
    let bytes = Bytes::from(format!("{name}@{revision}"));
    Event { revision: Revision(revision), what: What::Put(Key::new("Service", "default", name), bytes) }
}

fn deleted(revision: i64, name: &str) -> Event {
    Event { revision: Revision(revision), what: What::Deleted(Key::new("Service", "default", name)) }
}

fn head(revision: i64, commits: u64, writes: u32) -> Event {
    Event { revision: Revision(revision), what: What::Head(HeadNote { commits, writes }) }
}

/// What comes out of those events after commit 4 at revision 10, in short.
#[track_caller]
fn check(events: &[Event], expected: &[&str]) {
    let mut assembler = Assembler::after(Head { revision: Revision(10), commits: 4 });
    let said: Vec<String> = events.iter().map(|event| shown(assembler.take(event.clone()))).collect();
    assert_eq!(said, expected);
}

fn shown(taken: Taken) -> String {
    match taken {
        Taken::Nothing => "-".into(),
        Taken::Repeated => "repeated".into(),
        Taken::Lie(cause) => format!("{cause:?}"),
        Taken::Commit(commit) => {
            let object = |(key, bytes): (&Key, &Option<Bytes>)| {
                format!("{}{}", if bytes.is_some() { "+" } else { "-" }, key.name())
            };
            let objects: Vec<String> = commit.objects.iter().map(object).collect();
            format!("{}: {}", commit.revision, objects.join(" "))
        }
    }
}

#[test]
fn a_commit_is_handed_out_when_it_is_whole() {
    check(
        &[put(12, "a"), deleted(12, "b"), head(12, 5, 2), head(15, 6, 0), put(16, "a"), head(16, 7, 1)],
        &["-", "-", "12: +a -b", "15: ", "-", "16: +a"],
    );
}

#[test]
fn what_was_seen_is_not_seen_again() {
    check(
        &[put(9, "a"), put(12, "a"), put(12, "a"), head(12, 5, 1), put(12, "a"), head(12, 5, 1), head(10, 4, 0)],
        &["repeated", "-", "repeated", "12: +a", "repeated", "repeated", "repeated"],
    );
}

#[test]
fn a_lost_event_is_missed() {
    check(&[put(12, "a"), head(12, 5, 2)], &["-", "Missing"]);
    check(&[head(12, 5, 1)], &["Missing"]);
    check(&[put(12, "a"), put(12, "b"), head(12, 5, 1)], &["-", "-", "Missing"]);
}

#[test]
fn a_lost_head_is_missed_at_the_next_event() {
    check(&[put(12, "a"), put(13, "b")], &["-", "Missing"]);
    check(&[put(12, "a"), head(13, 6, 0)], &["-", "Missing"]);
}

#[test]
fn a_lost_commit_is_a_gap() {
    check(&[put(13, "a"), head(13, 6, 1)], &["-", "Gap"]);
    check(&[head(13, 0, 0)], &["Gap"]);
}

#[test]
fn late_events_of_an_older_revision_do_not_count() {
    check(&[put(13, "a"), put(12, "b"), head(13, 5, 1)], &["-", "repeated", "13: +a"]);
}
