//! What each event does to the world. Decisions are `claims::decide`'s and `Holds`'; the rest is what `member.rs`, a worker,
//! the network and a store do around them.

use model::{Epoch, Revision};

use super::{
    super::{Action, Holds, Local, Owned, Peer, Phase, Request, Seen, decide},
    world::{Answer, Body, Commit, Event, Life, Message, Planted, Scope, View, Violation, World, name},
};

impl World {
    fn change_store(&mut self, change: impl FnOnce(&mut Seen)) {
        let mut seen = (*self.store.view.seen).clone();
        change(&mut seen);
        self.store.view = View::new(seen);
    }

    fn send(&mut self, from: usize, body: Body) {
        let session = self.replicas[from].session.clone();
        self.messages.push(Message { from, session, awaited: true, body, answer: None });
        // In any order: the same messages are the same state.
        self.messages.sort_unstable();
    }

    fn abandon(&mut self, mut which: impl FnMut(&Message) -> bool) {
        self.messages.iter_mut().filter(|m| which(m)).for_each(|m| m.awaited = false);
        self.messages.retain(|m| m.awaited || m.answer.is_none());
        self.messages.sort_unstable();
    }

    pub fn apply(&mut self, scope: &Scope, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Start(r) => self.open(scope, *r),
            Event::Reopen(r) => {
                self.abandon(|m| m.from == *r && matches!(m.body, Body::Change(_)));
                self.open(scope, *r);
            }
            Event::See(r) => self.see(scope, *r, self.store.view.clone()),
            Event::SeeMembers(r) => self.see_half(scope, *r, |seen, now| seen.controllers = now.controllers.clone()),
            Event::SeeClaims(r) => self.see_half(scope, *r, |seen, now| seen.claims = now.claims.clone()),
            Event::SeeStale(r) => self.see(scope, *r, self.stale.clone()),
            Event::Sync => self.stale = self.store.view.clone(),
            Event::CatchUp(r, revision) => {
                self.replicas[*r].cache = *revision;
                self.act(scope, *r, false);
            }
            Event::Tick(r) => self.act(scope, *r, false),
            Event::Guard(r) => {
                self.left.faults -= 1;
                self.act(scope, *r, true);
            }
            Event::Write(r, claim) => return self.begin_write(*r, claim),
            Event::Arrive(m) => return self.arrive(scope, *m),
            Event::Hear(m) => self.hear(scope, *m),
            Event::GiveUp(m) => self.give_up(scope, *m),
            Event::Leave(r) => {
                self.left.leaves -= 1;
                self.replicas[*r].leaving = true;
                self.act(scope, *r, false);
            }
            Event::End(r) => {
                self.expire(&self.replicas[*r].session.clone());
                self.stop(*r);
            }
            Event::Pause(r) => {
                self.left.faults -= 1;
                self.replicas[*r].life = Life::Paused;
            }
            Event::Resume(r) => self.replicas[*r].life = Life::Up,
            Event::Kill(r) => {
                self.left.faults -= 1;
                self.stop(*r);
            }
            Event::Expire(session) => {
                self.left.faults -= u8::from(self.is_up(session));
                self.expire(session);
            }
        }
        Ok(())
    }

    fn open(&mut self, scope: &Scope, r: usize) {
        let replica = &mut self.replicas[r];
        replica.life = Life::Up;
        replica.sessions += 1;
        replica.session = format!("{}{}", name(r), replica.sessions);
        replica.seen = None;
        replica.holds = Holds::default();
        let session = replica.session.clone();
        self.change_store(|seen| drop(seen.controllers.insert(session, Peer::default())));
        self.see(scope, r, self.store.view.clone());
    }

    fn stop(&mut self, r: usize) {
        self.abandon(|m| m.from == r);
        let replica = &mut self.replicas[r];
        replica.life = Life::Off;
        replica.seen = None;
        replica.cache = Revision::ZERO;
        replica.holds = Holds::default();
        replica.leaving = false;
    }

    fn expire(&mut self, session: &str) {
        self.change_store(|seen| drop(seen.controllers.remove(session)));
    }

    fn see(&mut self, scope: &Scope, r: usize, view: View) {
        self.replicas[r].seen = Some(view);
        self.act(scope, r, false);
    }

    fn see_half(&mut self, scope: &Scope, r: usize, half: impl FnOnce(&mut Seen, &Seen)) {
        let seen = self.replicas[r].seen.as_ref().map_or_else(Seen::default, |view| (*view.seen).clone());
        let mut next = seen;
        half(&mut next, self.seen());
        self.see(scope, r, View::new(next));
    }

    /// What `Member::act` does.
    fn act(&mut self, scope: &Scope, r: usize, guard: bool) {
        let replica = &self.replicas[r];
        let Some(view) = replica.seen.clone() else { return };
        let free = |name: &&String| guard && view.seen.is_free(&view.seen.claim(name));
        let no_barrier = scope.planted == Planted::ActBeforeTheBarrier;
        let local = Local {
            cache: if no_barrier { Revision(i64::MAX) } else { replica.cache },
            busy: self.busy(r),
            pending: self.pending(r),
            orphans: scope.claims.iter().filter(free).cloned().collect(),
        };
        for action in decide(&replica.session.clone(), &scope.claims, &view.seen, &replica.holds.clone(), &local) {
            match action {
                Action::Set(_, hold) if scope.planted == Planted::AdoptNothing && hold.phase == Phase::Barrier => {}
                Action::Take(request) | Action::HandOver(request) => self.send(r, Body::Change(request)),
                Action::Set(claim, hold) => drop(self.replicas[r].holds.set(&claim, hold)),
                Action::Drop(claim, epoch) => self.replicas[r].holds.end(&claim, epoch),
            }
        }
        self.forget(scope, r);
        self.report(scope, r);
    }

    /// What `member.rs` says of itself; a claim's resources are there as soon as it should own it. It reaches the store at
    /// once: to others, saying it later looks like seeing it later.
    fn report(&mut self, scope: &Scope, r: usize) {
        let replica = &self.replicas[r];
        let Some(view) = replica.seen.as_ref().filter(|_| self.is_alive(&replica.session)) else { return };
        let assignment = view.seen.assignment(&scope.claims);
        let busy = self.busy(r);
        let due = |name: &&String| {
            assignment.get(*name) == Some(&replica.session) && !replica.holds.contains(name) && !busy.contains(*name)
        };
        let warm = scope.claims.iter().filter(due).cloned().collect();
        let peer = Peer { ready: !replica.leaving, warm };
        let session = replica.session.clone();
        if self.seen().controllers[&session] != peer {
            self.change_store(|seen| drop(seen.controllers.insert(session, peer)));
        }
    }

    fn forget(&mut self, scope: &Scope, r: usize) {
        if scope.planted == Planted::BelieveOldViews {
            let mut holds = Holds::default();
            for (claim, hold) in self.replicas[r].holds.iter() {
                holds.set(claim, hold.clone());
            }
            self.replicas[r].holds = holds;
        }
    }

    /// A step of a worker, decided on its cache.
    fn begin_write(&mut self, r: usize, claim: &str) -> Result<(), Violation> {
        self.left.writes -= 1;
        let replica = &self.replicas[r];
        let hold = replica.holds.get(claim).expect("only where it's active");
        let older = |commit: &&Commit| commit.claim == claim && commit.epoch < hold.epoch;
        let unseen = self.store.log.iter().filter(older).find(|commit| commit.revision > replica.cache);
        if let Some(commit) = unseen {
            let (session, epoch, cache) = (&replica.session, hold.epoch, replica.cache);
            let Commit { revision, epoch: before, .. } = commit;
            return Err(format!(
                "{session} acts on {claim} at epoch {epoch} with a cache at {cache}, and has not seen the write of epoch \
                 {before} at {revision}"
            ));
        }
        let epoch = hold.epoch;
        self.send(r, Body::Write { claim: claim.to_owned(), epoch });
        Ok(())
    }

    /// A request reaches the store.
    fn arrive(&mut self, scope: &Scope, m: usize) -> Result<(), Violation> {
        let message = self.messages[m].clone();
        let answer = match &message.body {
            Body::Change(request) => self.change_claim(scope, &message.session, request)?,
            Body::Write { claim, epoch } => self.write(scope, &message.session, claim, *epoch)?,
        };
        self.messages[m].answer = Some(answer);
        self.abandon(|m| !m.awaited);
        Ok(())
    }

    /// Who owns what changes only if the store's compare passes; whether that is enough is checked apart from it.
    fn change_claim(&mut self, scope: &Scope, asker: &str, request: &Request) -> Result<Answer, Violation> {
        let Request { claim, expected, owner, owner_must_be_dead } = request;
        let now = self.seen().claim(claim);
        let (alive, owner_alive) = (self.is_alive(owner), self.is_alive(&now.owner));
        let as_expected = (&now.owner, now.epoch) == (&expected.0, expected.1);
        let alive_or_planted = alive || scope.planted == Planted::GiveToTheDead;
        let free_enough = !owner_must_be_dead || !owner_alive || scope.planted == Planted::TakeFromTheLiving;
        if !(as_expected && alive_or_planted && free_enough) {
            return Ok(Answer::Refused);
        }
        self.store.revision.0 += 1;
        let next = Owned { owner: owner.clone(), epoch: Epoch(now.epoch.0 + 1), revision: self.store.revision };
        self.change_store(|seen| drop(seen.claims.insert(claim.clone(), next.clone())));
        if owner_alive && now.owner != asker {
            return Err(format!("{asker} took {claim} from {}, whose session lives", now.owner));
        }
        if !alive {
            return Err(format!("{claim} was given to {owner}, whose session has ended"));
        }
        Ok(Answer::Granted(next))
    }

    fn write(&mut self, scope: &Scope, session: &str, claim: &str, epoch: Epoch) -> Result<Answer, Violation> {
        let now = self.seen().claim(claim);
        let current = (now.owner.as_str(), now.epoch) == (session, epoch);
        if !current && scope.planted != Planted::WriteWithoutFence {
            let message = format!("nothing failed, yet {session} wrote under epoch {epoch} of {claim}, which is over");
            return if scope.faults == 0 { Err(message) } else { Ok(Answer::Refused) };
        }
        self.store.revision.0 += 1;
        self.store.log.push(Commit { revision: self.store.revision, claim: claim.to_owned(), epoch });
        Ok(Answer::Committed)
    }

    /// An answer reaches the replica.
    fn hear(&mut self, scope: &Scope, m: usize) {
        let Message { from, session, body, answer, .. } = self.messages.remove(m);
        let holds = &mut self.replicas[from].holds;
        match (body, answer.expect("only answers are heard")) {
            (Body::Change(request), Answer::Granted(now)) => holds.granted(&session, &request.claim, &now),
            // It waits a little before it asks again: until a tick.
            (Body::Change(_), _) => return,
            (Body::Write { claim, epoch }, Answer::Refused) => {
                let held = holds.get(&claim).filter(|_| scope.planted == Planted::RefusalEndsNewerHolds);
                holds.end(&claim, held.map_or(epoch, |hold| hold.epoch));
            }
            (Body::Write { .. }, _) => {}
        }
        self.forget(scope, from);
        self.act(scope, from, false);
    }

    /// The sender's deadline passes; what it sent may arrive all the same.
    fn give_up(&mut self, scope: &Scope, m: usize) {
        self.left.faults -= 1;
        let message = self.messages[m].clone();
        self.abandon(|other| *other == message);
        if matches!(message.body, Body::Write { .. }) {
            self.act(scope, message.from, false);
        }
    }
}
