//! A service's instances, by what may be done with them.

use std::time::Duration;

use model::{Key, Move, Next, Time};

use super::{
    Service,
    lost::{Judge, Standing},
    target::Target,
};
use crate::{
    Item, Lookup, View, any,
    instance::{self, Instance, Keeps},
    node, release,
};

/// Everything the service owns, in key order within each group. Each instance is in exactly one.
#[derive(Default)]
pub struct Fleet<'a> {
    /// Of the target's template.
    pub updated: Vec<One<'a>>,
    /// Of another template.
    pub outdated: Vec<One<'a>>,
    /// Somebody asked for them to go, and nobody granted it yet.
    pub evicting: Vec<One<'a>>,
    /// Asked to go; they hold their slots until their trees are gone.
    pub stopping: Vec<One<'a>>,
    /// On a node that has been silent for too long, or is gone. Neither ready nor live; they hold their slots until
    /// their records are removed.
    pub lost: Vec<One<'a>>,
    /// Of those wanted: their Nodes were deleted, and they must be asked to go before they can be called lost.
    pub orphaned: Vec<One<'a>>,
    /// Of those stopping: they end by themselves on a node that isn't heard, and are replaced only once that is sure.
    pub held: usize,
    /// The brake holds: nothing counts as lost.
    pub braked: bool,
    /// The next time at which one of them counts differently though nothing happened.
    pub wake: Option<Time>,
}

#[derive(Clone, Copy)]
pub struct One<'a> {
    pub item: &'a Item,
    pub instance: &'a Instance,
    /// Finished, or ready, and not since the last crash of a loop; one of the target's template has also been so for as
    /// long as the rollout asks.
    pub available: bool,
    /// Its node is Unknown: what was last said of it is not vouched for.
    pub unheard: bool,
}

impl<'a> Fleet<'a> {
    pub fn of(view: &View<'a>, item: &'a Item, service: &Service, target: &Target) -> Self {
        let judge = Judge::of(view);
        let mut fleet = Self { braked: judge.brakes(), ..Self::default() };
        for (item, instance) in view.children_of::<Instance>(item.uid()) {
            let one = One { item, instance, available: instance.ready || instance.is_finished(), unheard: false };
            match judge.standing(item, instance, service.lost_after) {
                Standing::Lost => fleet.lost.push(One { unheard: true, ..one }),
                Standing::Silent { unknown, lost_at } => {
                    lost_at.into_iter().for_each(|at| fleet.wake_at(at));
                    fleet.held += usize::from(item.deleting() && instance.gone_within.is_some());
                    fleet.sort_in(One { unheard: unknown, ..one }, target);
                }
                Standing::Orphaned => {
                    fleet.orphaned.push(one);
                    fleet.sort_in(One { unheard: true, ..one }, target);
                }
                Standing::Heard => fleet.sort_in(one, target),
            }
        }
        fleet.judge(view.now, service);
        fleet
    }

    fn sort_in(&mut self, one: One<'a>, target: &Target) {
        if one.item.deleting() {
            self.stopping.push(one);
        } else if one.instance.evict.is_some() {
            self.evicting.push(one);
        } else if one.instance.template_hash != target.hash {
            self.outdated.push(one);
        } else {
            self.updated.push(one);
        }
    }

    /// Which of the ready ones count. Only of the new ones is it asked that they have been ready for a while.
    fn judge(&mut self, now: Time, service: &Service) {
        let at_stake = self.outdated.iter().any(|one| one.instance.ready);
        let min_ready = service.min_ready.asked(at_stake);
        let updated = self.updated.iter_mut().map(|one| (one, min_ready));
        let others = self.outdated.iter_mut().chain(&mut self.evicting).map(|one| (one, Duration::ZERO));
        let mut wakes = Vec::new();
        for (one, min_ready) in updated.chain(others).filter(|(one, _)| one.instance.ready) {
            let from = one.instance.counts_from(min_ready);
            one.available = from <= now;
            wakes.extend((!one.available).then_some(from));
        }
        wakes.into_iter().for_each(|at| self.wake_at(at));
    }

    fn wake_at(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Not asked to go by this service.
    pub fn wanted(&self) -> impl Iterator<Item = One<'a>> {
        self.updated.iter().chain(&self.outdated).chain(&self.evicting).copied()
    }

    /// May have a process.
    pub fn live(&self) -> impl Iterator<Item = One<'a>> {
        self.wanted().chain(self.stopping.iter().copied())
    }

    /// Hold a slot.
    pub fn all(&self) -> impl Iterator<Item = One<'a>> {
        self.live().chain(self.lost.iter().copied())
    }

    pub fn available(&self) -> usize {
        self.wanted().filter(|one| one.available).count()
    }

    /// Available, as far as anybody knows at present.
    pub fn vouched(&self) -> usize {
        self.wanted().filter(|one| one.available && !one.unheard).count()
    }

    /// Of those wanted, how many ran to their end; in words, where there are any.
    pub fn finished(&self) -> String {
        match self.wanted().filter(|one| one.instance.is_finished()).count() {
            0 => String::new(),
            finished => format!(" ({finished} finished)"),
        }
    }

    pub fn unheard(&self) -> impl Iterator<Item = One<'a>> {
        self.live().filter(|one| one.unheard)
    }

    /// What the first of those instances of the target's template says that are worst off.
    pub fn trouble(&self) -> Option<(Keeps, String)> {
        let all = self.updated.iter().filter_map(|one| Some((one.item.key.name(), one.trouble()?)));
        let (name, (keeps, words)) = all.min_by_key(|(_, (keeps, _))| *keeps)?;
        Some((keeps, format!("{name}: {words}")))
    }

    /// What was asked to go by somebody else, and isn't by the step either.
    pub fn held_after(&self, next: &Next) -> Vec<One<'a>> {
        let step = match next {
            Next::Do(step, _) => step.moves.as_slice(),
            Next::Settled(_) | Next::Wait(..) | Next::Blocked(_) => &[],
        };
        let goes = |one: &One<'_>| {
            step.iter().any(|change| matches!(change, Move::Delete { key, .. } if *key == one.item.key))
        };
        self.evicting.iter().filter(|one| !goes(one)).copied().collect()
    }

    /// What is counted once the step is done.
    pub fn after(&self, next: &Next) -> Counts {
        let ready = |all: &[One<'_>]| all.iter().filter(|one| one.available).count();
        let mut counts = Counts {
            updated: self.updated.len(),
            updated_ready: ready(&self.updated),
            others: self.outdated.len() + self.evicting.len(),
            others_ready: ready(&self.outdated) + ready(&self.evicting),
            unheard: self.available() - self.vouched(),
        };
        let Next::Do(step, _) = next else { return counts };
        for change in &step.moves {
            match change {
                Move::Create(draft) if draft.key.kind() == instance::KIND => counts.updated += 1,
                Move::Delete { key, .. } => counts.stop(self, key),
                Move::Create(_) | Move::Remove { .. } | Move::SetSpec { .. } | Move::SetStatus { .. } => {}
            }
        }
        counts
    }
}

/// Instances that are not asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Of the target's template.
    pub updated: usize,
    pub updated_ready: usize,
    /// Outdated or to be evicted.
    pub others: usize,
    pub others_ready: usize,
    /// Ready ones whose node is Unknown.
    pub unheard: usize,
}

impl Counts {
    /// As far as it's vouched for.
    pub fn ready(self) -> usize {
        self.updated_ready + self.others_ready - self.unheard
    }

    fn stop(&mut self, fleet: &Fleet<'_>, key: &Key) {
        let Some(one) = fleet.wanted().find(|one| one.item.key == *key) else { return };
        self.unheard -= usize::from(one.available && one.unheard);
        if fleet.updated.iter().any(|updated| updated.item.key == *key) {
            self.updated -= 1;
            self.updated_ready -= usize::from(one.available);
        } else {
            self.others -= 1;
            self.others_ready -= usize::from(one.available);
        }
    }
}

impl One<'_> {
    fn trouble(&self) -> Option<(Keeps, String)> {
        let proving = self.instance.ready && !self.available && self.instance.is_looping();
        self.instance.trouble().or_else(|| proving.then(|| (Keeps::Failing, self.instance.unproven())))
    }

    pub fn stop(&self) -> Move {
        Move::Delete { key: self.item.key.clone(), uid: self.item.uid().into() }
    }

    pub fn remove(&self) -> Move {
        Move::Remove { key: self.item.key.clone(), uid: self.item.uid().into() }
    }

    /// Gives a lost one up: its node is told, should it come back, and its record goes. In that order, so that a step
    /// which is cut between the two forgets nothing.
    pub fn release(&self, view: &View<'_>) -> Vec<Move> {
        let key = self.item.key.sibling(release::KIND, self.item.uid());
        if view.world.get(&key).is_some() {
            return vec![self.remove()];
        }
        let spec = api::v1::ReleaseSpec {
            node: self.instance.node.clone(),
            node_uid: self.instance.node_uid.clone(),
            instance: Some((&self.item.key).into()),
            instance_uid: self.item.uid().into(),
            machine_id: self.machine(view).unwrap_or_default(),
        };
        let draft = model::Draft { key, labels: Vec::new(), spec: any(release::SPEC, &spec), status: None };
        vec![Move::Create(Box::new(draft)), self.remove()]
    }

    /// The one that it's bound to, where its Node is still the one that it was bound to.
    fn machine(&self, view: &View<'_>) -> Option<String> {
        let node = view.world.get(&Key::new(node::KIND, "", &self.instance.node))?;
        let same = [node.uid(), ""].contains(&&*self.instance.node_uid);
        same.then(|| node.body::<node::Node>().map(|node| node.machine_id.clone()))?
    }
}
