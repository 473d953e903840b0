//! Durations as people write them, on the command line and in manifests.

use std::time::Duration;

/// What is taken, in the words of an error.
pub const DURATION: &str = "a number with its unit, or several: 500ms, 30s, 1m30s, 2h";

/// What a duration in a message may be, by protobuf: 10,000 years.
const DURATION_MAX: Duration = Duration::from_secs(315_576_000_000);

/// Largest first: each may be there once, in this order.
const UNITS: [(&str, u128); 4] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000)];

/// "500ms", "30s", "1.5s", "1m30s", "2h".
pub fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut units, mut nanos) = (text, &UNITS[..], 0_u128);
    while !rest.is_empty() || units.len() == UNITS.len() {
        let (number, behind) = rest.split_at(rest.find(|c: char| c.is_ascii_alphabetic())?);
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let at = units.iter().position(|(name, _)| *name == unit)?;
        nanos = nanos.checked_add(scaled(number, units[at].1)?)?;
        (rest, units) = (behind, &units[at + 1..]);
    }
    let whole = Duration::new(u64::try_from(nanos / 1_000_000_000).ok()?, u32::try_from(nanos % 1_000_000_000).ok()?);
    (whole <= DURATION_MAX).then_some(whole)
}

/// "1.5" of so many nanoseconds; what is less than one is left out.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u128>().ok())?;
    let parts = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction = digits(fraction)?.checked_mul(unit)? / parts;
    digits(whole)?.checked_mul(unit)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let read = |text| duration(text).map(|read| read.as_millis());
        assert_eq!(
            ["500ms", "90s", "1m", "1m30s", "2h", "0s"].map(read),
            [500, 90_000, 60_000, 90_000, 7_200_000, 0].map(Some)
        );
        assert_eq!(["1.5s", "0.25h", "1h0m1s250ms", "1s1ms"].map(read), [1_500, 900_000, 3_601_250, 1_001].map(Some));
        assert_eq!(duration("0.000000001s"), Some(Duration::from_nanos(1)));
        assert_eq!(duration("315576000000s"), Some(DURATION_MAX));
    }

    #[test]
    fn what_could_mean_something_else_is_not_guessed() {
        for wrong in
            ["", "10", "s", "-1s", "+1s", "1 s", " 1s", "1s ", "1d", "1S", "1e3s", "1.s", ".5s", "1..2s", "1_0s"]
        {
            assert_eq!(duration(wrong), None, "{wrong:?}");
        }
        for wrong in ["30s1m", "1m1m", "1m30", "1ms2s", "1h-1m", "1m.s", "١s"] {
            assert_eq!(duration(wrong), None, "{wrong:?}");
        }
        for large in ["315576000000.1s", "99999999999999999999999h", "1e400s", &format!("0.{}s", "1".repeat(100))] {
            assert_eq!(duration(large), None, "{large:?}");
        }
    }
}
