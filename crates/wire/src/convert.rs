//! Between the messages of the API and the values of `store`.

use std::time::Duration;

use api::v1;
use model::{Digest, Epoch, Fence, Filter, Key, Revision, Time};
use store::{
    Bookmark, Caller, Change, ClaimChange, Error, Expect, List, Note, PAGE_MAX, Result, ResumeToken, ShardDigest,
    ShardSet, Transaction, WatchItem, WatchOptions, Write,
};

/// Of a session that names none.
pub const SESSION_TTL: Duration = Duration::from_secs(5);

pub fn key(key: Option<&v1::ResourceKey>, field: &str) -> Result<Key> {
    key.map(Key::from).ok_or_else(|| Error::invalid(field, "is missing: kind, namespace and name of a resource"))
}

pub fn filter(filter: Option<&v1::Filter>) -> Result<Filter> {
    match filter {
        None => Ok(Filter::default()),
        Some(filter) => Filter::parse(filter).map_err(|error| Error::invalid("filter.labels", error.to_string())),
    }
}

pub fn shard_set(filter: Option<&v1::Filter>) -> ShardSet {
    filter.filter(|f| f.by_shard).map(|f| f.shards.clone().into())
}

// ---- Watch.

pub fn watch_options(request: &v1::WatchRequest) -> Result<WatchOptions> {
    Ok(WatchOptions {
        filter: filter(request.filter.as_ref())?,
        resume: request
            .resume
            .as_ref()
            .map(|resume| ResumeToken { incarnation: resume.incarnation.clone(), revision: Revision(resume.revision) }),
        min_revision: Revision(request.min_revision),
        shards: None,
    })
}

pub fn watch_request(options: &WatchOptions) -> v1::WatchRequest {
    v1::WatchRequest {
        filter: Some((&options.filter).into()),
        resume: options
            .resume
            .as_ref()
            .map(|resume| v1::ResumeToken { incarnation: resume.incarnation.clone(), revision: resume.revision.0 }),
        min_revision: options.min_revision.0,
    }
}

/// The items that carry no objects. (The others are written by `payload`.)
pub fn response(item: &WatchItem) -> v1::WatchResponse {
    use v1::watch_response::Item;
    let item = match item {
        WatchItem::SnapshotStart { incarnation, revision, time, partial } => Item::SnapshotStart(v1::SnapshotStart {
            incarnation: incarnation.clone(),
            revision: revision.0,
            partial: partial.is_some(),
            shards: partial.clone().unwrap_or_default(),
            time: timestamp(*time),
        }),
        WatchItem::SnapshotEnd { revision } => Item::SnapshotEnd(v1::SnapshotEnd { revision: revision.0 }),
        WatchItem::Bookmark(bookmark) => Item::Bookmark(v1::Bookmark {
            incarnation: bookmark.incarnation.clone(),
            revision: bookmark.revision.0,
            digests: bookmark.digests.iter().map(digest).collect(),
            time: timestamp(bookmark.time),
        }),
        WatchItem::End { reason, message } => {
            Item::End(v1::WatchEnd { reason: reason.clone(), message: message.clone() })
        }
        WatchItem::Snapshot(_) | WatchItem::Changes(_) => unreachable!("payload writes these"),
    };
    v1::WatchResponse { item: Some(item) }
}

pub fn snapshot_start(start: v1::SnapshotStart) -> WatchItem {
    WatchItem::SnapshotStart {
        incarnation: start.incarnation,
        revision: Revision(start.revision),
        time: time(start.time.as_ref()),
        partial: start.partial.then_some(start.shards),
    }
}

pub fn bookmark(bookmark: v1::Bookmark) -> Bookmark {
    Bookmark {
        incarnation: bookmark.incarnation,
        revision: Revision(bookmark.revision),
        digests: bookmark.digests.into_iter().map(shard_digest).collect(),
        time: time(bookmark.time.as_ref()),
    }
}

pub fn deletion(deletion: v1::Deletion) -> Change {
    Change::Deleted {
        key: Key::from(&deletion.key.unwrap_or_default()),
        uid: deletion.uid,
        revision: Revision(deletion.revision),
        left: deletion.left,
    }
}

fn digest(digest: &ShardDigest) -> v1::Digest {
    v1::Digest {
        shard: digest.shard,
        kind: digest.kind.clone(),
        sum: digest.digest.sum.to_le_bytes().to_vec(),
        count: digest.digest.count,
    }
}

fn shard_digest(digest: v1::Digest) -> ShardDigest {
    // A sum of another length compares unequal, which costs one list.
    let sum = <[u8; 16]>::try_from(digest.sum.as_slice()).map_or(0, u128::from_le_bytes);
    ShardDigest { shard: digest.shard, kind: digest.kind, digest: Digest { sum, count: digest.count } }
}

fn timestamp(time: Time) -> Option<prost_types::Timestamp> {
    (time != Time::default()).then(|| time.into())
}

fn time(timestamp: Option<&prost_types::Timestamp>) -> Time {
    timestamp.map(Time::from).unwrap_or_default()
}

// ---- List. A page token is "<revision>/<key of the last row>", either of which may be empty; clients must take it as
// opaque.

pub fn list(request: &v1::ListRequest) -> Result<List> {
    let limit = usize::try_from(request.page_size)
        .map_err(|_| Error::invalid("page_size", "is negative; leave it out for the default of 1000"))?;
    let token = match request.page_token.as_str() {
        "" => None,
        token => Some(parse_token(token).ok_or_else(|| {
            Error::invalid("page_token", "is none that this service made; leave it out to list from the start")
        })?),
    };
    let (at, after) = token.unwrap_or_default();
    Ok(List {
        filter: filter(request.filter.as_ref())?,
        after,
        limit: limit.min(PAGE_MAX),
        at,
        min_revision: Revision(request.min_revision),
    })
}

pub fn list_request(list: &List) -> v1::ListRequest {
    v1::ListRequest {
        filter: Some((&list.filter).into()),
        page_size: i32::try_from(list.limit.min(PAGE_MAX)).expect("at most a page"),
        page_token: page_token(list.at, list.after.as_ref()),
        min_revision: list.min_revision.0,
    }
}

/// Empty where there is nothing to say.
pub fn page_token(at: Option<Revision>, after: Option<&Key>) -> String {
    match (at, after) {
        (None, None) => String::new(),
        (at, after) => {
            format!("{}/{}", at.map(|at| at.to_string()).unwrap_or_default(), after.map(Key::text).unwrap_or_default())
        }
    }
}

fn parse_token(token: &str) -> Option<(Option<Revision>, Option<Key>)> {
    let (at, after) = token.split_once('/')?;
    let at = (!at.is_empty()).then(|| at.parse().map(Revision)).transpose().ok()?;
    let after = match after {
        "" => None,
        text => Some(Key::parse(text)?),
    };
    Some((at, after))
}

// ---- Commit.

pub fn transaction(caller: Caller, request: v1::CommitRequest) -> Result<Transaction> {
    let expect = |(index, e): (usize, v1::Expectation)| {
        let key = key(e.key.as_ref(), &format!("expectations[{index}].key"))?;
        Ok(Expect { key, revision: Revision(e.revision) })
    };
    Ok(Transaction {
        incarnation: request.incarnation,
        fence: request.fence.as_ref().map(Fence::from),
        actor: Some(caller.actor),
        step_id: request.step_id,
        expects: request.expectations.into_iter().enumerate().map(expect).collect::<Result<_>>()?,
        writes: request.writes.into_iter().enumerate().map(write).collect::<Result<_>>()?,
        note: Some(Note { verb: request.verb, why: request.why.unwrap_or_default(), traceparent: caller.traceparent }),
        log: Vec::new(),
    })
}

fn write((index, write): (usize, v1::Write)) -> Result<Write> {
    match write.write {
        Some(v1::write::Write::Put(resource)) if resource.metadata.is_none() => {
            Err(Error::invalid(format!("writes[{index}].put.metadata"), "is missing"))
        }
        Some(v1::write::Write::Put(resource)) => Ok(Write::Put(Box::new(resource))),
        Some(v1::write::Write::Remove(removal)) => Ok(Write::Remove {
            key: key(removal.key.as_ref(), &format!("writes[{index}].remove.key"))?,
            uid: removal.uid,
            revision: Revision(removal.revision),
        }),
        None => Err(Error::invalid(format!("writes[{index}]"), "says neither put nor remove")),
    }
}

pub fn commit_request(transaction: Transaction) -> v1::CommitRequest {
    let fence = transaction.fence.map(|fence| match fence {
        Fence::Claim { claim, epoch, session } => v1::Fence { claim, epoch: epoch.0, session, attach: 0 },
        Fence::Session { session, attach } => v1::Fence { session, attach, ..Default::default() },
    });
    let note = transaction.note.unwrap_or_default();
    let expectation = |e: Expect| v1::Expectation { key: Some((&e.key).into()), revision: e.revision.0 };
    let write = |w: Write| v1::Write {
        write: Some(match w {
            Write::Put(resource) => v1::write::Write::Put(*resource),
            Write::Remove { key, uid, revision } => {
                v1::write::Write::Remove(v1::Removal { key: Some((&key).into()), uid, revision: revision.0 })
            }
        }),
    };
    v1::CommitRequest {
        fence,
        step_id: transaction.step_id,
        verb: note.verb,
        why: Some(note.why),
        expectations: transaction.expects.into_iter().map(expectation).collect(),
        writes: transaction.writes.into_iter().map(write).collect(),
        incarnation: transaction.incarnation,
    }
}

// ---- Claims and sessions.

pub fn claim_change(request: v1::ChangeClaimRequest) -> ClaimChange {
    ClaimChange {
        name: request.name,
        expected_owner: request.expected_owner,
        expected_epoch: Epoch(request.expected_epoch),
        owner: request.owner,
        owner_must_be_dead: request.owner_must_be_dead,
    }
}

pub fn change_claim_request(change: ClaimChange) -> v1::ChangeClaimRequest {
    v1::ChangeClaimRequest {
        name: change.name,
        expected_epoch: change.expected_epoch.0,
        expected_owner: change.expected_owner,
        owner: change.owner,
        owner_must_be_dead: change.owner_must_be_dead,
    }
}

/// The default where absent; refused where negative or zero.
pub fn ttl(duration: Option<prost_types::Duration>) -> Result<Duration> {
    match duration.map(Duration::try_from) {
        None => Ok(SESSION_TTL),
        Some(Ok(ttl)) if !ttl.is_zero() => Ok(ttl),
        Some(_) => Err(Error::invalid("open.ttl", "is not a positive duration")),
    }
}

pub fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}
