//! Where things are kept in etcd, and in what form. Keys and small values are text, for those who look with `etcdctl`.
//!
//! ```text
//! <prefix>/cluster                 incarnation and number of shards; made once
//! <prefix>/w/head                  number of watched keys the last commit wrote; its version counts commits
//! <prefix>/w/o/<Kind>/<ns>/<name>  an encoded Resource without its revision
//! <prefix>/m/c/<claim>             epoch and owner; permanent, on no lease
//! <prefix>/m/s/<session>           a Member, on its lease; its version is the attach number
//! <prefix>/m/b/<session>           what the member last said of itself, on the same lease
//! <prefix>/ever/<session>          that the session was ever opened, on a long lease that many share
//! <prefix>/upkeep                  written by the server whose turn it is
//! <prefix>/h/<root>/<replaced revision>/<step>/<nonce>   history entries, which no watch covers
//! ```
//!
//! One etcd watch covers `w/` (objects and `head`), one covers `m/` (claims, sessions, reports).

use model::{Epoch, Key, Revision};
use store::{Cluster, Error, LogEntry, Result};

/// What a key below `w/` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    Head,
    Object(Key),
}

/// What a key below `m/` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coordinated {
    Claim(String),
    Session(String),
    Report(String),
}

/// Makes and reads keys.
#[derive(Clone, Debug)]
pub struct Layout {
    prefix: String,
}

impl Layout {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    pub fn cluster(&self) -> String {
        format!("{}/cluster", self.prefix)
    }

    pub fn upkeep(&self) -> String {
        format!("{}/upkeep", self.prefix)
    }

    pub fn watched(&self) -> String {
        format!("{}/w/", self.prefix)
    }

    pub fn head(&self) -> String {
        format!("{}/w/head", self.prefix)
    }

    /// Below it: all objects, one kind's, or one namespace's of a kind.
    pub fn objects(&self, kind: &str, namespace: &str) -> String {
        match (kind, namespace) {
            ("", _) => format!("{}/w/o/", self.prefix),
            (kind, "") => format!("{}/w/o/{kind}/", self.prefix),
            (kind, namespace) => format!("{}/w/o/{kind}/{namespace}/", self.prefix),
        }
    }

    pub fn object(&self, key: &Key) -> String {
        format!("{}/w/o/{}", self.prefix, key.text())
    }

    pub fn coordinated(&self) -> String {
        format!("{}/m/", self.prefix)
    }

    pub fn claim(&self, name: &str) -> String {
        format!("{}/m/c/{name}", self.prefix)
    }

    pub fn session(&self, id: &str) -> String {
        format!("{}/m/s/{id}", self.prefix)
    }

    pub fn report(&self, id: &str) -> String {
        format!("{}/m/b/{id}", self.prefix)
    }

    pub fn ever(&self, id: &str) -> String {
        format!("{}/ever/{id}", self.prefix)
    }

    /// Below it: all history, or one root's.
    pub fn history(&self, root: Option<&str>) -> String {
        match root {
            None => format!("{}/h/", self.prefix),
            Some(root) => format!("{}/h/{}/", self.prefix, segment(root)),
        }
    }

    /// The nonce keeps entries apart that a caller named alike; the compares alone decide which of them are written. A
    /// slot's key is always the same, so that a put replaces what was there.
    pub fn entry(&self, entry: &LogEntry, replaced: Revision, nonce: u32) -> String {
        if !entry.slot.is_empty() {
            return format!("{}slot/{}", self.history(Some(&entry.root_uid)), segment(&entry.slot));
        }
        let Revision(replaced) = replaced;
        format!("{}{replaced:016x}/{}/{nonce:08x}", self.history(Some(&entry.root_uid)), segment(&entry.step_id))
    }

    pub fn read_watched(&self, key: &[u8]) -> Option<Watched> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.strip_prefix("/w/")?;
        match rest {
            "head" => Some(Watched::Head),
            _ => Key::parse(rest.strip_prefix("o/")?).map(Watched::Object),
        }
    }

    pub fn read_coordinated(&self, key: &[u8]) -> Option<Coordinated> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.strip_prefix("/m/")?;
        match rest.split_once('/')? {
            ("c", name) => Some(Coordinated::Claim(name.into())),
            ("s", id) => Some(Coordinated::Session(id.into())),
            ("b", id) => Some(Coordinated::Report(id.into())),
            _ => None,
        }
    }
}

/// Text that may hold anything, as one part of a key.
fn segment(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2f")
}

/// The end of the range of keys that start with a prefix, which ends in '/'.
pub fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("ranges have a prefix") += 1;
    end
}

pub fn write_cluster(cluster: &Cluster) -> String {
    format!("{} {}", cluster.incarnation, cluster.shards)
}

pub fn read_cluster(value: &[u8]) -> Result<Cluster> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let parsed = text.split_once(' ').and_then(|(i, s)| Some((i, s.parse().ok()?)));
    let (incarnation, shards) = parsed.ok_or_else(|| corrupt("cluster record", text))?;
    Ok(Cluster { incarnation: incarnation.into(), shards })
}

/// Deterministic, so that a fence is a compare of the value.
pub fn write_claim(owner: &str, epoch: Epoch) -> String {
    format!("{epoch} {owner}")
}

/// Owner and epoch.
pub fn read_claim(value: &[u8]) -> Result<(String, Epoch)> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let parsed = text.split_once(' ').and_then(|(e, owner)| Some((owner, e.parse().ok()?)));
    let (owner, epoch) = parsed.ok_or_else(|| corrupt("claim", text))?;
    Ok((owner.into(), Epoch(epoch)))
}

fn corrupt(what: &str, text: &str) -> Error {
    Error::Corrupt(format!("the {what} in etcd reads {text:?}"))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
