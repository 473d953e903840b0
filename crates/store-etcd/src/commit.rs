//! A commit: one etcd transaction that compares everything the writer relied on, and writes objects, history and `head`
//! together, or nothing.
//!
//! When a compare fails, the same transaction reads what was compared, so the error says exactly what it was.

use std::collections::HashMap;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use model::{Fence, Key, Revision};
use store::{Error, Expect, Prepared, PreparedWrite, Result, Transaction};

use crate::{
    Failure,
    backend::{Inner, Record},
    history,
    layout::{Layout, read_claim, write_claim},
    read::known_of,
};

/// Compares in one transaction: etcd refuses more than 128 (`--max-txn-ops`).
const COMPARES_MAX: usize = 128;

impl Inner {
    pub async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        let prepared = Prepared::new(transaction);
        let record = self.record_as(&prepared.incarnation).await?;
        let refusal =
            self.check_uids(&prepared).await?.or(prepared.check().err()).or(self.check_space(&prepared).err());
        // Who is deposed or late learns that first, so what is refused anyway is compared too, but writes nothing.
        let puts = if refusal.is_none() { puts(&self.layout, &prepared) } else { Vec::new() };
        let compared = Compared::of(&prepared);
        let txn = Txn::new()
            .when(compared.compares(&self.layout, &record)?)
            .and_then(puts)
            .or_else(compared.reads(&self.layout));
        let answer = self.transact("committing", txn).await?;
        match (answer.succeeded(), refusal) {
            (true, None) => Ok(self.committed(&prepared, revision_of(&answer))),
            (true, Some(refusal)) => Err(refusal),
            (false, _) => Err(self.verdict(&compared, &record, &Found::of(&answer))),
        }
    }

    fn check_space(&self, prepared: &Prepared) -> Result<()> {
        let creates = prepared.writes.iter().any(|w| w.expected == Revision::ZERO && w.after.is_some());
        if creates { self.space.check_create() } else { Ok(()) }
    }

    fn committed(&self, prepared: &Prepared, revision: Revision) -> Revision {
        for (key, known) in prepared.writes.iter().filter_map(|w| Some((&w.key, &w.after.as_ref()?.1))) {
            self.uids.learn(key, revision, &known.uid);
        }
        revision
    }

    pub async fn transact(&self, what: &str, txn: Txn) -> Result<TxnResponse, Failure> {
        self.pool
            .write(what, move |connection| {
                let (mut kv, txn) = (connection.kv.clone(), txn.clone());
                async move { kv.txn(txn).await }
            })
            .await
    }

    /// The transaction compares revisions, and a revision stands for one uid; so a read of what is at that revision, even
    /// a stale one, is enough to know that the uid is right. Returns what is wrong.
    async fn check_uids(&self, prepared: &Prepared) -> Result<Option<Error>> {
        let (mut unknown, mut wrong) = (Vec::new(), None);
        for write in prepared.writes.iter().filter(|w| w.expected != Revision::ZERO) {
            match self.uids.of(&write.key, write.expected) {
                Some(uid) => wrong = wrong.or(write.check(Some((write.expected, &uid))).err()),
                None => unknown.push(write),
            }
        }
        if unknown.is_empty() {
            return Ok(wrong);
        }
        unknown.truncate(COMPARES_MAX); // More are refused anyway.
        let key = |write: &&PreparedWrite| self.layout.object(&write.key);
        let reads: Vec<TxnOp> =
            unknown.iter().map(|w| TxnOp::get(key(w), Some(GetOptions::new().with_serializable()))).collect();
        let txn = Txn::new().and_then(reads);
        let answer = self
            .pool
            .read("reading what is to be replaced", move |connection| {
                let (mut kv, txn) = (connection.kv.clone(), txn.clone());
                async move { kv.txn(txn).await }
            })
            .await?;
        let found = Found::of(&answer);
        for write in unknown {
            let Some(kv) = found.get(&self.layout.object(&write.key)) else { continue };
            let object = self.object_of(kv.clone())?;
            if object.revision == write.expected {
                wrong = wrong.or(write.check(Some((object.revision, &known_of(&object)?.uid))).err());
            }
        }
        Ok(wrong)
    }

    fn verdict(&self, compared: &Compared<'_>, record: &Record, found: &Found) -> Error {
        if found.value(&self.layout.cluster()) != Some(record.value.as_slice()) {
            self.forget_record();
            self.uids.forget();
            return Error::WrongIncarnation(record.cluster.incarnation.clone());
        }
        if let Some(fence) = compared.fence
            && let Some(why) = broken(fence, &self.layout, found)
        {
            return Error::Fenced(format!("{fence}: {why}"));
        }
        let differs = compared.expects.iter().find_map(|e| found.conflict(&self.layout, &e.key, e.revision));
        if let Some(error) = differs {
            return error;
        }
        let differs = compared.writes.iter().find_map(|w| {
            let current = found.get(&self.layout.object(&w.key)).map(|kv| Revision(kv.mod_revision()));
            // The values weren't read again; the uid stands for itself here.
            w.check(current.map(|revision| (revision, w.uid.as_str()))).err()
        });
        differs.unwrap_or_else(|| Error::Unavailable("a compare failed, but what was compared is as expected".into()))
    }
}

/// What a transaction relies on.
struct Compared<'a> {
    fence: Option<&'a Fence>,
    /// Those that aren't written too at the same revision.
    expects: Vec<&'a Expect>,
    writes: &'a [PreparedWrite],
}

impl<'a> Compared<'a> {
    fn of(prepared: &'a Prepared) -> Self {
        let written: HashMap<&Key, Revision> = prepared.writes.iter().map(|w| (&w.key, w.expected)).collect();
        let expects = prepared.expects.iter().filter(|e| written.get(&e.key) != Some(&e.revision)).collect();
        Self { fence: prepared.fence.as_ref(), expects, writes: &prepared.writes }
    }

    fn compares(&self, layout: &Layout, record: &Record) -> Result<Vec<Compare>> {
        let mut compares = vec![Compare::value(layout.cluster(), CompareOp::Equal, record.value.clone())];
        compares.extend(self.fence.into_iter().flat_map(|fence| fence_compares(fence, layout)));
        let revision_is =
            |key: &Key, Revision(r): Revision| Compare::mod_revision(layout.object(key), CompareOp::Equal, r);
        compares.extend(self.expects.iter().map(|e| revision_is(&e.key, e.revision)));
        compares.extend(self.writes.iter().map(|w| match (w.expected, &w.after) {
            // Nothing can't be removed: this never holds, and the verdict says why.
            (Revision::ZERO, None) => Compare::mod_revision(layout.object(&w.key), CompareOp::Less, 0),
            (expected, _) => revision_is(&w.key, expected),
        }));
        match compares.len() {
            n if n > COMPARES_MAX => {
                Err(Error::TooLarge(format!("{n} compares in one transaction, at most {COMPARES_MAX} are allowed")))
            }
            _ => Ok(compares),
        }
    }

    /// Of everything compared: what it is instead. Objects without their values.
    fn reads(&self, layout: &Layout) -> Vec<TxnOp> {
        let mut whole = vec![layout.cluster()];
        match self.fence {
            Some(Fence::Claim { claim, .. }) => whole.push(layout.claim(claim)),
            Some(Fence::Session { session, .. }) => whole.push(layout.session(session)),
            None => {}
        }
        let objects = self.expects.iter().map(|e| &e.key).chain(self.writes.iter().map(|w| &w.key));
        let revision_only = |key: &Key| TxnOp::get(layout.object(key), Some(GetOptions::new().with_keys_only()));
        whole.into_iter().map(|key| TxnOp::get(key, None)).chain(objects.map(revision_only)).collect()
    }
}

/// A claim's fence is the claim alone: until somebody takes it over, a late write of its owner harms nobody.
fn fence_compares(fence: &Fence, layout: &Layout) -> Vec<Compare> {
    match fence {
        Fence::Claim { claim, epoch, session } => {
            vec![Compare::value(layout.claim(claim), CompareOp::Equal, write_claim(session, *epoch))]
        }
        Fence::Session { session, attach } => {
            let attach = i64::try_from(*attach).unwrap_or(i64::MAX);
            // A dead session's key has version 0, and so would an attach number that was never given.
            vec![
                Compare::version(layout.session(session), CompareOp::Equal, attach),
                Compare::version(layout.session(session), CompareOp::Greater, 0),
            ]
        }
    }
}

/// Why a fence doesn't hold; none if it does.
fn broken(fence: &Fence, layout: &Layout, found: &Found) -> Option<String> {
    match fence {
        Fence::Claim { claim, epoch, session } => match found.value(&layout.claim(claim)).map(read_claim) {
            None => Some("nobody ever had the claim".into()),
            Some(Ok((owner, now))) if (&owner, now) == (session, *epoch) => None,
            Some(Ok((owner, now))) => Some(format!("it's {owner:?}'s at epoch {now}, not {session:?}'s")),
            Some(Err(error)) => Some(error.to_string()),
        },
        Fence::Session { session, attach } => match found.version(&layout.session(session)) {
            None => Some("the session has ended".into()),
            Some(version) if u64::try_from(version) != Ok(*attach) => Some(format!("it attached anew, as #{version}")),
            Some(_) => None,
        },
    }
}

/// Objects, history entries, and `head` last: its event closes the revision's.
fn puts(layout: &Layout, prepared: &Prepared) -> Vec<TxnOp> {
    let replaced = prepared.writes.iter().map(|w| w.expected).max().unwrap_or_default();
    let objects = prepared.writes.iter().map(|w| match &w.after {
        Some((bytes, _)) => TxnOp::put(layout.object(&w.key), bytes.as_ref(), None),
        None => TxnOp::delete(layout.object(&w.key), None),
    });
    let entries = prepared.log.iter().enumerate().map(|(index, entry)| {
        TxnOp::put(layout.entry(entry, replaced, rand::random()), history::encode(entry, index), None)
    });
    objects.chain(entries).chain([put_head(layout, prepared.writes.len())]).collect()
}

/// What announces a commit that wrote so many watched keys.
pub fn put_head(layout: &Layout, writes: usize) -> TxnOp {
    TxnOp::put(layout.head(), writes.to_string(), None)
}

pub fn revision_of(answer: &TxnResponse) -> Revision {
    Revision(answer.header().map_or(0, |h| h.revision()))
}

/// What a transaction read, by key.
pub struct Found(HashMap<Vec<u8>, KeyValue>);

impl Found {
    pub fn of(answer: &TxnResponse) -> Self {
        let gets = answer.op_responses().into_iter().filter_map(|op| match op {
            TxnOpResponse::Get(get) => Some(get),
            _ => None,
        });
        Self(gets.flat_map(|mut get| get.take_kvs()).map(|kv| (kv.key().to_vec(), kv)).collect())
    }

    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.0.get(key.as_bytes())
    }

    pub fn value(&self, key: &str) -> Option<&[u8]> {
        self.get(key).map(KeyValue::value)
    }

    pub fn version(&self, key: &str) -> Option<i64> {
        self.get(key).map(KeyValue::version)
    }

    fn conflict(&self, layout: &Layout, key: &Key, expected: Revision) -> Option<Error> {
        let current = self.get(&layout.object(key)).map_or(Revision::ZERO, |kv| Revision(kv.mod_revision()));
        let message = match (expected, current) {
            (expected, current) if expected == current => return None,
            (Revision::ZERO, current) => format!("expected not to exist, but it is at revision {current}"),
            (expected, Revision::ZERO) => format!("expected at revision {expected}, but it doesn't exist"),
            (expected, current) => format!("expected at revision {expected}, but it is at {current}"),
        };
        Some(Error::conflict(key, message))
    }
}
