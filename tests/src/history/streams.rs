//! What a watch told, against the log.

use std::collections::{BTreeMap, BTreeSet};

use super::{Change, Checked, Content, Fault, Log, Stream, Told, Violation};

pub fn check(log: &Log<'_>, stream: &Stream, checked: &mut Checked, violations: &mut Vec<Violation>) {
    let mut reader = Reader { log, stream, at: None };
    for told in &stream.told {
        match told {
            Told::Snapshot { .. } => checked.snapshots += 1,
            Told::Group { changes, .. } => checked.told += changes.len(),
            Told::Bookmark { .. } => {}
        }
        if let Err((fault, what)) = reader.take(told) {
            violations.push(Violation { fault, what: format!("{}: {what}", stream.name) });
            // What follows a fault says little.
            return;
        }
    }
}

struct Reader<'a> {
    log: &'a Log<'a>,
    stream: &'a Stream,
    /// Everything up to here was told.
    at: Option<i64>,
}

type Found = Result<(), (Fault, String)>;

impl Reader<'_> {
    fn take(&mut self, told: &Told) -> Found {
        match told {
            Told::Snapshot { revision, all } => self.snapshot(*revision, all),
            Told::Group { from, to, coalesced, changes } => self.group(*from, *to, *coalesced, changes),
            Told::Bookmark { revision } => self.bookmark(*revision),
        }
    }

    fn snapshot(&mut self, revision: i64, all: &BTreeMap<String, (i64, Content)>) -> Found {
        if self.at.is_some_and(|at| revision < at) {
            return Err((Fault::RepeatedEvent, format!("a snapshot of {revision} after {:?}", self.at)));
        }
        let state = self.log.state(&self.stream.prefix, revision);
        for (key, (written, content)) in &state {
            match all.get(*key) {
                None => return Err((Fault::SkippedEvent, format!("the snapshot of {revision} lacks {key}"))),
                Some((r, c)) if (r, c) != (written, content) => {
                    return Err((
                        Fault::WrongState,
                        format!("the snapshot of {revision} has {key} at {r}, not {written}"),
                    ));
                }
                Some(_) => {}
            }
        }
        if let Some(extra) = all.keys().find(|key| !state.contains_key(key.as_str())) {
            return Err((Fault::WrongState, format!("the snapshot of {revision} has {extra}, which isn't there")));
        }
        self.at = Some(revision);
        Ok(())
    }

    fn bookmark(&mut self, revision: i64) -> Found {
        let Some(at) = self.at else { return Err((Fault::WrongEvent, "a bookmark before the snapshot".into())) };
        if revision < at {
            return Err((Fault::RepeatedEvent, format!("a bookmark at {revision} after {at}")));
        }
        if let Some(skipped) = self.log.between(&self.stream.prefix, at, revision).next() {
            return Err((
                Fault::SkippedEvent,
                format!("a bookmark at {revision}, and {} wasn't told", skipped.revision),
            ));
        }
        self.at = Some(revision);
        Ok(())
    }

    fn group(&mut self, from: i64, to: i64, coalesced: bool, changes: &[Change]) -> Found {
        let Some(at) = self.at else { return Err((Fault::WrongEvent, "a group before the snapshot".into())) };
        if to <= at {
            return Err((Fault::RepeatedEvent, format!("a group of {from} to {to} after {at}")));
        }
        let skipped = self.log.between(&self.stream.prefix, at, from).next();
        if let Some(skipped) = skipped {
            return Err((Fault::SkippedEvent, format!("{} is between {at} and a group from {from}", skipped.revision)));
        }
        let commits: Vec<_> = self.log.between(&self.stream.prefix, at, to).collect();
        if !coalesced && commits.iter().any(|commit| commit.revision != to) {
            let told = commits.iter().map(|c| c.revision).find(|revision| *revision != to);
            return Err((Fault::SkippedEvent, format!("a group of {to} alone passes over {}", told.unwrap_or(to))));
        }
        let touched = commits.iter().flat_map(|c| c.changes.keys()).map(String::as_str);
        let touched: BTreeSet<&str> = touched.filter(|key| key.starts_with(&self.stream.prefix)).collect();
        self.told_right(to, &touched, changes)?;
        self.told_whole(at, to, &touched, changes)?;
        self.at = Some(to);
        Ok(())
    }

    /// What was told is so.
    fn told_right(&self, to: i64, touched: &BTreeSet<&str>, changes: &[Change]) -> Found {
        for change in changes {
            let (key, right) = match change {
                Change::Put { key, revision, content } => (key, self.log.at(key, to) == Some((*revision, content))),
                Change::Deleted { key, uid } => {
                    (key, self.log.at(key, to).is_none_or(|(_, content)| content.uid != *uid))
                }
            };
            if !touched.contains(key.as_str()) {
                return Err((Fault::RepeatedEvent, format!("{key} was told anew with {to}, though nothing changed")));
            }
            if !right {
                return Err((Fault::WrongEvent, format!("{key} as told with {to} is not as it was")));
            }
        }
        Ok(())
    }

    /// What is so was told.
    fn told_whole(&self, at: i64, to: i64, touched: &BTreeSet<&str>, changes: &[Change]) -> Found {
        for key in touched {
            let (before, after) = (self.log.at(key, at), self.log.at(key, to));
            let put = changes.iter().any(|c| matches!(c, Change::Put { key: k, .. } if k == key));
            let gone = |uid: &str| {
                changes.iter().any(|c| matches!(c, Change::Deleted { key: k, uid: u } if k == key && u == uid))
            };
            let replaced = before.filter(|(_, b)| after.is_none_or(|(_, a)| a.uid != b.uid));
            if (after.is_some() && !put) || replaced.is_some_and(|(_, b)| !gone(&b.uid)) {
                return Err((Fault::SkippedEvent, format!("what happened to {key} until {to} wasn't told")));
            }
        }
        Ok(())
    }
}
