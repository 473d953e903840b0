//! What was measured, as values: samples, figures with their targets, and the two ways to show them.

use std::time::Duration;

use serde::Serialize;

use crate::output;

/// One measured value, beside what it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Stable: programs find it by this.
    pub name: &'static str,
    /// For people.
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    /// It should be below that; none where nothing was promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// How many measurements it was made of.
    pub n: usize,
}

impl Figure {
    pub fn new(name: &'static str, what: impl Into<String>, value: f64, unit: &'static str, n: usize) -> Self {
        Self { name, what: what.into(), value, unit, target: None, met: None, n }
    }

    pub fn below(self, target: f64) -> Self {
        Self { target: Some(target), met: Some(self.value < target), ..self }
    }

    fn row(&self) -> Vec<String> {
        let target = self.target.map_or_else(String::new, |target| format!("< {} {}", number(target), self.unit));
        let met = match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let value = format!("{} {}", number(self.value), self.unit);
        vec![self.what.clone(), value, target, met.into(), self.n.to_string()]
    }
}

/// What was promised and could not be measured.
#[derive(Clone, Debug, Serialize)]
pub struct Missing {
    pub what: &'static str,
    pub why: String,
}

/// Everything that one run found out.
#[derive(Debug, Serialize)]
pub struct Report {
    pub bench: &'static str,
    pub machine: super::machine::Machine,
    pub figures: Vec<Figure>,
    pub missing: Vec<Missing>,
}

impl Report {
    pub fn new(bench: &'static str) -> Self {
        Self { bench, machine: super::machine::Machine::here(), figures: Vec::new(), missing: Vec::new() }
    }

    pub fn add(&mut self, figure: Figure) {
        output::say(&format!("  {}: {} {}", figure.what, number(figure.value), figure.unit));
        self.figures.push(figure);
    }

    /// A part that fails takes nothing else with it.
    pub fn missing(&mut self, what: &'static str, error: &anyhow::Error) {
        output::say(&format!("  {what}: not measured: {error:#}"));
        self.missing.push(Missing { what, why: format!("{error:#}") });
    }

    pub fn text(&self) -> String {
        let titles = ["WHAT", "MEASURED", "TARGET", "", "N"].map(str::to_owned);
        let rows: Vec<Vec<String>> = self.figures.iter().map(Figure::row).collect();
        let missing = self.missing.iter().map(|m| format!("not measured: {}: {}\n", m.what, m.why));
        format!("{}\n\n{}{}", self.machine, output::table(&titles, &rows), missing.collect::<String>())
    }

    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Durations, all of the same thing.
#[derive(Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest sample that at least `share` of all don't exceed (nearest rank), in milliseconds. Not a number where
    /// there is none.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |sample| millis(*sample))
    }

    pub fn p50(&self, name: &'static str, what: &str) -> Figure {
        Figure::new(name, format!("{what}, p50"), self.quantile(0.5), "ms", self.len())
    }

    pub fn p99(&self, name: &'static str, what: &str) -> Figure {
        Figure::new(name, format!("{what}, p99"), self.quantile(0.99), "ms", self.len())
    }

    pub fn max(&self, name: &'static str, what: &str) -> Figure {
        Figure::new(name, format!("{what}, max"), self.quantile(1.0), "ms", self.len())
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_by_nearest_rank() {
        let samples: Samples = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!([samples.quantile(0.5), samples.quantile(0.99), samples.quantile(1.0)], [50.0, 99.0, 100.0]);
        let one: Samples = [Duration::from_millis(7)].into_iter().collect();
        assert_eq!([one.quantile(0.5), one.quantile(0.99)], [7.0, 7.0]);
        assert!(Samples::default().quantile(0.5).is_nan());
    }

    #[test]
    fn a_target_is_met_only_below_it() {
        let figure = |value| Figure::new("x", "x", value, "ms", 1).below(15.0).met;
        assert_eq!([figure(14.9), figure(15.0), figure(f64::NAN)], [Some(true), Some(false), Some(false)]);
    }

    #[test]
    fn numbers_show_three_digits() {
        assert_eq!([0.0123, 1.234, 12.34, 1234.5].map(number), ["0.012", "1.23", "12.3", "1234"]);
    }
}
