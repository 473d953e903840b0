//! Linearizable reads from the cache: wait until it has reached the store's head as it was after the call began.

use model::{Filter, Key, Object, Revision};
use store::{Error, List, PAGE_MAX, Page, Result};
use tokio::time::Instant;

use crate::{
    cache::Cache,
    heads::Heads,
    shared::{Readiness, Shared},
};

/// Once it returns, the cache shows every commit that was acknowledged before the call.
pub async fn barrier(shared: &Shared, heads: &Heads, min_revision: Revision) -> Result<()> {
    shared.ready()?;
    shared.counters.reads.add(1);
    let head = heads.read().await?.revision;
    beyond(min_revision, head)?;
    shared.reached(head.max(min_revision)).await
}

/// Refuses a revision above the head.
pub fn beyond(asked: Revision, head: Revision) -> Result<()> {
    if asked <= head {
        return Ok(());
    }
    let reason = Readiness::RolledBack.reason();
    Err(Error::Unavailable(format!("{reason}: revision {asked} is above the store's head, which is {head}")))
}

pub async fn get(shared: &Shared, heads: &Heads, key: &Key) -> Result<Option<Object>> {
    barrier(shared, heads, Revision::ZERO).await?;
    Ok(shared.cache().get(key).map(|record| record.object(key)))
}

pub async fn list(shared: &Shared, heads: &Heads, list: List) -> Result<Page> {
    let Some(at) = list.at else {
        barrier(shared, heads, list.min_revision).await?;
        return Ok(first_page(shared, &list));
    };
    shared.ready()?;
    shared.reached(at).await?;
    if let Some(page) = shared.with_pins(|cache, now| page_at(cache, &list, at, now)) {
        return Ok(page);
    }
    // The backend may keep it still, but doesn't know nodes and global kinds.
    let Filter { node, shards, .. } = &list.filter;
    if !node.is_empty() || shards.is_some() {
        return Err(Error::Compacted(at.0));
    }
    shared.backend.list(list.clone()).await
}

fn first_page(shared: &Shared, list: &List) -> Page {
    let of = |cache: &Cache| page(cache.matching(&list.filter, list.after.as_ref()), list.limit, cache.revision);
    let only = of(&shared.cache());
    if !only.more {
        return only;
    }
    // Read again, in the same moment in which its revision is pinned for the pages to come.
    shared.with_pins(|cache, now| {
        cache.pin(now);
        of(cache)
    })
}

fn page_at(cache: &mut Cache, list: &List, at: Revision, now: Instant) -> Option<Page> {
    if cache.revision == at {
        cache.pin(now);
    }
    cache.pins.touch(at, now);
    Some(page(cache.matching_at(at, &list.filter, list.after.as_ref())?, list.limit, at))
}

fn page(objects: impl Iterator<Item = Object>, limit: usize, revision: Revision) -> Page {
    let limit = match limit {
        0 => PAGE_MAX,
        limit => limit.min(PAGE_MAX),
    };
    let mut objects: Vec<Object> = objects.take(limit + 1).collect();
    let more = objects.len() > limit;
    objects.truncate(limit);
    Page { objects, more, revision }
}
