//! Breadth first through every state of a scope, each once; so a counterexample is a shortest one.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt::{self, Write},
};

use model::Epoch;

use super::{
    super::Hold,
    settle::{Settling, beginning},
    world::{Body, Event, Message, Scope, Violation, World, hash, name},
};

#[derive(Debug, Default)]
pub struct Explored {
    pub states: usize,
    /// Events from the start to the farthest state.
    pub depth: usize,
    /// The highest that any claim got to.
    pub epoch: Epoch,
    /// What came of requests at the store, in how many transitions.
    pub outcomes: BTreeMap<&'static str, usize>,
}

/// How a violation came about, event by event.
#[derive(Debug)]
pub struct Counterexample {
    pub violation: Violation,
    pub story: String,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n=> {}", self.story, self.violation)
    }
}

/// A state's way back to the start.
struct Step {
    before: usize,
    event: Event,
}

pub fn explore(scope: &Scope) -> Result<Explored, Counterexample> {
    let mut steps = vec![Step { before: 0, event: Event::Sync }];
    let mut known = HashSet::new();
    let mut settling = Settling::default();
    let mut explored = Explored::default();
    let beginning = beginning(scope).expect("it begins without a fault");
    let mut queue = VecDeque::from([(0, 0, beginning)]);
    known.insert(hash(&queue[0].2));
    while let Some((id, depth, world)) = queue.pop_front() {
        explored.states += 1;
        explored.depth = depth;
        let epoch = world.seen().claims.values().map(|claim| claim.epoch).max();
        explored.epoch = explored.epoch.max(epoch.unwrap_or_default());
        for event in world.events(scope) {
            let mut next = world.clone();
            let applied = next.apply(scope, &event).and_then(|()| world.check_change(scope, &next));
            if let Some(outcome) = outcome(&world, &next, &event) {
                *explored.outcomes.entry(outcome).or_default() += 1;
            }
            if applied.is_ok() && !known.insert(hash(&next)) {
                continue;
            }
            steps.push(Step { before: id, event });
            let checked = applied.and_then(|()| next.check()).and_then(|()| settling.run(scope, &next));
            if let Err(violation) = checked {
                return Err(Counterexample { violation, story: story(scope, &steps) });
            }
            queue.push_back((steps.len() - 1, depth + 1, next));
        }
    }
    Ok(explored)
}

/// What a request came to, where it has just reached the store.
fn outcome(before: &World, after: &World, event: &Event) -> Option<&'static str> {
    let Event::Arrive(m) = event else { return None };
    let passed = before.store.revision != after.store.revision;
    Some(match (&before.messages[*m].body, passed) {
        (Body::Write { .. }, true) => "write committed",
        (Body::Write { .. }, false) => "write refused",
        (Body::Change(request), true) if request.owner_must_be_dead => "claim taken",
        (Body::Change(_), true) => "claim handed over",
        (Body::Change(_), false) => "claim change refused",
    })
}

/// The way to the last step, told from the start.
fn story(scope: &Scope, steps: &[Step]) -> String {
    let mut way = Vec::new();
    let mut at = steps.len() - 1;
    while at > 0 {
        way.push(&steps[at].event);
        at = steps[at].before;
    }
    let mut world = beginning(scope).expect("it began so before");
    let mut story = String::new();
    for event in way.into_iter().rev() {
        let told = tell(&world, event);
        // The last one is the violation, told apart.
        let _ = world.apply(scope, event);
        writeln!(story, "{told:<58} | {}", summary(&world)).expect("strings take everything");
    }
    story
}

fn tell(world: &World, event: &Event) -> String {
    let who = |r: &usize| match world.replicas[*r].session.as_str() {
        "" => name(*r).to_string(),
        session => session.to_owned(),
    };
    match event {
        Event::Start(r) => format!("{} starts", name(*r)),
        Event::Reopen(r) => format!("{} learns that its session ended, opens another", who(r)),
        Event::See(r) => format!("{} sees the present", who(r)),
        Event::SeeMembers(r) => format!("{} sees the present members", who(r)),
        Event::SeeClaims(r) => format!("{} sees the present claims", who(r)),
        Event::SeeStale(r) => format!("{} sees what the second server knows", who(r)),
        Event::Sync => "the second server catches up".into(),
        Event::CatchUp(r, revision) => format!("{}'s cache gets to {revision}", who(r)),
        Event::Tick(r) => format!("{} decides anew", who(r)),
        Event::Guard(r) => format!("{} decides anew, the orphan guard being over", who(r)),
        Event::Write(r, claim) => format!("{} begins a step under {claim}", who(r)),
        Event::Arrive(m) => format!("the store gets: {}", said(&world.messages[*m])),
        Event::Hear(m) => {
            let message = &world.messages[*m];
            format!("{} hears {:?} to: {}", message.session, message.answer, said(message))
        }
        Event::GiveUp(m) => format!("no answer in time to: {}", said(&world.messages[*m])),
        Event::Leave(r) => format!("{} gets SIGTERM", who(r)),
        Event::End(r) => format!("{} ends its session and exits", who(r)),
        Event::Pause(r) => format!("{} gets SIGSTOP", who(r)),
        Event::Resume(r) => format!("{} gets SIGCONT", who(r)),
        Event::Kill(r) => format!("{} gets SIGKILL", who(r)),
        Event::Expire(session) => format!("the session {session} expires"),
    }
}

fn said(message: &Message) -> String {
    let from = &message.session;
    match &message.body {
        Body::Write { claim, epoch } => format!("write by {from} under {claim} at epoch {epoch}"),
        Body::Change(request) => {
            let (claim, owner, (before, epoch)) = (&request.claim, &request.owner, &request.expected);
            format!("{from} wants {claim} to go from {before:?} at epoch {epoch} to {owner}")
        }
    }
}

fn summary(world: &World) -> String {
    let claims = world.seen().claims.iter().map(|(claim, owned)| format!("{claim}={}@{}", owned.owner, owned.epoch));
    let holds = world.replicas.iter().flat_map(|replica| {
        let told =
            |(claim, hold): (&String, &Hold)| format!("{} {:?} {claim}@{}", replica.session, hold.phase, hold.epoch);
        replica.holds.iter().map(told)
    });
    claims.chain(holds).collect::<Vec<_>>().join(", ")
}
