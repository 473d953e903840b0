//! The layout of the database, and the only module that knows redb's tables.
//!
//! `meta` says what cluster this is and in which format; `head`, `objects` and `claims` are the present state; `history`
//! is in the order of commits, and `history_by_root` finds the entries of one root.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use api::v1;
use bytes::Bytes;
use model::{Key, Revision};
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction,
};

use super::OpenError;
use crate::{
    Cluster, Head, HistoryQuery, Known, LogEntry, LogRecord,
    state::{Record, Staged, State},
};

/// Changes whenever an older build would misread what a newer one wrote.
pub(super) const FORMAT: &str = "1";
pub(super) const FILE: &str = "state.redb";
/// Pages kept in memory. Reads come from our own state, so this only spares the writer some page reads.
const CACHE_BYTES: usize = 8 * 1024 * 1024;

/// "format", "incarnation", "shards".
const META: TableDefinition<&str, &str> = TableDefinition::new("meta");
/// Revision and commits.
const HEAD: TableDefinition<(), (i64, u64)> = TableDefinition::new("head");
/// Key -> revision, encoded resource.
const OBJECTS: TableDefinition<&str, (i64, &[u8])> = TableDefinition::new("objects");
/// Name -> owner, epoch, revision.
const CLAIMS: TableDefinition<&str, (&str, u64, i64)> = TableDefinition::new("claims");
/// Revision, place in its group -> root uid, step id, encoded entry.
const HISTORY: TableDefinition<(i64, u32), (&str, &str, &[u8])> = TableDefinition::new("history");
/// Root uid, revision, place in its group.
const BY_ROOT: TableDefinition<(&str, i64, u32), ()> = TableDefinition::new("history_by_root");
/// Root uid, slot -> revision, place in its group. Made when it's first needed.
const SLOTS: TableDefinition<(&str, &str), (i64, u32)> = TableDefinition::new("history_slots");

pub(crate) enum WriteError {
    /// The database is as it was.
    NotDone(redb::Error),
    /// It may or may not be in the database.
    InDoubt(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for WriteError {
    fn from(error: E) -> Self {
        Self::NotDone(error.into())
    }
}

pub(crate) struct Disk {
    database: Database,
}

pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Makes the database of a new cluster under another name first, so that a crash leaves none rather than half of one.
pub(super) fn create(dir: &Path, proposal: &Cluster) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { dir: dir.into(), source };
    let new = dir.join(format!("{FILE}.new"));
    if new.exists() {
        fs::remove_file(&new).map_err(io)?;
    }
    let database = builder().create(&new).map_err(redb::Error::from).and_then(|d| initialize(&d, proposal).map(|()| d));
    drop(database.map_err(|e| OpenError::Database { dir: dir.into(), source: Box::new(e) })?);
    fs::rename(&new, dir.join(FILE)).map_err(io)?;
    fs::File::open(dir).and_then(|d| d.sync_all()).map_err(io)
}

pub(super) fn initialize(database: &Database, proposal: &Cluster) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("incarnation", proposal.incarnation.as_str())?;
        meta.insert("shards", proposal.shards.to_string().as_str())?;
        transaction.open_table(HEAD)?.insert((), (0, 0))?;
        transaction.open_table(OBJECTS)?;
        transaction.open_table(CLAIMS)?;
        transaction.open_table(HISTORY)?;
        transaction.open_table(BY_ROOT)?;
    }
    Ok(transaction.commit()?)
}

impl Disk {
    /// Another history of revisions begins.
    pub fn replace_incarnation(&self, incarnation: &str) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(META)?.insert("incarnation", incarnation)?;
        Ok(transaction.commit()?)
    }

    /// Reads everything but the history.
    pub fn load(database: Database, dir: &Path) -> Result<(Self, State), OpenError> {
        let disk = Self { database };
        let failed = |e: redb::Error| OpenError::Database { dir: dir.into(), source: Box::new(e) };
        let corrupt = |message: String| OpenError::Corrupt { dir: dir.into(), message };
        let meta = disk.meta().map_err(failed)?;
        let said = |name: &str| meta.get(name).cloned().ok_or_else(|| corrupt(format!("it doesn't say its {name}")));
        match said("format")? {
            format if format == FORMAT => {}
            found => return Err(OpenError::UnknownFormat { dir: dir.into(), found }),
        }
        let shards = said("shards")?.parse().map_err(|e| corrupt(format!("its number of shards: {e}")))?;
        let cluster = Cluster { incarnation: said("incarnation")?, shards };
        let head = disk.head().map_err(failed)?;
        let objects = disk.objects().map_err(failed)?.map_err(corrupt)?;
        let claims = disk.claims().map_err(failed)?;
        Ok((disk, State::restored(cluster, head, objects, claims)))
    }

    /// After a failure: what it holds is known, up to its newest commit.
    pub fn reopen(database: Database) -> Result<(Self, Head), redb::Error> {
        let disk = Self { database };
        let head = disk.head()?;
        Ok((disk, head))
    }

    fn meta(&self) -> Result<BTreeMap<String, String>, redb::Error> {
        let table = match self.database.begin_read()?.open_table(META) {
            Ok(table) => table,
            // Then it says nothing at all.
            Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
            Err(error) => return Err(error.into()),
        };
        let entry = |(name, value): (redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, &str>)| {
            (name.value().to_owned(), value.value().to_owned())
        };
        table.iter()?.map(|row| Ok(entry(row?))).collect()
    }

    fn head(&self) -> Result<Head, redb::Error> {
        let table = self.database.begin_read()?.open_table(HEAD)?;
        let (revision, commits) = table.get(())?.map(|guard| guard.value()).unwrap_or_default();
        Ok(Head { revision: Revision(revision), commits })
    }

    fn objects(&self) -> Result<Result<BTreeMap<Key, Record>, String>, redb::Error> {
        let table = self.database.begin_read()?.open_table(OBJECTS)?;
        let mut objects = BTreeMap::new();
        for row in table.iter()? {
            let (key, value) = row?;
            match record(key.value(), value.value()) {
                Ok((key, record)) => drop(objects.insert(key, record)),
                Err(message) => return Ok(Err(message)),
            }
        }
        Ok(Ok(objects))
    }

    fn claims(&self) -> Result<BTreeMap<String, v1::Claim>, redb::Error> {
        let table = self.database.begin_read()?.open_table(CLAIMS)?;
        let mut claims = BTreeMap::new();
        for row in table.iter()? {
            let (name, value) = row?;
            let (name, (owner, epoch, revision)) = (name.value().to_owned(), value.value());
            claims.insert(
                name.clone(),
                v1::Claim { name, owner: owner.to_owned(), epoch, revision, ..Default::default() },
            );
        }
        Ok(claims)
    }

    /// Returns once it is on the disk.
    pub fn write(&self, staged: &Staged) -> Result<(), WriteError> {
        let transaction = self.begin()?;
        transaction.open_table(HEAD)?.insert((), (staged.head.revision.0, staged.head.commits))?;
        if !staged.objects.is_empty() {
            let mut table = transaction.open_table(OBJECTS)?;
            for (key, record) in &staged.objects {
                match record {
                    Some(record) => drop(table.insert(key.text(), (record.revision.0, &*record.bytes))?),
                    None => drop(table.remove(key.text())?),
                }
            }
        }
        if !staged.claims.is_empty() {
            let mut table = transaction.open_table(CLAIMS)?;
            for (name, claim) in &staged.claims {
                table.insert(name.as_str(), (claim.owner.as_str(), claim.epoch, claim.revision))?;
            }
        }
        if !staged.log.is_empty() {
            write_log(&transaction, &staged.log)?;
        }
        transaction.commit().map_err(|e| WriteError::InDoubt(e.into()))
    }

    fn begin(&self) -> Result<WriteTransaction, WriteError> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction)
    }

    pub fn history(&self, query: &HistoryQuery, up_to: Revision) -> Result<Vec<LogRecord>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let history = transaction.open_table(HISTORY)?;
        let (first, last) = ((query.after.0.saturating_add(1), 0), (up_to.0, u32::MAX));
        let mut places = Vec::new();
        match &query.root_uid {
            None if first <= last => {
                for row in history.range(first..=last)?.rev().take(query.limit) {
                    places.push(row?.0.value());
                }
            }
            Some(root) if first <= last => {
                let by_root = transaction.open_table(BY_ROOT)?;
                let root = root.as_str();
                for row in by_root.range((root, first.0, first.1)..=(root, last.0, last.1))?.rev().take(query.limit) {
                    let (_, revision, place) = row?.0.value();
                    places.push((revision, place));
                }
            }
            _ => {}
        }
        let mut records = Vec::with_capacity(places.len());
        for place in places.into_iter().rev() {
            if let Some(guard) = history.get(place)? {
                let (root_uid, step_id, bytes) = guard.value();
                let bytes = Bytes::copy_from_slice(bytes);
                let entry = LogEntry { root_uid: root_uid.into(), step_id: step_id.into(), bytes, slot: String::new() };
                records.push(LogRecord { revision: Revision(place.0), entry });
            }
        }
        Ok(records)
    }

    /// Forgets at most so many of the oldest entries. It may be forgotten that it did.
    pub fn trim(&self, up_to: Revision, limit: usize) -> Result<usize, redb::Error> {
        let transaction = self.database.begin_write()?;
        let mut oldest = Vec::new();
        {
            let mut history = transaction.open_table(HISTORY)?;
            for row in history.range(..=(up_to.0, u32::MAX))?.take(limit) {
                let (place, entry) = row?;
                oldest.push((place.value(), entry.value().0.to_owned()));
            }
            let mut by_root = transaction.open_table(BY_ROOT)?;
            for ((revision, place), root) in &oldest {
                history.remove((*revision, *place))?;
                by_root.remove((root.as_str(), *revision, *place))?;
            }
            if let Some((last, _)) = oldest.last() {
                transaction.open_table(SLOTS)?.retain(|_, place| place > *last)?;
            }
        }
        match oldest.is_empty() {
            true => transaction.abort()?,
            false => transaction.commit()?,
        }
        Ok(oldest.len())
    }
}

fn record(key: &str, (revision, bytes): (i64, &[u8])) -> Result<(Key, Record), String> {
    let key = Key::parse(key).ok_or_else(|| format!("{key:?} is no key"))?;
    let bytes = Bytes::copy_from_slice(bytes);
    let known = Known::decode(&bytes).map_err(|e| format!("{key}: {e}"))?;
    Ok((key, Record { revision: Revision(revision), bytes, known: Arc::new(known) }))
}

fn write_log(transaction: &WriteTransaction, log: &[(Revision, LogEntry)]) -> Result<(), WriteError> {
    let mut history = transaction.open_table(HISTORY)?;
    let mut by_root = transaction.open_table(BY_ROOT)?;
    for (place, (revision, entry)) in (0_u32..).zip(log) {
        if !entry.slot.is_empty() {
            let slot = (entry.root_uid.as_str(), entry.slot.as_str());
            let before = transaction.open_table(SLOTS)?.insert(slot, (revision.0, place))?.map(|guard| guard.value());
            if let Some(before) = before {
                history.remove(before)?;
                by_root.remove((entry.root_uid.as_str(), before.0, before.1))?;
            }
        }
        history.insert((revision.0, place), (entry.root_uid.as_str(), entry.step_id.as_str(), &*entry.bytes))?;
        by_root.insert((entry.root_uid.as_str(), revision.0, place), ())?;
    }
    Ok(())
}
