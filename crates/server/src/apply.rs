//! Apply: declarations become resources, all or none, in one transaction; what is so already is not written.

use std::{collections::HashMap, sync::Arc};

use api::v1;
use kinds::Kind;
use model::{Domain, Key, Revision};
use store::{Caller, Error, Expect, Note, Result};

use crate::{
    admit::{
        declare::{self, Declared, Manager, Merged},
        entry::Done,
        rights::{self, Author},
    },
    commit::{lineage, put},
    heads::Heads,
    reads::barrier,
    record::Record,
    shared::Shared,
    unfenced::{ATTEMPTS_MAX, Step, author},
    world,
};

pub async fn apply(
    shared: &Shared,
    heads: &Heads,
    caller: &Caller,
    request: v1::ApplyRequest,
) -> Result<v1::ApplyResponse> {
    let manager = Manager::parse(&request.field_manager)?;
    let declared = declare::read(&request)?;
    let mut attempt = 1;
    loop {
        let step = Step::begin(shared);
        barrier(shared, heads, Revision::ZERO).await?;
        check_pins(shared, request.pins.as_ref())?;
        let author = author(shared, caller, Domain::User);
        let mut plan = Plan::of(shared, step, &author, manager, &declared)?;
        if request.dry_run || plan.step.is_empty() {
            return Ok(plan.response(None));
        }
        let step = std::mem::take(&mut plan.step);
        let note = note(caller, &declared, plan.told.take());
        match step.commit(shared, &author, None, note).await {
            Ok(revision) => return Ok(plan.response(Some(revision))),
            Err(Error::Conflict { key, message }) => {
                let pinned = declared.iter().any(|one| one.key == key && one.expected.is_some());
                if pinned || attempt == ATTEMPTS_MAX {
                    return Err(Error::Conflict { key, message });
                }
                attempt += 1;
                shared.counters.retries.add(1);
            }
            Err(error) => return Err(error),
        }
    }
}

/// `told`: what its kind says of the change of the one that is declared.
fn note(caller: &Caller, declared: &[Declared], told: Option<String>) -> Note {
    let message = match declared {
        [one] => format!("{} {}", one.key, told.as_deref().unwrap_or("declared")),
        many => format!("{} resources declared together", many.len()),
    };
    Note {
        verb: "apply".into(),
        why: v1::Why { reason: "Declared".into(), message },
        traceparent: caller.traceparent.clone(),
    }
}

/// What an Apply comes to against the present state.
struct Plan {
    results: Vec<v1::Applied>,
    step: Step,
    reached: Revision,
    /// Of the last one that changes, by its kind.
    told: Option<String>,
}

impl Plan {
    fn of(shared: &Shared, step: Step, author: &Author, manager: Manager, declared: &[Declared]) -> Result<Self> {
        let (bases, reached) = bases(shared, declared);
        let mut plan = Self { results: Vec::new(), step, reached, told: None };
        for one in declared {
            plan.add(shared, author, manager, &bases, (one, declared))?;
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        shared: &Shared,
        author: &Author,
        manager: Manager,
        bases: &HashMap<Key, Arc<Record>>,
        (one, declared): (&Declared, &[Declared]),
    ) -> Result<()> {
        let record = bases.get(&one.key).map(AsRef::as_ref);
        check(one, manager, record)?;
        let (outcome, mut resource, kept) = match record {
            None => (v1::Outcome::Created, self.create(shared, author, bases, one)?, Vec::new()),
            Some(record) => {
                let before = rights::read(&one.key, record)?;
                match declare::merge(author, one, manager, before.clone())? {
                    (Merged::Unchanged(resource), kept) => (v1::Outcome::Unchanged, resource, kept),
                    (Merged::Updated(resource), kept) => {
                        self.told = one.kind.told(&before, &resource);
                        (v1::Outcome::Updated, resource, kept)
                    }
                }
            }
        };
        let missing = missing(shared, declared, one.kind, &resource);
        if outcome != v1::Outcome::Unchanged {
            let replaced = record.map_or(Revision::ZERO, |record| record.revision);
            let metadata = resource.metadata.clone().unwrap_or_default();
            let done = Done {
                key: one.key.clone(),
                uid: metadata.uid,
                root_uid: metadata.root_uid,
                replaced,
                after: Some(resource.clone()),
                traceparent: author.traceparent.clone(),
            };
            self.step.add(put(resource.clone(), replaced), done);
            // What is answered is what is stored, with the context of its commit.
            resource = self.step.done.last().and_then(|done| done.after.clone()).unwrap_or(resource);
        }
        self.results.push(v1::Applied {
            outcome: outcome.into(),
            resource: Some(resource),
            warnings: one.template.warnings.iter().cloned().chain(kept).chain(missing).collect(),
        });
        Ok(())
    }

    fn create(
        &mut self,
        shared: &Shared,
        author: &Author,
        bases: &HashMap<Key, Arc<Record>>,
        one: &Declared,
    ) -> Result<v1::Resource> {
        let uid = shared.stamps().uid();
        let get = |key: &Key| bases.get(key).map(AsRef::as_ref);
        let lineage = lineage(one.kind, &one.key, one.owner.as_ref(), get, &uid, shared.config.shards)?;
        let mut owner = one.owner.clone();
        if let Some(owner) = &mut owner {
            let key = Key::of_owner(owner);
            if let Some(record) = bases.get(&key) {
                owner.uid = record.uid().to_owned();
                self.step.expects.push(Expect { key, revision: record.revision });
            }
        }
        rights::create(author, one.kind, declare::draft(one, owner)?, uid, &lineage)
    }

    /// As it is once committed at that revision, or without a commit.
    fn response(mut self, committed: Option<Revision>) -> v1::ApplyResponse {
        let mut newest = Revision::ZERO;
        for result in &mut self.results {
            let changed = result.outcome() != v1::Outcome::Unchanged;
            let Some(metadata) = result.resource.as_mut().and_then(|r| r.metadata.as_mut()) else { continue };
            if let (true, Some(revision)) = (changed, committed) {
                metadata.revision = revision.0;
            }
            newest = newest.max(Revision(metadata.revision));
        }
        let revision = if self.results.is_empty() { self.reached } else { newest };
        v1::ApplyResponse { results: self.results, revision: committed.unwrap_or(revision).0 }
    }
}

/// Warns of what it uses and nobody declared so far: not wrong, since the order is the user's.
fn missing(shared: &Shared, declared: &[Declared], kind: &dyn Kind, resource: &v1::Resource) -> Vec<String> {
    let uses = kind.uses(resource);
    let cache = shared.cache();
    let known = |key: &Key| declared.iter().any(|one| one.key == *key) || cache.get(key).is_some();
    let unknown = uses.into_iter().filter(|(_, key)| !known(key));
    unknown
        .map(|(field, key)| format!("{field} names {key}, which doesn't exist: nothing starts until it's declared"))
        .collect()
}

/// The records of what is declared, and of the owners, as of one moment.
fn bases(shared: &Shared, declared: &[Declared]) -> (HashMap<Key, Arc<Record>>, Revision) {
    let cache = shared.cache();
    let owners = declared.iter().filter_map(|one| one.owner.as_ref()).map(Key::of_owner);
    let keys = declared.iter().map(|one| one.key.clone()).chain(owners);
    (keys.filter_map(|key| Some((key.clone(), cache.get(&key)?.clone()))).collect(), cache.revision)
}

/// What a plan was made on must still be so.
fn check_pins(shared: &Shared, pins: Option<&v1::Pins>) -> Result<()> {
    let Some(pins) = pins else { return Ok(()) };
    let declared: Vec<Key> = pins.declared.iter().filter_map(|pin| pin.key.as_ref()).map(Key::from).collect();
    match world::moved(pins, &world::pins(&shared.cache(), &declared)) {
        Some((key, message)) => Err(Error::Conflict { key, message }),
        None => Ok(()),
    }
}

/// What a declaration expects of what is there.
fn check(one: &Declared, manager: Manager, record: Option<&Record>) -> Result<()> {
    let conflict = |message: String| Err(Error::conflict(&one.key, message));
    match (one.expected, record.map(|record| record.revision)) {
        (Some(Revision::ZERO), Some(now)) => conflict(format!("expected not to exist, but it is at revision {now}")),
        (Some(expected), Some(now)) if expected != now => {
            conflict(format!("expected at revision {expected}, but it is at {now}"))
        }
        (Some(expected), None) if expected != Revision::ZERO => {
            conflict(format!("expected at revision {expected}, but it doesn't exist"))
        }
        // An edit may still take finalizers off.
        _ if manager != Manager::Edit && record.is_some_and(|record| record.deleting) => {
            Err(Error::BeingDeleted(one.key.clone()))
        }
        _ => Ok(()),
    }
}
