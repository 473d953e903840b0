//! Which events may come next.

use super::super::Phase;
use super::world::{Event, Life, Scope, Sight, World};

impl World {
    /// All of them; some may turn out to change nothing.
    pub fn events(&self, scope: &Scope) -> Vec<Event> {
        let mut events = Vec::new();
        if scope.sight == Sight::Lagging && !self.stale.is(&self.store.view) {
            events.push(Event::Sync);
        }
        for r in 0..self.replicas.len() {
            match self.replicas[r].life {
                Life::Off => events.extend((self.replicas[r].sessions < scope.sessions).then_some(Event::Start(r))),
                Life::Paused => events.push(Event::Resume(r)),
                Life::Up => self.events_of(scope, r, &mut events),
            }
        }
        let expires = |session: &&String| self.left.faults > 0 || !self.is_up(session);
        events.extend(self.seen().controllers.keys().filter(expires).cloned().map(Event::Expire));
        for m in 0..self.messages.len() {
            self.events_of_message(m, &mut events);
        }
        events
    }

    fn events_of(&self, scope: &Scope, r: usize, events: &mut Vec<Event>) {
        let replica = &self.replicas[r];
        if !self.is_alive(&replica.session) {
            events.extend((replica.sessions < scope.sessions).then_some(Event::Reopen(r)));
        }
        let news = |view| replica.seen.as_ref().is_none_or(|seen| !seen.is(view));
        if news(&self.store.view) {
            match scope.sight {
                Sight::Whole | Sight::Lagging => events.push(Event::See(r)),
                Sight::Torn => events.extend([Event::SeeMembers(r), Event::SeeClaims(r)]),
            }
        }
        if scope.sight == Sight::Lagging && news(&self.stale) {
            events.push(Event::SeeStale(r));
        }
        let barrier = replica.holds.iter().filter(|(_, hold)| hold.phase == Phase::Barrier);
        let ahead = barrier.filter(|(_, hold)| hold.revision > replica.cache);
        events.extend(ahead.map(|(_, hold)| Event::CatchUp(r, hold.revision)));
        if replica.seen.is_some() {
            events.push(Event::Tick(r));
        }
        if self.left.writes > 0 {
            let busy = self.busy(r);
            let idle = scope.claims.iter().filter(|claim| replica.holds.is_active(claim) && !busy.contains(*claim));
            events.extend(idle.map(|claim| Event::Write(r, claim.clone())));
        }
        if self.left.leaves > 0 && !replica.leaving {
            events.push(Event::Leave(r));
        }
        if self.may_end(r) {
            events.push(Event::End(r));
        }
        if self.left.faults > 0 {
            events.extend([Event::Pause(r), Event::Kill(r), Event::Guard(r)]);
        }
    }

    fn events_of_message(&self, m: usize, events: &mut Vec<Event>) {
        let message = &self.messages[m];
        let hears = message.awaited && self.replicas[message.from].life == Life::Up;
        match &message.answer {
            None => events.push(Event::Arrive(m)),
            Some(_) if hears => events.push(Event::Hear(m)),
            Some(_) => {}
        }
        if hears && self.left.faults > 0 {
            events.push(Event::GiveUp(m));
        }
    }
}
