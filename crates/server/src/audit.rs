//! A slow, rolling comparison of the cache with the store, page by page: the last net below everything that a watch may
//! get wrong without a gap.

use std::{collections::HashSet, sync::Arc, time::Duration};

use model::{Key, Object};
use store::{List, Page, Result};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use crate::{cache::Cache, shared::Shared};

/// Resources compared at once.
const PAGE: usize = 500;
/// Keys of a difference that are named in the log.
const NAMED_MAX: usize = 5;

/// Never ends by itself.
pub async fn run(shared: Arc<Shared>, every: Duration) {
    let mut timer = interval(every);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut after = None;
    loop {
        timer.tick().await;
        if shared.ready().is_err() {
            continue;
        }
        match page(&shared, after.take()).await {
            Ok(next) => after = next,
            Err(error) => debug!(%error, "the audit starts over"),
        }
    }
}

/// Returns where the next page starts.
async fn page(shared: &Shared, after: Option<Key>) -> Result<Option<Key>> {
    let list = List { after: after.clone(), limit: PAGE, ..List::default() };
    let page = shared.backend.list(list).await?;
    shared.reached(page.revision).await?;
    let differing = differing(&shared.cache(), after.as_ref(), &page);
    shared.counters.audited_pages.add(1);
    if !differing.is_empty() {
        shared.counters.audit_differences.add(differing.len());
        let named = &differing[..differing.len().min(NAMED_MAX)];
        warn!(server = %shared.config.name, count = differing.len(), ?named, "the cache differs from the store; listing anew");
        shared.relist.notify_one();
    }
    Ok(page.objects.last().filter(|_| page.more).map(|object| object.key.clone()))
}

/// The keys at which a cache that has reached the page's revision contradicts it.
pub fn differing(cache: &Cache, after: Option<&Key>, page: &Page) -> Vec<Key> {
    let to = page.objects.last().filter(|_| page.more).map(|object| &object.key);
    let listed: HashSet<&Key> = page.objects.iter().map(|object| &object.key).collect();
    let wrong = page.objects.iter().filter(|object| contradicts(cache, object, page)).map(|object| object.key.clone());
    let surplus =
        cache.between(after, to).filter(|(key, revision)| *revision <= page.revision && !listed.contains(key));
    wrong.chain(surplus.map(|(key, _)| key.clone())).collect()
}

fn contradicts(cache: &Cache, object: &Object, page: &Page) -> bool {
    match cache.get(&object.key) {
        Some(record) if record.revision > page.revision => false,
        Some(record) => record.revision != object.revision || record.bytes != object.bytes,
        None => !cache.ring.may_have_removed(&object.key, page.revision),
    }
}
