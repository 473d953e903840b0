//! A step on its way into the store: each write is merged onto the very record that it expects, by the rights of the
//! domain whose claim or session it's under. The backend's compare, in the same transaction, is the only truth about
//! the fence and the revisions; what is looked at here is looked at so that the right bytes are written.

use std::{collections::HashMap, sync::Arc};

use api::v1;
use kinds::{Kind, kind};
use model::{Domain, Fence, Key, LEADER, Revision, shard_of, shard_of_claim};
use store::{Error, Expect, Result, Transaction, Write};
use telemetry::trace::received;

use crate::{
    admit::{
        entry::{Done, entries},
        rights::{self, Author, Lineage},
    },
    members::Members,
    record::Record,
    shared::Shared,
    trace::Spans,
    unfenced::count,
};

/// Commits a transaction of a controller, an agent, or the server itself.
pub async fn commit(shared: &Shared, members: &Members, transaction: Transaction) -> Result<Revision> {
    let fence = transaction.fence.clone();
    let result = match admitted(shared, members, transaction).await {
        // What a deposed owner decided on is old too, but that isn't why it's refused.
        Err(error @ Error::Conflict { .. }) => Err(fence.and_then(|fence| members.deposed(&fence)).unwrap_or(error)),
        result => result,
    };
    count(shared, &result);
    result
}

async fn admitted(shared: &Shared, members: &Members, mut transaction: Transaction) -> Result<Revision> {
    shared.ready()?;
    let mut spans = Spans::begin(&shared.config.tracer);
    let scope = Scope::of(members, &transaction).await?;
    let newest = transaction.writes.iter().map(Write::expected).chain(transaction.expects.iter().map(|e| e.revision));
    shared.reached(newest.max().unwrap_or_default()).await?;
    if transaction.incarnation.is_empty() {
        // Before anything is looked at.
        transaction.incarnation = shared.cache().incarnation.clone();
    }
    let author = author(shared, &scope, &transaction);
    let bases = Bases::of(shared, &transaction.writes);
    let shards = shared.config.shards;
    let mut done = Vec::new();
    for write in std::mem::take(&mut transaction.writes) {
        let (mut write, mut one) = bases.admit(shared, &author, &scope, shards, write)?;
        spans.stamp(&mut write, &mut one);
        transaction.writes.push(write);
        done.push(one);
    }
    bases.expect_owners(&mut transaction);
    let note = transaction.note.take().unwrap_or_default();
    let folding = shared.folds().look(shared.stamps(), &note, &done);
    let declared = shared.convergence.declare(&shared.cache(), &done);
    transaction.log = entries(&author, transaction.fence.as_ref(), &note, done, &folding);
    spans.admitted();
    let result = shared.commit(transaction).await;
    spans.end(&note.verb, &result);
    shared.convergence.committed(&declared, &result);
    let revision = result?;
    shared.folds().keep(folding);
    Ok(revision)
}

/// On behalf of whom something is written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Shard(u32),
    Leader,
    /// Of the node of that name.
    Agent(String),
    /// Writes by itself, with a user's rights.
    Server,
}

impl Scope {
    async fn of(members: &Members, transaction: &Transaction) -> Result<Self> {
        let role = transaction.actor.as_ref().map_or("", |actor| actor.role());
        match &transaction.fence {
            Some(Fence::Claim { claim, .. }) => {
                if role != "controller" {
                    return Err(Error::Denied(format!("a commit under claim {claim:?} must come from a controller")));
                }
                match (claim.as_str(), shard_of_claim(claim)) {
                    (LEADER, _) => Ok(Self::Leader),
                    (_, Some(shard)) => Ok(Self::Shard(shard)),
                    _ => Err(Error::invalid("fence.claim", format!("{claim:?} is neither a shard's nor the leader's"))),
                }
            }
            Some(Fence::Session { session, .. }) => {
                if role != "agent" {
                    return Err(Error::Denied("a commit under a session must come from an agent".into()));
                }
                let member = members.session(session).await.map_err(|error| Error::Fenced(error.to_string()))?;
                Ok(Self::Agent(member.name))
            }
            None if role == "server" => Ok(Self::Server),
            None => Err(Error::Denied("a commit must carry the claim that it acts under; users Apply".into())),
        }
    }

    fn domain(&self) -> Domain {
        match self {
            Self::Shard(_) => Domain::Shard,
            Self::Leader => Domain::Leader,
            Self::Agent(_) => Domain::Agent,
            Self::Server => Domain::User,
        }
    }

    /// Whether that resource is its own at all.
    fn check(&self, key: &Key, shard: u32, global: bool, node: Option<&str>) -> Result<()> {
        match self {
            Self::Shard(own) if *own != shard && !global => {
                Err(Error::Denied(format!("{key} is in shard {shard}; the claim is shard {own}'s")))
            }
            Self::Agent(own) if node != Some(own) => {
                let node = node.unwrap_or("no node");
                Err(Error::Denied(format!("{key} belongs to {node}; the session is node {own}'s")))
            }
            _ => Ok(()),
        }
    }
}

fn author(shared: &Shared, scope: &Scope, transaction: &Transaction) -> Author {
    let traceparent = transaction.note.as_ref().map(|note| note.traceparent.clone()).unwrap_or_default();
    Author {
        domain: scope.domain(),
        actor: transaction.actor.as_ref().map(ToString::to_string).unwrap_or_default(),
        step_id: transaction.step_id.clone(),
        now: shared.now(),
        traceparent,
    }
}

/// The cached records that writes and their owners refer to, as of one moment.
struct Bases {
    records: HashMap<Key, Arc<Record>>,
    /// Owners of what is to be created.
    owners: Vec<Key>,
}

impl Bases {
    fn of(shared: &Shared, writes: &[Write]) -> Self {
        let cache = shared.cache();
        let mut owners: Vec<Key> = writes.iter().filter_map(owner_of_new).map(Key::of_owner).collect();
        owners.sort();
        owners.dedup();
        let keys = writes.iter().map(Write::key).chain(owners.iter().cloned());
        let records = keys.filter_map(|key| Some((key.clone(), cache.get(&key)?.clone()))).collect();
        Self { records, owners }
    }

    fn get(&self, key: &Key) -> Option<&Record> {
        self.records.get(key).map(AsRef::as_ref)
    }

    /// The write as it goes into the store, and what the history says of it.
    fn admit(
        &self,
        shared: &Shared,
        author: &Author,
        scope: &Scope,
        shards: u32,
        write: Write,
    ) -> Result<(Write, Done)> {
        let (key, replaced) = (write.key(), write.expected());
        let kind = known_kind(&key)?;
        let mut traceparent = author.traceparent.clone();
        let (after, root_uid, uid) = match write {
            Write::Put(next) if replaced == Revision::ZERO => {
                let uid = shared.stamps().uid();
                let lineage = self.lineage(kind, &key, &next, &uid, shards)?;
                let root_uid = lineage.root_uid.clone();
                let node = kind.node(&next);
                scope.check(&key, lineage.shard, kind.info().global, node.as_deref())?;
                (Some(rights::create(author, kind, *next, uid.clone(), &lineage)?), root_uid, uid)
            }
            Write::Put(next) => {
                let record = rights::at(&key, self.get(&key), replaced)?;
                scope.check(&key, record.shard, record.global, record.node())?;
                let current = rights::read(&key, record)?;
                if let Some(own) = own_trace(&next) {
                    traceparent = own;
                }
                let after = rights::update(author, kind, current, *next)?;
                (Some(after), record.root_uid().to_owned(), record.uid().to_owned())
            }
            Write::Remove { uid, .. } => {
                let record = rights::at(&key, self.get(&key), replaced)?;
                scope.check(&key, record.shard, record.global, record.node())?;
                if record.uid() != uid {
                    let found = record.uid();
                    return Err(Error::conflict(&key, format!("expected uid {uid:?}, but it has {found:?}")));
                }
                rights::remove(author, kind, &key, record)?;
                (None, record.root_uid().to_owned(), uid)
            }
        };
        let write = match &after {
            Some(resource) => put(resource.clone(), replaced),
            None => Write::Remove { key: key.clone(), uid: uid.clone(), revision: replaced },
        };
        Ok((write, Done { key, uid, root_uid, replaced, after, traceparent }))
    }

    /// A child shares its owner's shard; what has no owner is a root of its own.
    fn lineage(&self, kind: &dyn Kind, key: &Key, next: &v1::Resource, uid: &str, shards: u32) -> Result<Lineage> {
        let owner = next.metadata.as_ref().and_then(|metadata| metadata.owner.as_ref());
        lineage(kind, key, owner, |owner| self.get(owner), uid, shards)
    }

    /// What is created hangs on its owner as it was read here, unless the step writes the owner itself.
    fn expect_owners(&self, transaction: &mut Transaction) {
        for owner in &self.owners {
            let named = transaction.writes.iter().any(|write| write.key() == *owner)
                || transaction.expects.iter().any(|expect| expect.key == *owner);
            if let (false, Some(record)) = (named, self.get(owner)) {
                transaction.expects.push(Expect { key: owner.clone(), revision: record.revision });
            }
        }
    }
}

/// Where a new resource belongs. Its owner must exist, live in the same namespace, and not be on its way out, unless the
/// resource outlives it.
pub fn lineage<'a>(
    kind: &dyn Kind,
    key: &Key,
    owner: Option<&v1::OwnerReference>,
    get: impl Fn(&Key) -> Option<&'a Record>,
    uid: &str,
    shards: u32,
) -> Result<Lineage> {
    let Some(owner) = owner else {
        let shard = if kind.info().global { 0 } else { shard_of(uid, shards) };
        return Ok(Lineage { shard, root_uid: uid.to_owned() });
    };
    let at = Key::of_owner(owner);
    if !at.namespace().is_empty() && at.namespace() != key.namespace() {
        return Err(Error::invalid("metadata.owner.namespace", format!("{at} is not in the namespace of {key}")));
    }
    let Some(record) = get(&at) else {
        return Err(Error::conflict(key, format!("its owner {at} doesn't exist")));
    };
    if !owner.uid.is_empty() && record.uid() != owner.uid {
        let (expected, found) = (&owner.uid, record.uid());
        return Err(Error::conflict(key, format!("its owner {at} has uid {found:?}, not {expected:?}")));
    }
    if record.deleting && !kind.outlives_owner() {
        return Err(Error::conflict(key, format!("its owner {at} is being deleted")));
    }
    Ok(Lineage { shard: if kind.info().global { 0 } else { record.shard }, root_uid: record.root_uid().to_owned() })
}

pub fn known_kind(key: &Key) -> Result<&'static dyn Kind> {
    kind(key.kind()).ok_or_else(|| Error::invalid("kind", format!("unknown kind {:?}", key.kind())))
}

/// The trace that the writer names for this write alone. What it read, and sent back as it was, is no such word: that says
/// who wrote.
fn own_trace(next: &v1::Resource) -> Option<String> {
    let said = next.metadata.as_ref()?.last_writer.as_ref()?;
    let is_word = said.actor.is_empty() && said.step_id.is_empty();
    Some(received(&said.traceparent)).filter(|own| is_word && !own.is_empty())
}

/// A write that replaces that revision.
pub fn put(mut resource: v1::Resource, replaced: Revision) -> Write {
    resource.metadata.get_or_insert_default().revision = replaced.0;
    Write::Put(Box::new(resource))
}

fn owner_of_new(write: &Write) -> Option<&v1::OwnerReference> {
    match write {
        Write::Put(resource) if write.expected() == Revision::ZERO => resource.metadata.as_ref()?.owner.as_ref(),
        _ => None,
    }
}
