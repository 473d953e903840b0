//! Until when that may run which must not run without a server (`on_disconnect.stop_after`).
//!
//! The time counts from when the node asked for the last renewal of its session that a server granted: at that moment the
//! session existed, so the leader noted the node's silence later, and whoever replaces what runs here counts from there. A
//! renewal counts only while the Node's record, as the watch tells it, doesn't say that the node is silent: a session that
//! came and went without the leader seeing it must not prolong anything.
//!
//! A server's word is good only for what its store names. What the records of the present store don't name for this node
//! (it was renamed; the store was emptied, or set back) may be replaced by whoever declares it there, so for that it's as if
//! no server were heard. While a watch is broken, or its snapshot isn't whole, the last whole one of the same store goes on
//! counting; once a snapshot of another store has begun, nothing does before it's whole. Nothing here may ever err towards
//! later.

use std::sync::Arc;

use model::Time;

use super::Worker;

#[derive(Debug, Default)]
pub struct Contact {
    session: String,
    /// The watch said something since the session began and since it was opened, of the store that the records are of.
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

    /// `current`: of the store that the records are of.
    pub fn told(&mut self, current: bool) {
        self.told = current;
    }

    /// The watch broke: where it goes on there may be another store.
    pub fn untold(&mut self) {
        self.told = false;
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
        let Some(heard) = self.last_contact().filter(|heard| *heard > self.heard) else { return };
        self.heard = heard;
        let bound = self.slots.values().filter(|slot| slot.template.stop_after.is_some());
        let uids: Vec<Arc<str>> = bound.map(|slot| slot.id.uid.clone()).collect();
        uids.iter().for_each(|uid| self.renew(uid));
    }

    fn last_contact(&self) -> Option<Time> {
        self.contact.heard(self.view.records.node && !self.view.records.silent)
    }

    /// As far as the store names it.
    pub(super) fn renew(&mut self, uid: &Arc<str>) {
        let Some(heard) = self.last_contact() else { return };
        let Some(slot) = self.slots.get_mut(uid).filter(|slot| self.view.names(&slot.id)) else { return };
        let before = slot.seen.start_until;
        slot.contact(heard);
        let Some(until) = slot.seen.start_until.filter(|until| Some(*until) > before) else {
            slot.seen.start_until = before;
            return;
        };
        let (driver, id, until) = (Arc::clone(&self.driver), slot.id.clone(), self.clock.moment(until));
        self.tasks.spawn(async move { driver.heard(&id, until).await });
        if !slot.is_running() {
            self.step(uid);
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
        contact.told(true);
        assert_eq!(contact.heard(true), Some(Time(1)));
        assert_eq!(contact.heard(false), None, "by the record the node is silent");
        contact.linked("a");
        assert_eq!(contact.heard(true), Some(Time(1)), "it was attached anew, and never ended");
        contact.linked("b");
        contact.renewed(Time(2));
        assert_eq!(contact.heard(true), None);
        contact.told(true);
        assert_eq!(contact.heard(true), Some(Time(2)));
    }

    #[test]
    fn neither_a_broken_watch_nor_the_beginning_of_another_store_makes_a_renewal_count() {
        let mut contact = Contact::default();
        contact.linked("a");
        contact.renewed(Time(1));
        contact.told(true);
        assert_eq!(contact.heard(true), Some(Time(1)));
        contact.untold();
        contact.renewed(Time(2));
        assert_eq!(contact.heard(true), None, "the server behind the watch may have another store by now");
        contact.told(false);
        assert_eq!(contact.heard(true), None, "and it has");
        contact.told(true);
        assert_eq!(contact.heard(true), Some(Time(2)), "nothing that was granted meanwhile is lost");
    }
}
