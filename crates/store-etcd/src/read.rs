//! Reads: one object, a page of a list, everything as of one revision. Linearizable where no revision is given.
//!
//! A list's revision is that of `head` as of the read, so that it is one that a commit returned and a watch delivers.

use std::sync::Arc;

use etcd_client::{GetOptions, GetResponse, KeyValue};
use futures::{FutureExt, future::BoxFuture};
use model::{Key, Object, Revision};
use store::{Error, Head, Known, List, PAGE_MAX, Page, Result};

use crate::{
    Failure,
    backend::Inner,
    layout::{Watched, range_end},
    pool::Connection,
};

/// Rows asked of etcd at once; halved where they are so large that the answer isn't taken.
const CHUNK_ROWS: usize = 1000;
/// A full read starts anew when compaction overtakes it.
const RESTARTS_MAX: usize = 5;

/// Everything, as of one revision.
pub struct Everything {
    pub head: Head,
    /// etcd's own; a watch from the next one on misses nothing.
    pub etcd: Revision,
    pub objects: Vec<Object>,
}

impl Inner {
    pub async fn get_range(&self, what: &str, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, Failure> {
        self.pool.read(what, get(key, options)).await
    }

    /// The same of values that may be large and many. etcd reads them all also where it tells only some.
    pub async fn get_much(&self, what: &str, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, Failure> {
        self.pool.read_much(what, get(key, options)).await
    }

    pub async fn get_one(&self, what: &str, key: String) -> Result<Option<KeyValue>, Failure> {
        let mut answer = self.get_range(what, key.into(), GetOptions::new()).await?;
        Ok(answer.take_kvs().into_iter().next())
    }

    /// `head` as of a revision of etcd's; as of now where that is none.
    pub async fn head_at(&self, at: Option<Revision>) -> Result<Head, Failure> {
        let options = GetOptions::new().with_revision(at.map_or(0, |r| r.0));
        let answer = self.get_range("reading head", self.layout.head().into(), options).await?;
        Ok(answer.kvs().first().map_or_else(Head::default, head_of))
    }

    pub async fn object(&self, key: &Key) -> Result<Option<Object>> {
        let found = self.get_one("reading an object", self.layout.object(key)).await?;
        found.map(|kv| self.object_of(kv)).transpose()
    }

    pub fn object_of(&self, kv: KeyValue) -> Result<Object> {
        let revision = Revision(kv.mod_revision());
        match self.layout.read_watched(kv.key()) {
            Some(Watched::Object(key)) => Ok(Object { key, revision, bytes: kv.into_key_value().1.into() }),
            _ => Err(Error::Corrupt(format!("{:?} in etcd is no object's key", String::from_utf8_lossy(kv.key())))),
        }
    }

    pub async fn page(&self, list: List) -> Result<Page> {
        match (self.try_page(&list).await, list.at) {
            // Compaction may be ahead of the last commit; as long as there was none since, now is as of then.
            (Err(Error::Compacted(at)), Some(_)) => {
                let page = self.try_page(&List { at: None, ..list }).await?;
                if page.revision.0 == at { Ok(page) } else { Err(Error::Compacted(at)) }
            }
            (result, _) => result,
        }
    }

    async fn try_page(&self, list: &List) -> Result<Page> {
        let limit = if list.limit == 0 { PAGE_MAX } else { list.limit.min(PAGE_MAX) };
        let mut scan = Scan::new(self, list, limit + 1);
        let mut objects = Vec::new();
        while objects.len() <= limit && !scan.done {
            for object in scan.next().await? {
                if matches(list, &object)? {
                    objects.push(object);
                }
            }
        }
        let revision = match list.at {
            Some(at) => at,
            None => self.head_at(Some(scan.at)).await.map_err(|f| compacted_at(f, scan.at))?.revision,
        };
        if revision < list.min_revision {
            let wanted = list.min_revision;
            return Err(Error::Unavailable(format!("etcd is at revision {revision}, before the {wanted} asked for")));
        }
        let more = objects.len() > limit;
        objects.truncate(limit);
        Ok(Page { objects, more, revision })
    }

    /// All objects; at that revision, or now.
    pub async fn everything(&self, at: Option<Revision>) -> Result<Everything> {
        let mut restarts = 0;
        loop {
            match self.try_everything(at).await {
                Err(Error::Compacted(_)) if at.is_none() && restarts < RESTARTS_MAX => restarts += 1,
                result => return result,
            }
        }
    }

    async fn try_everything(&self, at: Option<Revision>) -> Result<Everything> {
        let list = List { at, ..List::default() };
        let mut scan = Scan::new(self, &list, CHUNK_ROWS);
        let mut objects = Vec::new();
        while !scan.done {
            objects.extend(scan.next().await?);
        }
        let etcd = scan.at;
        let head = self.head_at(Some(etcd)).await.map_err(|f| compacted_at(f, etcd))?;
        Ok(Everything { head, etcd, objects })
    }
}

type Getting = BoxFuture<'static, Result<GetResponse, etcd_client::Error>>;

fn get(key: Vec<u8>, options: GetOptions) -> impl Fn(Arc<Connection>) -> Getting {
    move |connection| {
        let (mut kv, key, options) = (connection.kv.clone(), key.clone(), options.clone());
        async move { kv.get(key, Some(options)).await }.boxed()
    }
}

/// Goes through the objects of a list in key order, all at one revision, in chunks.
struct Scan<'a> {
    inner: &'a Inner,
    /// Zero until the first chunk says.
    at: Revision,
    next: Vec<u8>,
    end: Vec<u8>,
    rows: usize,
    done: bool,
}

impl<'a> Scan<'a> {
    fn new(inner: &'a Inner, list: &List, rows: usize) -> Self {
        let kind = if let [kind] = list.filter.kinds.as_slice() { kind } else { "" };
        let prefix = inner.layout.objects(kind, &list.filter.namespace);
        let end = range_end(&prefix);
        let after = list.after.as_ref().map(|key| [inner.layout.object(key).as_bytes(), b"\0"].concat());
        let next = after.unwrap_or_default().max(prefix.into_bytes());
        let (at, done) = (list.at.unwrap_or_default(), next >= end);
        Self { inner, at, next, end, rows: rows.min(CHUNK_ROWS), done }
    }

    async fn next(&mut self) -> Result<Vec<Object>> {
        let mut answer = self.chunk().await?;
        self.at = match (self.at, answer.header()) {
            (Revision::ZERO, Some(header)) => Revision(header.revision()),
            (at, _) => at,
        };
        self.done = !answer.more();
        let objects: Vec<Object> =
            answer.take_kvs().into_iter().map(|kv| self.inner.object_of(kv)).collect::<Result<_>>()?;
        match objects.last() {
            Some(last) => self.next = [self.inner.layout.object(&last.key).as_bytes(), b"\0"].concat(),
            // Asked again it would say so again; and what it keeps back isn't absent.
            None if !self.done => {
                return Err(Error::Unavailable("etcd tells of more objects, but not of which".into()));
            }
            None => {}
        }
        Ok(objects)
    }

    async fn chunk(&mut self) -> Result<GetResponse> {
        loop {
            let rows = i64::try_from(self.rows).expect("a chunk is small");
            let options = GetOptions::new().with_range(self.end.clone()).with_limit(rows).with_revision(self.at.0);
            match self.inner.get_range("listing objects", self.next.clone(), options).await {
                Err(Failure::AnswerTooLarge) if self.rows > 1 => self.rows /= 2,
                answer => return answer.map_err(|failure| compacted_at(failure, self.at)),
            }
        }
    }
}

fn matches(list: &List, object: &Object) -> Result<bool> {
    if list.filter == Default::default() {
        return Ok(true);
    }
    let known = known_of(object)?;
    Ok(list.filter.matches(&known.facts(&object.key)))
}

pub fn known_of(object: &Object) -> Result<Known> {
    Known::decode(&object.bytes).map_err(|e| Error::Corrupt(format!("{} in etcd can't be decoded: {e}", object.key)))
}

pub fn head_of(kv: &KeyValue) -> Head {
    // The first version was written with the cluster's record, and is no commit.
    Head { revision: Revision(kv.mod_revision()), commits: u64::try_from(kv.version() - 1).unwrap_or_default() }
}

fn compacted_at(failure: Failure, at: Revision) -> Error {
    match failure {
        Failure::Compacted => Error::Compacted(at.0),
        other => other.into(),
    }
}
