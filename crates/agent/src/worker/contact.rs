//! Until when that may run which must not run without a server (`on_disconnect.stop_after`).
//!
//! The time counts from when the node asked for the last renewal of its session that a server granted: at that moment the
//! session existed, so the leader noted the node's silence later, and whoever replaces what runs here counts from there. A
//! renewal counts only while the Node's record, as the watch tells it, doesn't say that the node is silent: a session that
//! came and went without the leader seeing it must not prolong anything. Nothing here may ever err towards later.

use std::sync::Arc;

use model::Time;

use super::Worker;

#[derive(Debug, Default)]
pub struct Contact {
    session: String,
    /// The watch said something since the session began.
    told: bool,
    renewed: Option<Time>,
}

impl Contact {
    pub fn linked(&mut self, session: &str) {
        if self.session != session {
            self.session = session.into();
            self.told = false;
        }
    }

    pub fn told(&mut self) {
        self.told = true;
    }

    pub fn renewed(&mut self, asked: Time) {
        self.renewed = Some(asked);
    }

    /// `known`: by its record the node isn't silent.
    pub fn heard(&self, known: bool) -> Option<Time> {
        self.renewed.filter(|_| known && self.told)
    }
}

impl Worker {
    pub(super) fn renewed(&mut self, asked: Time) {
        self.contact.renewed(asked);
        self.count_contact();
    }

    /// What may run only in contact with a server may go on.
    pub(super) fn count_contact(&mut self) {
        let known = self.view.records.node && !self.view.records.silent;
        let Some(heard) = self.contact.heard(known).filter(|heard| *heard > self.heard) else { return };
        self.heard = heard;
        let bound = self.slots.values().filter(|slot| slot.template.stop_after.is_some());
        let uids: Vec<Arc<str>> = bound.map(|slot| slot.id.uid.clone()).collect();
        for uid in uids {
            let Some(slot) = self.slots.get_mut(&uid) else { continue };
            slot.contact(heard);
            let Some(until) = slot.seen.start_until else { continue };
            let (driver, id, until) = (Arc::clone(&self.driver), slot.id.clone(), self.clock.moment(until));
            self.tasks.spawn(async move { driver.heard(&id, until).await });
            if !slot.is_running() {
                self.step(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_present_session_was_told_makes_a_renewal_count() {
        let mut contact = Contact::default();
        contact.linked("a");
        contact.renewed(Time(1));
        assert_eq!(contact.heard(true), None, "nothing was told yet");
        contact.told();
        assert_eq!(contact.heard(true), Some(Time(1)));
        assert_eq!(contact.heard(false), None, "by the record the node is silent");
        contact.linked("a");
        assert_eq!(contact.heard(true), Some(Time(1)), "it was attached anew, and never ended");
        contact.linked("b");
        contact.renewed(Time(2));
        assert_eq!(contact.heard(true), None);
        contact.told();
        assert_eq!(contact.heard(true), Some(Time(2)));
    }
}
