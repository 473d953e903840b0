//! The trait and the values it speaks in.

use std::{sync::Arc, time::Duration};

use api::v1;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use model::{Actor, Digest, Epoch, Fence, Filter, Key, Object, Revision, Time};

use crate::Result;

/// Puts in one transaction: objects, history entries, blobs and `head`. etcd 3.4 refuses more than 128 operations.
pub const PUTS_MAX: usize = 120;
/// Encoded bytes in one transaction: etcd refuses requests over 1.5 MiB.
pub const TRANSACTION_BYTES_MAX: usize = 1024 * 1024;
/// Rows in a page of a list.
pub const PAGE_MAX: usize = 1000;
/// Entries in one answer about the history.
pub const HISTORY_MAX: usize = 10_000;

/// What a cluster is from its first server's start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Random; another value means another history of revisions.
    pub incarnation: String,
    /// Number of shards, fixed for life.
    pub shards: u32,
}

impl Cluster {
    pub const SHARDS_DEFAULT: u32 = 128;

    /// A new cluster with the default number of shards.
    pub fn random() -> Self {
        let incarnation = format!("{:032x}", rand::random::<u128>());
        Self { incarnation, shards: Self::SHARDS_DEFAULT }
    }
}

/// The newest commit: what a linearizable read must have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub revision: Revision,
    /// Counts commits without a gap.
    pub commits: u64,
}

/// All or nothing, in one store transaction.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Of the store that the writer read. Empty: whichever it is (only a server, which checked, may leave it so).
    pub incarnation: String,
    pub fence: Option<Fence>,
    /// Who writes; "" only in tests.
    pub actor: Option<Actor>,
    /// Names the step, the same in a retry.
    pub step_id: String,
    /// What the decision was based on beside what it writes.
    pub expects: Vec<Expect>,
    pub writes: Vec<Write>,
    /// Said of the step in the history; the server makes the entries from it.
    pub note: Option<Note>,
    /// Ready entries, made by the server. Backends store these and ignore `note`.
    pub log: Vec<LogEntry>,
}

/// The step in words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Note {
    pub verb: String,
    pub why: v1::Why,
    pub traceparent: String,
}

/// That key is at that revision; `Revision::ZERO`: it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    pub key: Key,
    pub revision: Revision,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// The whole resource. Its metadata's revision is what it replaces (0: it must not exist).
    Put(Box<v1::Resource>),
    /// Deletes the record, which must be at that revision.
    Remove { key: Key, uid: String, revision: Revision },
}

impl Write {
    pub fn key(&self) -> Key {
        match self {
            Self::Put(resource) => Key::of(resource.metadata.as_ref().unwrap_or(&v1::Metadata::default())),
            Self::Remove { key, .. } => key.clone(),
        }
    }

    /// The revision it replaces.
    pub fn expected(&self) -> Revision {
        match self {
            Self::Put(resource) => Revision(resource.metadata.as_ref().map_or(0, |m| m.revision)),
            Self::Remove { revision, .. } => *revision,
        }
    }
}

/// One history entry, under a prefix that watches don't see. Entries of one root are read in the store's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub root_uid: String,
    pub step_id: String,
    /// An encoded `v1::HistoryEntry` without its revision.
    pub bytes: Bytes,
    /// Where not empty: it takes the place of the entry that the root has in this slot, in the same transaction. Not
    /// read back.
    pub slot: String,
}

/// An entry as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    pub revision: Revision,
    pub entry: LogEntry,
}

#[derive(Clone, Debug, Default)]
pub struct HistoryQuery {
    /// None: every root.
    pub root_uid: Option<String>,
    /// Entries of commits after this one.
    pub after: Revision,
    /// Entries of commits up to this one; None: of all.
    pub up_to: Option<Revision>,
    /// The newest so many. 0, or more than that: `HISTORY_MAX`.
    pub limit: usize,
}

#[derive(Clone, Debug, Default)]
pub struct List {
    pub filter: Filter,
    /// Rows after this key.
    pub after: Option<Key>,
    /// 0: `PAGE_MAX`.
    pub limit: usize,
    /// As of that revision, which may be no longer kept; None: as of now, linearizable.
    pub at: Option<Revision>,
    /// At least this revision must have been seen.
    pub min_revision: Revision,
}

#[derive(Clone, Debug)]
pub struct Page {
    pub objects: Vec<Object>,
    /// There are more.
    pub more: bool,
    /// What all pages show.
    pub revision: Revision,
}

/// Which shards a watch should cover from now on; None: all.
pub type ShardSet = Option<Arc<Vec<u32>>>;

#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    pub filter: Filter,
    /// Go on from here; a snapshot where absent, too old, or of another incarnation.
    pub resume: Option<ResumeToken>,
    /// A bookmark follows as soon as it is reached.
    pub min_revision: Revision,
    /// Changes the filter's shards while the watch is open. Servers and remote stores; backends ignore it.
    pub shards: Option<tokio::sync::watch::Receiver<ShardSet>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    pub incarnation: String,
    pub revision: Revision,
}

pub type WatchStream = BoxStream<'static, Result<WatchItem>>;

/// What a watch says, in this order: a snapshot or nothing (where it resumed), then groups and bookmarks. It ends with
/// `End`, or with an error; then open another from the last revision seen.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchItem {
    /// What follows until `SnapshotEnd` is everything. With `partial`, everything of these shards.
    SnapshotStart {
        incarnation: String,
        revision: Revision,
        /// The server's clock; 0 from a backend.
        time: Time,
        partial: Option<Vec<u32>>,
    },
    Snapshot(Vec<Object>),
    SnapshotEnd {
        revision: Revision,
    },
    Changes(Group),
    Bookmark(Bookmark),
    End {
        reason: String,
        message: String,
    },
}

/// The changes of one transaction; or of several, then the state at `to`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Nothing between this and `to` is missing.
    pub from: Revision,
    pub to: Revision,
    pub coalesced: bool,
    pub changes: Vec<Change>,
    /// Backends only: what `head` said, so that a watch that lies is found out.
    pub head: Option<HeadNote>,
}

/// What a transaction wrote into `head`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadNote {
    pub commits: u64,
    /// How many watched keys the transaction wrote or removed.
    pub writes: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Put(Object),
    Deleted {
        key: Key,
        uid: String,
        revision: Revision,
        /// It still exists, but left the watch's filter.
        left: bool,
    },
}

impl Change {
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(object) => &object.key,
            Self::Deleted { key, .. } => key,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bookmark {
    pub incarnation: String,
    pub revision: Revision,
    pub digests: Vec<ShardDigest>,
    /// The server's clock; 0 from a backend.
    pub time: Time,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ShardDigest {
    pub shard: u32,
    pub kind: String,
    pub digest: Digest,
}

/// Opening a session, or attaching it to another server.
#[derive(Clone, Debug)]
pub struct SessionOpen {
    /// 128 random bits in hex: one incarnation of a process.
    pub session: String,
    pub role: String,
    pub name: String,
    /// The server that its stream is attached to, and where other servers reach that one.
    pub server: String,
    pub server_address: String,
    pub ttl: Duration,
    /// Of an agent's machine. Stores don't look at it; servers do, before they open the session.
    pub machine_id: String,
}

/// Takes a claim over, or hands it over: {claim as expected, `owner` exists, the old owner doesn't if
/// `owner_must_be_dead`} -> {owner, epoch + 1}.
#[derive(Clone, Debug)]
pub struct ClaimChange {
    pub name: String,
    pub expected_owner: String,
    pub expected_epoch: Epoch,
    pub owner: String,
    pub owner_must_be_dead: bool,
}

/// Members and claims, whole. A newer state replaces an older one; states in between may be skipped.
pub type CoordinationStream = BoxStream<'static, Result<Arc<v1::Coordination>>>;

/// Something that keeps resources. See `conformance` for what is promised, as tests.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What cluster this is; the first caller's proposal makes it.
    async fn cluster(&self) -> Result<Cluster>;

    /// Linearizable.
    async fn get(&self, key: &Key) -> Result<Option<Object>>;

    /// One page, in key order. Linearizable where `at` is none.
    async fn list(&self, list: List) -> Result<Page>;

    /// Ordered by revision, each (object, revision) at most once, all changes of a transaction together, complete or
    /// ended with an error.
    async fn watch(&self, options: WatchOptions) -> Result<WatchStream>;

    /// The only way to write resources.
    async fn commit(&self, transaction: Transaction) -> Result<Revision>;

    /// Linearizable: every commit acknowledged before the call is at or below it.
    async fn head(&self) -> Result<Head>;

    /// Members and claims now, and whenever they change.
    async fn coordination(&self) -> Result<CoordinationStream>;

    /// Opens the session (an id that ended can't be opened again), or attaches it anew. Returns the attach number,
    /// from 1.
    async fn open_session(&self, open: SessionOpen) -> Result<u64>;

    /// Renews for another TTL and, where given, replaces what the member says of itself. `SessionEnded` where it's dead.
    async fn beat(&self, session: &str, report: Option<v1::MemberReport>) -> Result<()>;

    /// Ends it. With an attach number, only if that is still its newest (else it's left alone: false).
    async fn end_session(&self, session: &str, attach: Option<u64>) -> Result<bool>;

    async fn change_claim(&self, change: ClaimChange) -> Result<v1::Claim>;

    /// Oldest first, at most `limit` of the newest.
    async fn history(&self, query: HistoryQuery) -> Result<Vec<LogRecord>>;

    /// Forgets entries of commits up to that one. Returns how many.
    async fn trim_history(&self, up_to: Revision) -> Result<usize>;

    /// Returns once a part of it is gone without which it can't do its work, and says which. Whoever runs it should end.
    async fn broken(&self) -> String {
        std::future::pending().await
    }
}
