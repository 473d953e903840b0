//! The guarantee: everything is looked at again, whether or not anything was heard of it.
//!
//! Each round gives every key a time of its own by hash, so the load is flat, and moves it a little from round to round.
//! Before a round the cache is checked: if no digest came since the last one, what is owned is listed.

use std::{collections::BTreeSet, sync::Arc};

use kinds::{RECONCILERS, Scope};
use model::Key;
use telemetry::spell::Spell;
use tokio::time::Instant;
use tracing::warn;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Shared,
    cache::Changed,
    causes::Came,
    informer,
    queue::{Lane, Work},
};

pub async fn run(shared: Arc<Shared>) {
    let interval = shared.config.sweep;
    let mut spell = Spell::of_every(interval);
    for round in 0_u64.. {
        let start = Instant::now();
        if round > 0 {
            check(&shared, &mut spell).await;
        }
        let (shards, works) = schedule(&shared, round);
        for (phase, work) in works {
            tokio::time::sleep_until(start + interval.mul_f64(phase)).await;
            shared.queue.add(work, Lane::Sweep);
        }
        tokio::time::sleep_until(start + interval).await;
        if let Some(now) = shared.cache.now() {
            shared.holdings.swept(&(&shards - &left_over(&shared, start)), now);
        }
    }
}

/// Digests compared since the last round are proof enough; without any, the watch may be mute or lie.
async fn check(shared: &Shared, spell: &mut Spell) {
    if shared.holdings.take_checked() {
        return;
    }
    let shards = informer::list_of(&shared.watched.borrow());
    if shards.is_empty() {
        return;
    }
    match informer::relist(shared, &shards).await {
        // All that is watched was listed as of then: a barrier may count on it, even if the watch stays mute.
        Ok((incarnation, revision)) => shared.cache.advance_if_only(&incarnation, &shards, revision),
        Err(error) => {
            if let Some(times) = spell.failed(1, Instant::now()) {
                warn!(%error, times, "the sweep could not list; the next one tries again");
            }
        }
    }
}

/// Shards of which something waits since before that: the round before wasn't worked off.
fn left_over(shared: &Shared, before: Instant) -> BTreeSet<u32> {
    let waiting = shared.queue.waiting_since(before);
    let shard = |world: &kinds::World, key: &Key| Some(world.get(key)?.metadata().shard);
    shared.cache.world(|world| waiting.iter().filter_map(|key| shard(world, key)).collect())
}

/// The shards that are swept, and every key that this replica's claims cover, with its share of the interval, in order.
fn schedule(shared: &Shared, round: u64) -> (BTreeSet<u32>, Vec<(f64, Work)>) {
    let shards = shared.holdings.shards();
    let mut plan: Vec<(f64, Work)> = shared.cache.world(|world| {
        let of = |reconciler: usize| world.of_kind(RECONCILERS[reconciler].kind()).map(move |item| (reconciler, item));
        let all = (0..RECONCILERS.len()).flat_map(of);
        all.filter(|(reconciler, item)| match RECONCILERS[*reconciler].scope() {
            Scope::Leader => shared.holdings.is_active(model::LEADER),
            Scope::Shard => shared.holdings.is_active(&model::shard_claim(item.metadata().shard)),
        })
        .map(|(reconciler, item)| (phase(&item.key, round), Work { reconciler, key: item.key.clone() }))
        .collect()
    });
    plan.sort_by(|a, b| a.0.total_cmp(&b.0));
    (shards, plan)
}

/// Half of it fixed by the key, half drawn anew each round: from one look to the next it's between half and one and a
/// half of the interval.
pub fn phase(key: &Key, round: u64) -> f64 {
    let unit = |text: String| (xxh3_64(text.as_bytes()) >> 11) as f64 / (1_u64 << 53) as f64;
    0.5 * unit(key.text().to_owned()) + 0.5 * unit(format!("{}\0{round}", key.text()))
}

impl Shared {
    /// A bookmark's digests were compared.
    pub fn checked(&self) {
        self.holdings.set_checked();
    }

    /// Everything of one claim, resources whose generation is not observed first.
    pub fn enqueue_claim(&self, claim: &str) {
        let mut work: Vec<(bool, Work)> = self.cache.world(|world| {
            let of =
                |reconciler: usize| world.of_kind(RECONCILERS[reconciler].kind()).map(move |item| (reconciler, item));
            (0..RECONCILERS.len())
                .flat_map(of)
                .filter(|(reconciler, item)| match RECONCILERS[*reconciler].scope() {
                    Scope::Leader => claim == model::LEADER,
                    Scope::Shard => claim == model::shard_claim(item.metadata().shard),
                })
                .map(|(reconciler, item)| {
                    let observed = item
                        .status()
                        .is_some_and(|s| model::fields::observed_generation(&s.value) == item.metadata().generation);
                    (observed && !item.deleting(), Work { reconciler, key: item.key.clone() })
                })
                .collect()
        });
        work.sort();
        self.note_causes(&work.iter().map(|(_, work)| work).collect());
        for (_, work) in work {
            self.queue.add(work, Lane::Change);
        }
    }

    /// What led to their present state may have been heard of before they were this replica's.
    fn note_causes(&self, wanted: &BTreeSet<&Work>) {
        let shards: BTreeSet<u32> = self
            .cache
            .world(|world| wanted.iter().filter_map(|work| Some(world.get(&work.key)?.metadata().shard)).collect());
        let (changed, woken): (Vec<Changed>, Vec<Vec<Work>>) = self.cache.world(|world| {
            let items = world.items().filter(|item| shards.contains(&item.metadata().shard));
            let noted = items.map(|item| {
                let change: Changed = (None, Some(item.clone()));
                let woken = informer::woken_by(world, &change);
                (change, woken.into_iter().filter(|work| wanted.contains(work)).collect())
            });
            noted.unzip()
        });
        self.causes.note(&changed, &woken, Came::Listed(self.cache.now()));
    }
}
