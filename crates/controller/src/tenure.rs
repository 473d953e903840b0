//! Since when this replica owns what, and when it last swept it: what it tells people through its report. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::v1;
use model::{Epoch, Time, shard_of_claim};

use crate::claims::{Hold, Phase};

#[derive(Debug, Default)]
pub struct Tenures {
    claims: BTreeMap<String, Tenure>,
}

#[derive(Debug)]
struct Tenure {
    epoch: Epoch,
    since: Time,
    swept: Option<Time>,
}

impl Tenures {
    /// Becomes what is held now. A claim that has just become active counts as swept: all of it is put up to be looked at.
    pub fn update<'a>(&mut self, holds: impl Iterator<Item = (&'a String, &'a Hold)>, now: Time) {
        let mut before = std::mem::take(&mut self.claims);
        for (claim, hold) in holds {
            let known = before.remove(claim).filter(|tenure| tenure.epoch == hold.epoch);
            let mut tenure = known.unwrap_or(Tenure { epoch: hold.epoch, since: now, swept: None });
            if hold.phase == Phase::Active {
                tenure.swept.get_or_insert(now);
            }
            self.claims.insert(claim.clone(), tenure);
        }
    }

    /// These shards were swept until now.
    pub fn swept(&mut self, shards: &BTreeSet<u32>, now: Time) {
        let of = |claim: &str| shard_of_claim(claim).is_some_and(|shard| shards.contains(&shard));
        for (_, tenure) in self.claims.iter_mut().filter(|(claim, _)| of(claim)) {
            tenure.swept = Some(now);
        }
    }

    /// When the shard was swept that waits longest.
    pub fn oldest_sweep(&self) -> Option<Time> {
        let shards = self.claims.iter().filter(|(claim, _)| shard_of_claim(claim).is_some());
        shards.filter_map(|(_, tenure)| tenure.swept).min()
    }

    pub fn owned_since_millis(&self) -> BTreeMap<String, i64> {
        self.claims.iter().map(|(claim, tenure)| (claim.clone(), tenure.since.millis())).collect()
    }

    /// Without depths, which move all the time.
    pub fn shards(&self) -> Vec<v1::ShardReport> {
        let report = |(claim, tenure): (&String, &Tenure)| {
            let last_sweep_millis = tenure.swept.map_or(0, Time::millis);
            Some(v1::ShardReport { shard: shard_of_claim(claim)?, last_sweep_millis, queue_depth: 0 })
        };
        self.claims.iter().filter_map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::Revision;

    use super::*;

    fn hold(epoch: u64, phase: Phase) -> Hold {
        Hold { epoch: Epoch(epoch), revision: Revision(1), phase }
    }

    fn update(tenures: &mut Tenures, epoch: u64, phase: Phase, millis: i64) -> (i64, i64) {
        let (claim, hold) = ("shard-3".to_owned(), hold(epoch, phase));
        tenures.update([(&claim, &hold)].into_iter(), Time::from_millis(millis));
        (tenures.owned_since_millis()["shard-3"], tenures.shards()[0].last_sweep_millis)
    }

    #[test]
    fn a_tenure_lasts_as_long_as_its_epoch() {
        let mut tenures = Tenures::default();
        assert_eq!(update(&mut tenures, 1, Phase::Barrier, 10), (10, 0), "owned, and nothing was looked at yet");
        assert_eq!(update(&mut tenures, 1, Phase::Active, 20), (10, 20));
        assert_eq!(update(&mut tenures, 1, Phase::Active, 30), (10, 20));
        tenures.swept(&BTreeSet::from([3]), Time::from_millis(40));
        tenures.swept(&BTreeSet::from([4]), Time::from_millis(50));
        assert_eq!(update(&mut tenures, 1, Phase::Active, 60), (10, 40));
        assert_eq!(tenures.oldest_sweep(), Some(Time::from_millis(40)));
        assert_eq!(update(&mut tenures, 2, Phase::Active, 70), (70, 70), "lost and won again");
        tenures.update([].into_iter(), Time::from_millis(80));
        assert!(tenures.shards().is_empty());
    }
}
