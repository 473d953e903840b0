use expect_test::{Expect, expect};

use super::*;

/// The situation of replica `a`, in which it decides about the claim `leader`. It is ready, and free of requests.
struct Situation {
    seen: Seen,
    holds: Holds,
    local: Local,
}

/// Revisions of claims are ten times their epochs.
fn owned(owner: &str, epoch: u64) -> Owned {
    Owned { owner: owner.into(), epoch: Epoch(epoch), revision: Revision(10 * epoch as i64) }
}

fn hold(epoch: u64, phase: Phase) -> Hold {
    Hold { phase, ..taken(Epoch(epoch), Revision(10 * epoch as i64)) }
}

fn to_b() -> Phase {
    Phase::Draining { to: "b".into() }
}

impl Situation {
    /// `owner` (nobody: "") has the claim.
    fn new(owner: &str, epoch: u64) -> Self {
        let claim = (!owner.is_empty()).then(|| (LEADER.to_owned(), owned(owner, epoch)));
        let seen = Seen { claims: claim.into_iter().collect(), ..Seen::default() };
        Self { seen, holds: Holds::default(), local: Local::default() }.with("a", true, false)
    }

    fn with(mut self, session: &str, ready: bool, warm: bool) -> Self {
        let warm = warm.then(|| LEADER.to_owned()).into_iter().collect();
        self.seen.controllers.insert(session.into(), Peer { ready, warm });
        self
    }

    fn without(mut self, session: &str) -> Self {
        self.seen.controllers.remove(session);
        self
    }

    /// `a` gives its claims away.
    fn leaving(self) -> Self {
        self.with("a", false, false)
    }

    fn holding(mut self, epoch: u64, phase: Phase) -> Self {
        self.holds.set(LEADER, hold(epoch, phase));
        self
    }

    fn over(mut self, epoch: u64) -> Self {
        self.holds.end(LEADER, Epoch(epoch));
        self
    }

    fn cache(mut self, revision: i64) -> Self {
        self.local.cache = Revision(revision);
        self
    }

    fn busy(mut self) -> Self {
        self.local.busy.insert(LEADER.into());
        self
    }

    fn pending(mut self) -> Self {
        self.local.pending.insert(LEADER.into());
        self
    }

    fn orphan(mut self) -> Self {
        self.local.orphans.insert(LEADER.into());
        self
    }

    fn check(self, expected: Expect) {
        let actions = decide("a", &[LEADER.to_owned()], &self.seen, &self.holds, &self.local);
        let told: Vec<String> = actions.iter().map(tell).collect();
        expected.assert_eq(&told.join("; "));
    }
}

fn tell(action: &Action) -> String {
    let change =
        |Request { expected: (owner, epoch), owner: next, .. }: &Request| format!("{owner:?}@{epoch} -> {next}");
    match action {
        Action::Take(request) => format!("take {}", change(request)),
        Action::HandOver(request) => format!("hand over {}", change(request)),
        Action::Set(_, hold) => format!("{:?}@{} from {}", hold.phase, hold.epoch, hold.revision),
        Action::Drop(_, epoch) => format!("drop @{epoch}"),
    }
}

#[test]
fn takes_what_it_should_own_and_nobody_does() {
    Situation::new("", 0).check(expect![[r#"take ""@0 -> a"#]]);
    Situation::new("dead", 7).check(expect![[r#"take "dead"@7 -> a"#]]);
}

#[test]
fn takes_nothing_from_the_living() {
    Situation::new("b", 1).with("b", true, false).check(expect![""]);
    // Nor from one that leaves: it hands over.
    Situation::new("b", 1).with("b", false, false).check(expect![""]);
}

#[test]
fn takes_nothing_unless_able() {
    Situation::new("dead", 7).leaving().check(expect![""]);
    Situation::new("dead", 7).without("a").check(expect![""]);
    Situation::new("dead", 7).pending().check(expect![""]);
}

#[test]
fn takes_for_another_only_past_the_orphan_guard() {
    // Whoever scores better than `a` by hash.
    let better = |rival: &String| ring::assign_one(LEADER, "", &["a", rival]).as_ref() == Some(rival);
    let rival = (0..10_000).map(|n| format!("rival-{n}")).find(better).expect("one of ten thousand");
    let contested = || Situation::new("dead", 7).with(&rival, true, false);
    contested().check(expect![""]);
    contested().orphan().check(expect![[r#"take "dead"@7 -> a"#]]);
    contested().orphan().leaving().check(expect![""]);
    Situation::new("b", 7).with("b", true, false).orphan().check(expect![""]);
}

#[test]
fn adopts_what_was_handed_to_it_or_whose_answer_was_lost() {
    Situation::new("a", 3).check(expect!["Barrier@3 from 30"]);
    Situation::new("a", 3).pending().check(expect!["Barrier@3 from 30"]);
    // While it leaves, too: it has to hand it on.
    Situation::new("a", 3).leaving().check(expect!["Barrier@3 from 30"]);
}

#[test]
fn believes_no_view_from_before_its_time_ended() {
    Situation::new("a", 3).over(3).check(expect![""]);
    Situation::new("dead", 2).over(3).check(expect![""]);
    Situation::new("a", 5).over(3).check(expect!["Barrier@5 from 50"]);
    Situation::new("dead", 4).over(3).check(expect![[r#"take "dead"@4 -> a"#]]);
}

#[test]
fn acts_once_the_cache_has_reached_the_barrier() {
    Situation::new("a", 3).holding(3, Phase::Barrier).cache(29).check(expect![""]);
    Situation::new("a", 3).holding(3, Phase::Barrier).cache(30).check(expect!["Active@3 from 30"]);
    // The view may be from before the claim's change.
    Situation::new("dead", 2).holding(3, Phase::Barrier).cache(31).check(expect!["Active@3 from 30"]);
}

#[test]
fn stays_active_where_nobody_else_should_own() {
    Situation::new("a", 3).holding(3, Phase::Active).with("b", true, true).check(expect![""]);
    Situation::new("a", 3).holding(3, Phase::Active).leaving().check(expect![""]);
}

#[test]
fn drains_for_an_heir_that_is_warm() {
    let leaving = || Situation::new("a", 3).holding(3, Phase::Active).leaving();
    leaving().with("b", true, false).check(expect![""]);
    leaving().with("b", false, true).check(expect![""]);
    leaving().with("b", true, true).check(expect![[r#"Draining { to: "b" }@3 from 30"#]]);
    leaving().with("b", true, true).busy().check(expect![[r#"Draining { to: "b" }@3 from 30"#]]);
}

#[test]
fn an_old_view_moves_nothing() {
    let old = || Situation::new("b", 2).holding(3, Phase::Active).leaving().with("b", true, true);
    old().check(expect![""]);
    old().without("a").check(expect![""]);
}

#[test]
fn hands_over_once_the_step_in_flight_has_ended() {
    let draining = || Situation::new("a", 3).holding(3, to_b()).leaving().with("b", true, true);
    draining().busy().check(expect![""]);
    draining().check(expect![[r#"hand over "a"@3 -> b"#]]);
    draining().pending().check(expect![""]);
}

#[test]
fn an_heir_that_dies_while_it_drains_gets_nothing() {
    let draining = || Situation::new("a", 3).holding(3, to_b()).leaving();
    draining().check(expect!["Active@3 from 30"]);
    draining().busy().check(expect!["Active@3 from 30"]);
    draining().with("c", true, true).check(expect!["Active@3 from 30"]);
    // Unless the request is on its way: then its answer decides.
    draining().pending().check(expect![""]);
}

#[test]
fn a_newcomer_that_is_gone_again_leaves_it_active() {
    Situation::new("a", 3).holding(3, to_b()).with("b", true, true).check(expect!["Active@3 from 30"]);
}

#[test]
fn drops_what_is_seen_to_be_anothers() {
    for phase in [Phase::Barrier, Phase::Active, to_b()] {
        Situation::new("b", 4).with("b", true, false).holding(3, phase.clone()).check(expect!["drop @3"]);
        // Its own again, but the time in between was another's: through the barrier again.
        Situation::new("a", 5).holding(3, phase).busy().pending().check(expect!["drop @3"]);
    }
    Situation::new("b", 3).with("b", true, false).holding(3, Phase::Active).check(expect!["drop @3"]);
}

#[test]
fn decides_for_every_claim() {
    let names: Vec<String> = (0..4).map(model::shard_claim).chain([LEADER.to_owned()]).collect();
    let seen = Situation::new("", 0).seen;
    let actions = decide("a", &names, &seen, &Holds::default(), &Local::default());
    let taken = actions.iter().filter_map(|action| match action {
        Action::Take(request) => Some(request.claim.as_str()),
        _ => None,
    });
    assert_eq!(taken.collect::<Vec<_>>(), ["shard-0", "shard-1", "shard-2", "shard-3", LEADER]);
}

#[test]
fn a_grant_begins_at_the_barrier_and_repeats_nothing() {
    let mut holds = Holds::default();
    holds.granted("a", LEADER, &owned("a", 3));
    assert_eq!(holds.get(LEADER), Some(&hold(3, Phase::Barrier)));
    holds.set(LEADER, hold(3, Phase::Active));
    // The answer to a request whose success was seen before.
    holds.granted("a", LEADER, &owned("a", 3));
    assert_eq!(holds.get(LEADER), Some(&hold(3, Phase::Active)));
    holds.granted("a", LEADER, &owned("b", 4));
    assert_eq!(holds.get(LEADER), None);
    assert!(holds.is_over(LEADER, Epoch(3)) && !holds.is_over(LEADER, Epoch(4)));
}

#[test]
fn what_is_over_stays_over() {
    let mut holds = Holds::default();
    holds.end(LEADER, Epoch(3));
    holds.set(LEADER, hold(3, Phase::Active));
    holds.granted("a", LEADER, &owned("a", 2));
    assert!(holds.is_empty());
    holds.set(LEADER, hold(5, Phase::Active));
    // A step under an older epoch was refused late.
    holds.end(LEADER, Epoch(3));
    assert!(holds.is_active(LEADER));
}
