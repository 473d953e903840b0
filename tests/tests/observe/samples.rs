//! A page of metrics, read.

use std::collections::BTreeMap;

use driftless_tests::http;

/// Samples by their name with its labels, as they are written.
#[derive(Debug)]
pub struct Samples(BTreeMap<String, f64>);

impl Samples {
    #[track_caller]
    pub fn of(address: &str) -> Self {
        Self::read(&http::fetch(address, "/metrics", "*/*").expect("the page is served").body)
    }

    #[track_caller]
    pub fn read(page: &str) -> Self {
        let sample = |line: &str| -> Option<(String, f64)> {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        Self(lines.map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line}"))).collect())
    }

    /// The sum of the samples that start so.
    pub fn sum(&self, start: &str) -> f64 {
        self.0.iter().filter(|(name, _)| name.starts_with(start)).map(|(_, value)| value).sum()
    }

    /// The very sample.
    #[track_caller]
    pub fn get(&self, name: &str) -> f64 {
        *self.0.get(name).unwrap_or_else(|| panic!("no {name} in {:#?}", self.0.keys()))
    }

    /// The names without their labels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| name.split_once('{').map_or(name.as_str(), |(name, _)| name))
    }
}
