use super::*;

fn kept(marks: &[(i64, i64, usize)]) -> Kept {
    let mark = |(revision, seconds, bytes): &(i64, i64, usize)| Mark {
        revision: Revision(*revision),
        time: Time::from_millis(seconds * 1_000),
        bytes: *bytes,
    };
    Kept(marks.iter().map(mark).collect())
}

fn surplus(kept: &mut Kept, now: i64) -> Option<i64> {
    let retention = Retention { age_max: Duration::from_secs(100), bytes_max: 50, every: Duration::from_secs(1) };
    kept.surplus(&retention, Time::from_millis(now * 1_000)).map(|revision| revision.0)
}

#[test]
fn what_is_too_old_goes_and_what_is_too_much() {
    let mut pages = kept(&[(10, 0, 20), (20, 50, 20), (30, 100, 20), (40, 150, 20)]);
    assert_eq!(surplus(&mut pages, 150), Some(20), "the first is too old, the second too much");
    assert_eq!(surplus(&mut pages, 150), None);
    assert_eq!(pages.newest(), Revision(40));
    assert_eq!(surplus(&mut pages, 1_000), Some(40), "in the end all of it is old");
    assert_eq!(surplus(&mut kept(&[(10, 0, 1_000)]), 0), None, "the newest are not too much");
}
