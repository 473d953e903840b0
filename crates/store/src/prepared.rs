//! A transaction made ready for a backend: encoded once, in the caller's own task, with its bounds counted.
//!
//! Every backend goes through here, so that all of them refuse the same transactions. Nothing here knows a state.

use std::collections::{BTreeMap, HashSet};

use api::v1;
use bytes::Bytes;
use model::{Facts, Fence, Key, Object, Revision, fields};
use prost::Message;

use crate::{Error, Expect, LogEntry, PUTS_MAX, Result, TRANSACTION_BYTES_MAX, Transaction, Write};

/// A transaction whose resources are encoded.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub incarnation: String,
    pub fence: Option<Fence>,
    pub expects: Vec<Expect>,
    pub writes: Vec<PreparedWrite>,
    pub log: Vec<LogEntry>,
    /// Of keys, resources and entries.
    pub bytes: usize,
}

#[derive(Clone, Debug)]
pub struct PreparedWrite {
    pub key: Key,
    /// Of what it replaces; empty is a uid like any other.
    pub uid: String,
    /// The revision it replaces; `Revision::ZERO`: it must not exist.
    pub expected: Revision,
    /// What the record is to be; none: removed.
    pub after: Option<(Bytes, Known)>,
}

impl Prepared {
    pub fn new(transaction: Transaction) -> Self {
        let Transaction { incarnation, fence, expects, writes, log, .. } = transaction;
        let writes: Vec<PreparedWrite> = writes.into_iter().map(PreparedWrite::new).collect();
        let bytes = writes.iter().map(PreparedWrite::bytes).sum::<usize>()
            + log.iter().map(|e| e.root_uid.len() + e.step_id.len() + e.bytes.len()).sum::<usize>();
        Self { incarnation, fence, expects, writes, log, bytes }
    }

    /// What is wrong with it whatever the state is: a key that is none, a key written twice, a bound exceeded.
    pub fn check(&self) -> Result<()> {
        let mut seen = HashSet::new();
        for key in self.writes.iter().map(|w| &w.key) {
            check_key(key)?;
            if !seen.insert(key) {
                return Err(Error::invalid("writes", format!("{key} is written twice in one transaction")));
            }
        }
        self.expects.iter().try_for_each(|e| check_key(&e.key))?;
        let puts = self.writes.len() + self.log.len() + 1; // `head` is the one more.
        if puts > PUTS_MAX {
            return Err(Error::TooLarge(format!("{puts} puts in one transaction, at most {PUTS_MAX} are allowed")));
        }
        if self.bytes > TRANSACTION_BYTES_MAX {
            let bytes = self.bytes;
            return Err(Error::TooLarge(format!(
                "{bytes} bytes in one transaction, at most {TRANSACTION_BYTES_MAX} are allowed"
            )));
        }
        Ok(())
    }
}

impl PreparedWrite {
    fn new(write: Write) -> Self {
        let (key, expected) = (write.key(), write.expected());
        match write {
            Write::Put(resource) => {
                let known = resource.metadata.as_ref().map(Known::of).unwrap_or_default();
                let uid = known.uid.clone();
                Self { key, uid, expected, after: Some((Object::encode(*resource), known)) }
            }
            Write::Remove { uid, .. } => Self { key, uid, expected, after: None },
        }
    }

    fn bytes(&self) -> usize {
        self.key.text().len() + self.after.as_ref().map_or(0, |(bytes, _)| bytes.len())
    }

    /// Whether what is stored is what it means to replace; `current` is the stored revision and uid.
    pub fn check(&self, current: Option<(Revision, &str)>) -> Result<()> {
        let conflict = |message: String| Err(Error::conflict(&self.key, message));
        match (current, self.expected, &self.after) {
            (None, Revision::ZERO, Some(_)) => Ok(()),
            (None, Revision::ZERO, None) => conflict("it doesn't exist".into()),
            (None, expected, _) => conflict(format!("expected at revision {expected}, but it doesn't exist")),
            (Some((revision, _)), Revision::ZERO, _) => {
                conflict(format!("expected not to exist, but it is at revision {revision}"))
            }
            (Some((revision, _)), expected, _) if revision != expected => {
                conflict(format!("expected at revision {expected}, but it is at {revision}"))
            }
            (Some((_, uid)), _, _) if uid != self.uid => {
                conflict(format!("expected uid {:?}, but it has {uid:?}: it was made anew", self.uid))
            }
            (Some(_), _, _) => Ok(()),
        }
    }
}

/// Stores keep records by the key's text, so it must read back as the same key.
fn check_key(key: &Key) -> Result<()> {
    if Key::parse(key.text()).is_none() || key.kind().is_empty() || key.name().is_empty() {
        let text = key.text();
        return Err(Error::invalid("key", format!("{text:?} is no key: it wants a kind and a name, without '/'")));
    }
    Ok(())
}

/// What filters ask of a record, taken from its metadata. Which nodes and kinds are special only servers know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub uid: String,
    pub owner_uid: String,
    pub shard: u32,
    pub labels: BTreeMap<String, String>,
}

impl Known {
    pub fn of(metadata: &v1::Metadata) -> Self {
        Self {
            uid: metadata.uid.clone(),
            owner_uid: metadata.owner.as_ref().map(|o| o.uid.clone()).unwrap_or_default(),
            shard: metadata.shard,
            labels: metadata.labels.clone(),
        }
    }

    /// From an encoded resource, without decoding its spec and status.
    pub fn decode(bytes: &Bytes) -> Result<Self, prost::DecodeError> {
        const METADATA: u32 = 1;
        let mut merged = v1::Resource::default();
        for (_, field) in fields::split(bytes)?.into_iter().filter(|(number, _)| *number == METADATA) {
            merged.merge(field)?;
        }
        Ok(merged.metadata.as_ref().map(Self::of).unwrap_or_default())
    }

    pub fn facts<'a>(&'a self, key: &'a Key) -> Facts<'a> {
        Facts { key, labels: &self.labels, owner_uid: &self.owner_uid, shard: self.shard, global: false, node: None }
    }
}
