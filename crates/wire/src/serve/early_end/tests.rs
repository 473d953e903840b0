use super::*;

const STORM: Duration = Duration::from_secs(1);

/// Streams that are open, and when (in milliseconds) others broke; does the brake hold at `now`?
#[track_caller]
fn check(open: usize, breaks: &[u64], now: u64, holds: bool) {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut brake = Brake { open: open + breaks.len(), ..Brake::default() };
    breaks.iter().for_each(|millis| brake.broke(at(*millis), STORM));
    assert_eq!(brake.holds(at(now), STORM), holds, "{open} open, broken at {breaks:?}, seen at {now}");
}

#[tokio::test]
async fn the_brake_tells_a_crash_from_a_storm() {
    // One or two are never a storm, be they all there were.
    check(0, &[0], 300, false);
    check(0, &[0, 0], 300, false);
    check(0, &[0, 0, 0], 300, true);
    // Half is none; more than half is.
    check(3, &[0, 0, 0], 300, false);
    check(2, &[0, 0, 0], 300, true);
    check(100, &[0; 100], 300, false);
    check(99, &[0; 100], 300, true);
    // Only what broke within a second counts.
    check(0, &[0, 400, 800], 1_000, true);
    check(0, &[0, 400, 800], 1_001, false);
    // A stream that broke shortly after this one counts too.
    check(0, &[0, 100, 200], 300, true);
}
