//! What the node can't do at present, and whether it can again. Nothing that runs is touched for it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Event, Worker};
use crate::driver::{NodeMemory, Result};

/// Until it's tried again whether something can be kept.
const CHECK_PAUSE: Duration = Duration::from_secs(5);

impl Worker {
    /// Keeps what the next agent must know of the node; one writer at a time, so that an older word never comes last.
    pub(super) fn save_node(&mut self, memory: NodeMemory) {
        if self.saving {
            self.unsaved = Some(memory);
            return;
        }
        self.saving = true;
        let (driver, events) = (Arc::clone(&self.driver), self.events.clone());
        self.tasks.spawn(async move {
            let saved = driver.save_node(&memory).await.map(|()| memory);
            let _ = events.send(Event::NodeSaved(saved)).await;
        });
    }

    /// Tries whether something can be kept at all, before it's needed.
    pub(super) fn check_node(&mut self) {
        if !self.saving {
            self.save_node(self.node.memory.clone());
        }
    }

    pub(super) fn node_saved(&mut self, saved: Result<NodeMemory>) {
        self.saving = false;
        match saved {
            Ok(memory) => {
                // Strays, if any, are judged by the word of the store that counts from now on.
                if memory.incarnation != self.node.memory.incarnation {
                    self.relist.notify_one();
                }
                self.node.memory = memory;
                if self.node.forgetful.take().is_some() {
                    tracing::info!(node = %self.config.node, "the node can keep what it must again");
                    self.say_node();
                }
            }
            // Whatever it was about is judged again by the next complete list.
            Err(trouble) => self.node_forgetful(trouble.0),
        }
        if let Some(memory) = self.unsaved.take() {
            self.save_node(memory);
        }
    }

    /// Something couldn't be kept; tried again after a while.
    pub(super) fn node_forgetful(&mut self, why: String) {
        if self.node.forgetful.as_ref() != Some(&why) {
            tracing::error!(node = %self.config.node, trouble = %why, "the node can't keep what it must");
            self.node.forgetful = Some(why);
            self.say_node();
        }
        if !self.check_due {
            self.check_due = true;
            let events = self.events.clone();
            self.tasks.spawn(async move {
                tokio::time::sleep(CHECK_PAUSE).await;
                let _ = events.send(Event::CheckDue).await;
            });
        }
    }

    /// Something couldn't be done for an instance, and is tried again with it.
    pub(super) fn node_trouble(&mut self, uid: &Arc<str>, why: String) {
        self.troubled.insert(uid.clone(), why);
        self.judge_trouble();
    }

    /// Something could be done. The trouble is over once no instance waits for anything to be tried again.
    pub(super) fn node_works(&mut self) {
        if !self.troubled.is_empty() {
            let slots = &self.slots;
            self.troubled.retain(|uid, _| slots.get(uid).is_some_and(|slot| slot.troubles > 0));
            self.judge_trouble();
        }
    }

    /// One instance's trouble is told for all, the same as long as it lasts: each of many may have its own words for what
    /// is the matter with the node.
    fn judge_trouble(&mut self) {
        let worst = self.troubled.first_key_value().map(|(_, why)| why.clone());
        if self.node.trouble == worst {
            return;
        }
        match &worst {
            None => tracing::info!(node = %self.config.node, "the node can do its work again"),
            Some(why) => {
                if let Some(times) = self.troubles.failed(1, Instant::now()) {
                    tracing::error!(node = %self.config.node, trouble = %why, times, "the node can't do its work");
                }
            }
        }
        self.node.trouble = worst;
        self.say_node();
    }
}
