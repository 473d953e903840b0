//! Small phrases and readings that several kinds share.

use std::time::Duration;

use model::Violation;

/// "1 instance", "3 instances".
pub fn count(n: usize, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

/// The first so many, and how many more there are: "a, b and 3 more".
pub fn some_of(names: &[&str], most: usize) -> String {
    let named = names.iter().take(most).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// A declared duration that isn't negative.
pub fn duration(declared: Option<&prost_types::Duration>, default: Duration) -> Option<Duration> {
    match declared {
        None => Some(default),
        Some(d) => Duration::try_from(*d).ok(),
    }
}

/// What a finalizer keeps, and who can help.
pub fn held_by(key: &model::Key, finalizer: &str) -> String {
    let (kind, name) = (key.kind().to_ascii_lowercase(), key.name());
    format!(
        "held by finalizer {finalizer:?}: whoever put it there takes it off when it's done; by hand: driftless delete \
         {kind} {name} --drop-finalizer {finalizer}"
    )
}

/// A million cores.
const CPU_MILLIS_MAX: u64 = 1_000_000_000;

/// Cores as thousandths: "2", "0.5", "500m". Empty: 0.
pub fn cpu_millis(text: &str) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    match text.strip_suffix('m') {
        Some(millis) => millis.parse().ok().filter(|millis| *millis <= CPU_MILLIS_MAX),
        None => {
            let cores: f64 = text.parse().ok()?;
            let millis = cores * 1_000.0;
            (0.0..=CPU_MILLIS_MAX as f64).contains(&millis).then_some(millis.round() as u64)
        }
    }
}

/// Bytes: "128Mi", "1Gi", "500M", "1048576". Empty: 0.
pub fn memory_bytes(text: &str) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    const UNITS: [(&str, u64); 8] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let (digits, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|digits| (digits, *unit)))
        .unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Whether a shell could name a variable so.
pub fn env_name(name: &str) -> bool {
    let word = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    word && !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Collects violations while a spec is read.
#[derive(Default)]
pub struct Checker {
    pub violations: Vec<Violation>,
}

impl Checker {
    pub fn require(&mut self, holds: bool, field: &str, message: impl Into<String>) {
        if !holds {
            self.violations.push(Violation::new(field, message));
        }
    }

    /// The value, or a violation and the fallback.
    pub fn read<T>(&mut self, value: Option<T>, fallback: T, field: &str, message: impl Into<String>) -> T {
        self.require(value.is_some(), field, message);
        value.unwrap_or(fallback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_bounds() {
        assert_eq!(["500m", "0.5", "1000000000m"].map(cpu_millis), [Some(500), Some(500), Some(1_000_000_000)]);
        assert_eq!(["1000000001m", "18446744073709551615m", "NaN", "inf", "-1"].map(cpu_millis), [None; 5]);
        assert_eq!(["1Gi", "18446744073709551615Ki"].map(memory_bytes), [Some(1 << 30), None]);
    }
}
