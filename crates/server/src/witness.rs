//! What a server can tell of claims beyond what the store keeps: since when they are somebody's or nobody's, and when
//! their resources were last swept. Pure: states and times go in.
//!
//! It only informs people (`get shards`, a status that nobody vouches for). Nothing is decided by it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::v1;
use model::{LEADER, Time, shard_claim, shard_of_claim};

/// Of one claim.
#[derive(Clone, Debug, Default)]
struct Seen {
    owner: String,
    epoch: u64,
    /// Since this server sees that owner at that epoch.
    since: Time,
    unowned_since: Option<Time>,
    sweep: Option<Sweep>,
}

#[derive(Clone, Debug)]
struct Sweep {
    last: Time,
    interval: Option<prost_types::Duration>,
}

#[derive(Debug, Default)]
pub struct Witness {
    claims: BTreeMap<String, Seen>,
    /// How long claims were nobody's that have an owner again; until they are taken.
    gaps: Vec<Duration>,
}

impl Witness {
    /// The state with what is known of its claims; one that nobody ever took is named too.
    pub fn tell(&mut self, state: &v1::Coordination, now: Time) -> v1::Coordination {
        let mut told = state.clone();
        let known: BTreeSet<String> = told.claims.iter().map(|claim| claim.name.clone()).collect();
        let all = (0..state.shards).map(shard_claim).chain([LEADER.to_owned()]);
        let never_taken = all.filter(|name| !known.contains(name));
        told.claims.extend(never_taken.map(|name| v1::Claim { name, ..Default::default() }));
        let owners: BTreeMap<&str, &v1::Member> = state.members.iter().map(|m| (m.session.as_str(), m)).collect();
        for claim in &mut told.claims {
            let owner = owners.get(claim.owner.as_str()).copied();
            let seen = self.claims.entry(claim.name.clone()).or_default();
            if let Some(since) = seen.unowned_since.filter(|_| owner.is_some()) {
                self.gaps.push(now.since(since));
            }
            seen.tell(claim, owner, now);
        }
        told
    }

    pub fn take_gaps(&mut self) -> impl Iterator<Item = Duration> {
        self.gaps.drain(..)
    }
}

impl Seen {
    fn tell(&mut self, claim: &mut v1::Claim, owner: Option<&v1::Member>, now: Time) {
        if self.since == Time::default() || (&self.owner, self.epoch) != (&claim.owner, claim.epoch) {
            (self.owner, self.epoch, self.since) = (claim.owner.clone(), claim.epoch, now);
        }
        let Some(owner) = owner else {
            claim.unowned_since = Some((*self.unowned_since.get_or_insert(now)).into());
            return self.tell_sweep(claim);
        };
        self.unowned_since = None;
        let report = owner.report.as_ref();
        // Its word is older than this server, and ends with it: one from before the claim changed hands isn't said.
        let said = report.and_then(|report| report.owned_since_millis.get(&claim.name));
        claim.owned_since = Some(said.map_or(self.since, |millis| Time::from_millis(*millis)).into());
        let shard = shard_of_claim(&claim.name);
        let spoken = report.and_then(|report| Some((report, report.shards.iter().find(|s| Some(s.shard) == shard)?)));
        if let Some((report, spoken)) = spoken {
            claim.queue_depth = spoken.queue_depth;
            if spoken.last_sweep_millis > 0 {
                let last = Time::from_millis(spoken.last_sweep_millis);
                self.sweep = Some(Sweep { last, interval: report.sweep_interval });
            }
        }
        self.tell_sweep(claim);
    }

    fn tell_sweep(&self, claim: &mut v1::Claim) {
        if let Some(sweep) = &self.sweep {
            claim.last_sweep = Some(sweep.last.into());
            claim.sweep_interval = sweep.interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, owner: &str, epoch: u64) -> v1::Claim {
        v1::Claim { name: name.into(), owner: owner.into(), epoch, ..Default::default() }
    }

    fn member(session: &str, report: v1::MemberReport) -> v1::Member {
        v1::Member { session: session.into(), report: Some(report), ..Default::default() }
    }

    fn state(members: Vec<v1::Member>, claims: Vec<v1::Claim>) -> v1::Coordination {
        v1::Coordination { members, claims, shards: 1, ..Default::default() }
    }

    fn swept(millis: i64) -> v1::MemberReport {
        v1::MemberReport {
            shards: vec![v1::ShardReport { shard: 0, last_sweep_millis: millis, queue_depth: 7 }],
            sweep_interval: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
            owned_since_millis: [("shard-0".to_owned(), 500)].into(),
            ..Default::default()
        }
    }

    fn at(millis: i64) -> Option<prost_types::Timestamp> {
        Some(Time::from_millis(millis).into())
    }

    fn shard_0(state: &v1::Coordination) -> v1::Claim {
        state.claims.iter().find(|c| c.name == "shard-0").cloned().expect("every claim is named")
    }

    #[test]
    fn claims_that_nobody_ever_took_are_named_and_unowned() {
        let told = Witness::default().tell(&state(Vec::new(), Vec::new()), Time::from_millis(1_000));
        let names: Vec<&str> = told.claims.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["shard-0", "leader"]);
        assert!(told.claims.iter().all(|c| c.unowned_since == at(1_000) && c.owned_since.is_none()));
    }

    #[test]
    fn an_owner_is_believed_about_its_own() {
        let mut witness = Witness::default();
        let told = witness
            .tell(&state(vec![member("a", swept(900))], vec![claim("shard-0", "a", 1)]), Time::from_millis(1_000));
        let told = shard_0(&told);
        assert_eq!((told.owned_since, told.unowned_since), (at(500), None));
        assert_eq!((told.last_sweep, told.queue_depth), (at(900), 7));
    }

    #[test]
    fn the_word_of_a_dead_owner_about_sweeps_outlives_it() {
        let mut witness = Witness::default();
        let claims = vec![claim("shard-0", "a", 1)];
        witness.tell(&state(vec![member("a", swept(900))], claims.clone()), Time::from_millis(1_000));
        for now in [2_000, 3_000] {
            let told = shard_0(&witness.tell(&state(Vec::new(), claims.clone()), Time::from_millis(now)));
            assert_eq!((told.unowned_since, told.last_sweep), (at(2_000), at(900)), "since it was first seen so");
            assert_eq!(told.sweep_interval.map(|i| i.seconds), Some(30));
        }
    }

    #[test]
    fn a_new_owner_that_said_nothing_yet_owns_since_it_was_seen() {
        let mut witness = Witness::default();
        witness.tell(&state(vec![member("a", swept(900))], vec![claim("shard-0", "a", 1)]), Time::from_millis(1_000));
        let members = vec![member("b", v1::MemberReport::default())];
        let told = witness.tell(&state(members, vec![claim("shard-0", "b", 2)]), Time::from_millis(4_000));
        assert_eq!(shard_0(&told).owned_since, at(4_000));
        assert_eq!(shard_0(&told).last_sweep, at(900));
    }

    #[test]
    fn how_long_a_claim_was_nobodys_is_told_once() {
        let mut witness = Witness::default();
        witness.tell(&state(Vec::new(), vec![claim("shard-0", "a", 1)]), Time::from_millis(1_000));
        assert_eq!(witness.take_gaps().count(), 0);
        let members = || vec![member("b", v1::MemberReport::default())];
        for now in [1_250, 1_500] {
            witness.tell(&state(members(), vec![claim("shard-0", "b", 2)]), Time::from_millis(now));
        }
        // The leader's is still nobody's.
        assert_eq!(witness.take_gaps().collect::<Vec<_>>(), [Duration::from_millis(250)]);
    }
}
