//! What runs here though the complete list doesn't name it.

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::Instant;

use super::Worker;
use crate::{
    driver::NodeMemory,
    node::{self, Doubt, Missing, Trust, Unconfirmed},
    plan::{self, Want},
    slot::Slot,
};

impl Worker {
    /// What isn't assigned here any more though nobody asked for its end. Returns what the next agent must know of it.
    pub(super) fn judge_strays(&mut self) -> NodeMemory {
        // What is being stopped already can't be saved, and says nothing of the rest.
        let (here, going): (Vec<&Slot>, Vec<&Slot>) = self.slots.values().partition(|slot| !self.is_going(slot));
        let is_stray = |slot: &&Slot| matches!(self.want(slot), Want::Stray { .. });
        let strays: Vec<&Slot> = here.iter().copied().filter(is_stray).collect();
        let all = Missing { of: here.len(), strays: strays.len() };
        let left = strays.len() + going.len();
        let bound = strays.iter().filter(|slot| slot.template.stop_after.is_some()).count();
        let (running, idle): (Vec<&Slot>, Vec<&Slot>) = strays.into_iter().partition(|slot| slot.is_running());
        let runs = here.iter().filter(|slot| slot.is_running()).count();
        let run = Missing { of: runs, strays: running.len() };
        let mut stop = plan::strays_to_stop(running, run.of);
        stop.extend(plan::strays_to_stop(idle, all.of - run.of));
        let stop: Vec<Arc<str>> = stop.into_iter().map(|slot| slot.id.uid.clone()).collect();

        let incarnation = self.view.incarnation.clone().unwrap_or_default();
        let confirmed = &self.view.records.confirmed;
        let mut memory = self.node.memory.clone();
        let trust = node::trust(&memory, confirmed, &incarnation, run, all);
        let doubt = match trust {
            Trust::Known => None,
            Trust::Vouched | Trust::Adopt => (left > 0).then_some(Doubt::Resolved),
            Trust::Unconfirmed(doubt) => Some(doubt),
        };
        match trust {
            Trust::Known => self.stop_strays(stop),
            Trust::Vouched if left == 0 => memory.used = Some(confirmed.clone()),
            Trust::Vouched if self.is_round_over() => self.stop_strays(stop),
            Trust::Vouched => {}
            Trust::Adopt => memory.incarnation = Some(incarnation.clone()),
            Trust::Unconfirmed(doubt) => {
                let instances = all.strays;
                if self.doubts.failed(1, Instant::now()).is_some() {
                    tracing::warn!(
                        incarnation,
                        instances,
                        ?doubt,
                        "the store doesn't know what is here; it's left alone"
                    );
                }
            }
        }
        let unconfirmed = doubt.map(|doubt| {
            let instances = if doubt == Doubt::Resolved { left } else { all.strays };
            Unconfirmed { doubt, incarnation, instances, bound }
        });
        memory.unconfirmed.clone_from(&unconfirmed);
        self.node.unconfirmed = unconfirmed;
        memory
    }

    /// No record names it, and it's being stopped or forgotten for that.
    fn is_going(&self, slot: &Slot) -> bool {
        matches!(self.want(slot), Want::Stray { stop: true } | Want::Forget)
    }

    fn stop_strays(&mut self, uids: Vec<Arc<str>>) {
        for uid in uids {
            let Some(slot) = self.slots.get_mut(&uid) else { continue };
            tracing::warn!(instance = %slot.id.key, uid = %slot.id.uid, "no longer assigned here: stopping it");
            slot.stray_stop = true;
        }
    }

    /// By a user's word all strays go, half of them at a time: once these are gone, a new list says which are the next,
    /// or that none is left.
    pub(super) fn next_strays(&self) {
        let resolved = self.node.unconfirmed.as_ref().is_some_and(|u| u.doubt == Doubt::Resolved);
        if resolved && self.is_round_over() {
            self.relist.notify_one();
        }
    }

    /// What doesn't go, whatever was done about it, doesn't hold back the others for ever.
    fn is_round_over(&self) -> bool {
        !self.slots.values().any(|slot| self.is_going(slot) && !slot.is_stuck())
    }

    /// Records that went without a word before: only a complete list may say that they are strays. It's asked for once, by
    /// the change; what such a list leaves running waits for the next sweep. The same for a store that was vouched for.
    pub(super) fn doubt_absence(&self, uids: &BTreeSet<Arc<str>>) {
        let vanished = |slot: &Slot| matches!(self.want(slot), Want::Stray { stop: false });
        let incarnation = self.view.incarnation.as_deref().unwrap_or_default();
        let confirmed = &self.view.records.confirmed;
        let news = confirmed.is_for(incarnation) && self.node.memory.used.as_ref() != Some(confirmed);
        match &self.node.unconfirmed {
            Some(Unconfirmed { doubt: Doubt::Resolved, .. }) => {}
            Some(_) if news => self.relist.notify_one(),
            None if uids.iter().filter_map(|uid| self.slots.get(uid)).any(vanished) => self.relist.notify_one(),
            _ => {}
        }
    }
}
