//! Who should own which claim: pure, a function of what everybody sees.
//!
//! Scores are rendezvous hashes (Thaler and Ravishankar, 1998), so that every replica ranks the members alike. What is
//! owned stays where it is as long as the loads are in bounds; so a join moves only what the newcomer gets, and a leave
//! only what the leaver had.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

/// The owner, by session, that each claim should have.
pub type Assignment = BTreeMap<String, String>;

/// Most shards for one member: a tenth above the fair share, rounded up.
pub fn cap(shards: usize, members: usize) -> usize {
    (shards * 11).div_ceil(10 * members.max(1))
}

/// Fewest: a tenth below it, rounded down.
pub fn floor(shards: usize, members: usize) -> usize {
    shards * 9 / (10 * members.max(1))
}

/// Spreads `claims` (name -> current owner, "" for none) over `members` (sessions that are ready and stay).
pub fn assign<'a>(claims: impl Iterator<Item = (&'a str, &'a str)>, members: &[&'a str]) -> Assignment {
    if members.is_empty() {
        return Assignment::new();
    }
    let mut spread = Spread::new(claims, members);
    spread.settle_unowned();
    // In this order: what is above the cap goes to whoever has too little. Whoever merely has room would get some of it
    // once he was seen to have given away his own part of a newcomer's share.
    spread.feed();
    spread.relieve();
    spread.owners.into_iter().map(|(claim, owner)| (claim.to_owned(), owner.to_owned())).collect()
}

/// For one claim alone: it stays, or goes to the best.
pub fn assign_one(claim: &str, owner: &str, members: &[&str]) -> Option<String> {
    if members.contains(&owner) {
        return Some(owner.to_owned());
    }
    members.iter().max_by_key(|m| score(claim, m)).map(|m| (*m).to_owned())
}

fn score(claim: &str, member: &str) -> u64 {
    xxh3_64(format!("{claim}\0{member}").as_bytes())
}

struct Spread<'a> {
    owners: BTreeMap<&'a str, &'a str>,
    unowned: Vec<&'a str>,
    loads: BTreeMap<&'a str, usize>,
    cap: usize,
    floor: usize,
}

impl<'a> Spread<'a> {
    fn new(claims: impl Iterator<Item = (&'a str, &'a str)>, members: &[&'a str]) -> Self {
        let mut spread = Self {
            owners: BTreeMap::new(),
            unowned: Vec::new(),
            loads: members.iter().map(|m| (*m, 0)).collect(),
            cap: 0,
            floor: 0,
        };
        for (claim, owner) in claims {
            match spread.loads.get_mut(owner) {
                Some(load) => {
                    *load += 1;
                    spread.owners.insert(claim, owner);
                }
                None => spread.unowned.push(claim),
            }
        }
        spread.unowned.sort_unstable();
        let total = spread.owners.len() + spread.unowned.len();
        spread.cap = cap(total, members.len());
        spread.floor = floor(total, members.len());
        spread
    }

    fn give(&mut self, claim: &'a str, to: &'a str) {
        if let Some(from) = self.owners.insert(claim, to) {
            *self.loads.entry(from).or_default() -= 1;
        }
        *self.loads.entry(to).or_default() += 1;
    }

    /// Each unowned claim to the best-scored member with room.
    fn settle_unowned(&mut self) {
        for claim in std::mem::take(&mut self.unowned) {
            if let Some(best) = self.best_with_room(claim) {
                self.give(claim, best);
            }
        }
    }

    fn best_with_room(&self, claim: &str) -> Option<&'a str> {
        let roomy = self.loads.iter().filter(|(_, load)| **load < self.cap);
        roomy.max_by_key(|(member, _)| score(claim, member)).map(|(member, _)| *member)
    }

    /// Members below the floor get, from whoever has most, what they score best for.
    fn feed(&mut self) {
        let hungry: Vec<&str> = self.loads.iter().filter(|(_, l)| **l < self.floor).map(|(m, _)| *m).collect();
        for member in hungry {
            while self.loads[member] < self.floor {
                let Some((richest, _)) = self.loads.iter().max_by_key(|(m, load)| (**load, std::cmp::Reverse(**m)))
                else {
                    return;
                };
                let richest = *richest;
                let theirs = self.owners.iter().filter(|(_, o)| **o == richest).map(|(c, _)| *c);
                let Some(claim) = theirs.max_by_key(|claim| score(claim, member)) else { return };
                self.give(claim, member);
            }
        }
    }

    /// Members above the cap give away what they score worst for.
    fn relieve(&mut self) {
        let above: Vec<(&str, usize)> =
            self.loads.iter().filter(|(_, l)| **l > self.cap).map(|(m, l)| (*m, l - self.cap)).collect();
        for (member, excess) in above {
            let mut own: Vec<&str> = self.owners.iter().filter(|(_, o)| **o == member).map(|(c, _)| *c).collect();
            own.sort_by_key(|claim| score(claim, member));
            for claim in own.into_iter().take(excess) {
                if let Some(best) = self.best_with_room(claim) {
                    self.give(claim, best);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64_with_seed;

    use super::*;

    fn claims(owner: impl Fn(u32) -> String) -> Vec<(String, String)> {
        (0..128).map(|n| (format!("shard-{n}"), owner(n))).collect()
    }

    fn run(claims: &[(String, String)], members: &[&str]) -> Assignment {
        assign(claims.iter().map(|(c, o)| (c.as_str(), o.as_str())), members)
    }

    fn loads(assignment: &Assignment) -> BTreeMap<String, usize> {
        assignment.values().fold(BTreeMap::new(), |mut loads, owner| {
            *loads.entry(owner.clone()).or_default() += 1;
            loads
        })
    }

    #[test]
    fn every_claim_is_given_within_the_cap() {
        let assignment = run(&claims(|_| String::new()), &["a", "b", "c"]);
        assert_eq!(assignment.len(), 128);
        assert!(
            loads(&assignment).values().all(|load| (floor(128, 3)..=cap(128, 3)).contains(load)),
            "{:?}",
            loads(&assignment)
        );
    }

    #[test]
    fn a_newcomer_gets_its_share_and_nothing_else_moves() {
        let before = run(&claims(|_| String::new()), &["a", "b", "c"]);
        let held = claims(|n| before[&format!("shard-{n}")].clone());
        let after = run(&held, &["a", "b", "c", "d"]);
        let moved: Vec<_> = after.iter().filter(|(claim, owner)| before[*claim] != **owner).collect();
        assert!(moved.iter().all(|(_, owner)| *owner == "d"), "{moved:?}");
        assert_eq!(moved.len(), floor(128, 4));
    }

    /// Each move is seen, and everything decided anew, before the next one: in whichever order they come, they are the
    /// newcomer's share and nothing else.
    #[test]
    fn a_join_that_is_decided_anew_after_each_move_moves_nothing_else_either() {
        let before = run(&claims(|_| String::new()), &["a", "b", "c"]);
        for order in 0..50 {
            let (mut owners, mut moved) = (before.clone(), 0);
            loop {
                let held = claims(|n| owners[&format!("shard-{n}")].clone());
                let after = run(&held, &["a", "b", "c", "d"]);
                let due: Vec<_> = after.iter().filter(|(claim, owner)| owners[*claim] != **owner).collect();
                let Some((claim, owner)) =
                    due.into_iter().min_by_key(|(claim, _)| xxh3_64_with_seed(claim.as_bytes(), order))
                else {
                    break;
                };
                assert_eq!(owner, "d", "{claim} after {moved} moves: {:?}", loads(&owners));
                owners.insert(claim.clone(), owner.clone());
                moved += 1;
            }
            assert_eq!(moved, floor(128, 4), "{:?}", loads(&owners));
        }
    }

    #[test]
    fn a_leaver_gives_only_its_own() {
        let before = run(&claims(|_| String::new()), &["a", "b", "c", "d"]);
        let held = claims(|n| before[&format!("shard-{n}")].clone());
        let after = run(&held, &["a", "b", "d"]);
        assert!(after.iter().all(|(claim, owner)| before[claim] == "c" || before[claim] == *owner));
        assert!(loads(&after).values().all(|load| *load <= cap(128, 3)));
    }

    #[test]
    fn what_is_settled_stays() {
        for members in [&["a"][..], &["a", "b"], &["a", "b", "c", "d", "e", "f", "g"]] {
            let once = run(&claims(|_| String::new()), members);
            assert_eq!(run(&claims(|n| once[&format!("shard-{n}")].clone()), members), once);
        }
        assert!(run(&claims(|_| String::new()), &[]).is_empty());
    }
}
