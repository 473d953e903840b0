//! The store's log as a model: the state at every revision.

use std::collections::BTreeMap;

use super::{Commit, Content, Fault, Violation};

/// A key's contents, each from a revision on.
type Versions<'a> = Vec<(i64, Option<&'a Content>)>;

pub struct Log<'a> {
    commits: &'a [Commit],
    versions: BTreeMap<&'a str, Versions<'a>>,
    /// Where each marker first appears.
    markers: BTreeMap<&'a str, i64>,
}

impl<'a> Log<'a> {
    /// Of commits in the order of their revisions.
    pub fn new(commits: &'a [Commit]) -> Self {
        let mut log = Self { commits, versions: BTreeMap::new(), markers: BTreeMap::new() };
        for commit in commits {
            for (key, content) in &commit.changes {
                log.versions.entry(key).or_default().push((commit.revision, content.as_ref()));
                if let Some(content) = content {
                    log.markers.entry(&content.marker).or_insert(commit.revision);
                }
            }
        }
        log
    }

    /// Where the write with that marker was committed.
    pub fn written(&self, marker: &str) -> Option<i64> {
        self.markers.get(marker).copied()
    }

    /// What the key was at that revision, and since which.
    pub fn at(&self, key: &str, revision: i64) -> Option<(i64, &'a Content)> {
        let versions = self.versions.get(key)?;
        let after = versions.partition_point(|(written, _)| *written <= revision);
        let (written, content) = versions[..after].last()?;
        content.map(|content| (*written, content))
    }

    /// All that existed at that revision.
    pub fn state(&self, prefix: &str, revision: i64) -> BTreeMap<&'a str, (i64, &'a Content)> {
        let of = self.versions.keys().filter(|key| key.starts_with(prefix));
        of.filter_map(|key| Some((*key, self.at(key, revision)?))).collect()
    }

    /// Whether the key was that at any revision of these.
    pub fn was(&self, key: &str, found: Option<(i64, &Content)>, from: i64, to: i64) -> bool {
        let changes = self.versions.get(key).into_iter().flatten().map(|(revision, _)| *revision);
        let mut moments = changes.filter(|revision| (from..=to).contains(revision)).chain([from]);
        moments.any(|revision| self.at(key, revision) == found)
    }

    /// The commits after one revision, up to another, that touch such keys.
    pub fn between<'b>(&'b self, prefix: &'b str, after: i64, to: i64) -> impl Iterator<Item = &'a Commit> + 'b {
        let start = self.commits.partition_point(|commit| commit.revision <= after);
        let end = self.commits.partition_point(|commit| commit.revision <= to);
        let range = &self.commits[start..end.max(start)];
        range.iter().filter(move |commit| commit.changes.keys().any(|key| key.starts_with(prefix)))
    }

    pub fn check(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut epochs: BTreeMap<&str, u64> = BTreeMap::new();
        let mut newest = 0;
        for commit in self.commits {
            let revision = commit.revision;
            let mut found = |fault, what: String| violations.push(Violation { fault, what });
            if revision <= newest {
                found(Fault::RepeatedEvent, format!("the log has revision {revision} after {newest}"));
            }
            newest = revision;
            for (claim, epoch) in &commit.under {
                let current = epochs.get(claim.as_str()).copied().unwrap_or(0);
                if current != *epoch {
                    let what =
                        format!("revision {revision} was written under {claim} at {epoch}, which is at {current}");
                    found(Fault::OldEpoch, what);
                }
            }
            for (claim, epoch) in &commit.claims {
                let before = epochs.insert(claim, *epoch).unwrap_or(0);
                if *epoch != before + 1 {
                    found(Fault::EpochJumped, format!("{claim} goes from {before} to {epoch} at revision {revision}"));
                }
            }
            if commit.announced.is_some_and(|announced| announced != commit.changes.len()) {
                let (announced, made) = (commit.announced.unwrap_or(0), commit.changes.len());
                found(Fault::WrongCount, format!("revision {revision} announced {announced} changes and made {made}"));
            }
        }
        violations
    }
}
