//! What a bookmark says of the cache as a whole.

use kinds::KINDS;
use model::Filter;
use store::ShardDigest;

use crate::cache::Cache;

/// Of every (shard, kind) that the filter covers, those without a resource too; none where it covers only a part of
/// them. Global kinds are all in shard 0.
pub fn digests(cache: &Cache, filter: &Filter, shards: u32) -> Vec<ShardDigest> {
    let whole = Filter { kinds: filter.kinds.clone(), shards: filter.shards.clone(), ..Filter::default() };
    if whole != *filter {
        return Vec::new();
    }
    let covered = filter.shards.clone().unwrap_or_else(|| (0..shards).collect());
    let kinds = KINDS.iter().map(|kind| kind.info());
    kinds
        .filter(|info| filter.kinds.is_empty() || filter.kinds.iter().any(|kind| kind == info.kind))
        .flat_map(|info| {
            let shards = if info.global { vec![0] } else { covered.clone() };
            shards.into_iter().map(|shard| ShardDigest {
                shard,
                kind: info.kind.to_owned(),
                digest: cache.digest(shard, info.kind),
            })
        })
        .collect()
}
