//! What runs here though the complete list doesn't name it.

use std::sync::Arc;

use super::Worker;
use crate::{
    driver::NodeMemory,
    node::{self, Missing, Trust, Unconfirmed},
    plan::{self, Want},
    slot::Slot,
};

impl Worker {
    /// What isn't assigned here any more though nobody asked for its end.
    pub(super) fn judge_strays(&mut self) {
        let is_stray = |slot: &&Slot| matches!(self.want(slot), Want::Stray { .. });
        let strays: Vec<&Slot> = self.slots.values().filter(is_stray).collect();
        let all = Missing { of: self.slots.len(), strays: strays.len() };
        let (running, idle): (Vec<&Slot>, Vec<&Slot>) = strays.into_iter().partition(|slot| slot.is_running());
        let runs = self.slots.values().filter(|slot| slot.is_running()).count();
        let run = Missing { of: runs, strays: running.len() };
        let incarnation = self.view.incarnation.clone().unwrap_or_default();
        let known = self.node.memory.incarnation.as_deref();
        match node::trust(known, &self.view.records.confirmed, &incarnation, run, all) {
            Trust::Known => {
                let mut stop = plan::strays_to_stop(running, run.of);
                stop.extend(plan::strays_to_stop(idle, all.of - run.of));
                let stop: Vec<Arc<str>> = stop.into_iter().map(|slot| slot.id.uid.clone()).collect();
                for uid in stop {
                    let Some(slot) = self.slots.get_mut(&uid) else { continue };
                    tracing::warn!(instance = %slot.id.key, uid = %slot.id.uid, "no longer assigned here: stopping it");
                    slot.stray_stop = true;
                }
                self.node.unconfirmed = None;
            }
            Trust::Adopt => {
                self.node.unconfirmed = None;
                self.save_node(NodeMemory { incarnation: Some(incarnation), ..self.node.memory.clone() });
            }
            Trust::Unconfirmed(doubt) => {
                let instances = all.strays;
                tracing::warn!(incarnation, instances, ?doubt, "the store doesn't know what is here; it's left alone");
                self.node.unconfirmed = Some(Unconfirmed { doubt, incarnation, instances });
            }
        }
    }
}
