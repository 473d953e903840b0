//! What the store is told, and what became of it.

use std::{sync::Arc, time::Duration};

use api::v1;
use model::{Key, Revision};
use store::{Class, Error, Note, Transaction, Write};

use super::{Event, START_QUIET, Worker};
use crate::{
    assigned::Release,
    outbox::Failed,
    plan::Want,
    session::{Keeper, Link},
    trace,
};

/// The longest pause after a report that failed.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Releases removed in one transaction.
const RELEASES_MAX: usize = 100;
const PAUSE_FIRST: Duration = Duration::from_millis(10);

impl Worker {
    pub(super) fn say_node(&mut self) {
        self.metrics.trouble.set(u64::from(self.node.trouble.is_some()));
        let status = self.node.status();
        self.outbox.set_node(status.clone());
        self.told.send_replace(status);
    }

    /// Says what the store doesn't know, unless it's being told something just now.
    pub(super) fn flush(&mut self) {
        let Some(fence) = self.link.as_ref().map(Link::fence) else { return };
        let now = self.clock.now();
        let mut outbox = std::mem::take(&mut self.outbox);
        let batch = outbox.next(|uid| {
            let slot = self.slots.get(uid)?;
            let quiet = slot.busy.is_some_and(|busy| busy.starting && now.since(busy.since) < START_QUIET);
            let want = self.want(slot);
            let recorded = matches!(want, Want::Run | Want::Stop) && !quiet;
            recorded.then(|| slot.report(want, &self.config.backoff))
        });
        self.outbox = outbox;
        let Some(mut batch) = batch else { return };
        let traced = self.trace(&mut batch);
        let (api, events, config) = (Arc::clone(&self.api), self.events.clone(), Arc::clone(&self.config));
        let pause = PAUSE_FIRST.saturating_mul(2_u32.saturating_pow(self.report_failures)).min(PAUSE_MAX);
        self.tasks.spawn(async move {
            let sequence = batch.sequence;
            let caller = Keeper::caller(&config);
            let report = api.report(&caller, fence, &config.node, batch);
            let lost = || Err(store::Error::OutcomeUnknown("no answer in time".into()));
            let answer = tokio::time::timeout(config.call_timeout, report).await.unwrap_or_else(|_| lost());
            traced.end(&answer);
            if answer.is_err() {
                tokio::time::sleep(pause).await;
            }
            let _ = events.send(Event::Reported { sequence, answer }).await;
        });
    }

    /// Says under what each report comes.
    fn trace(&mut self, batch: &mut v1::ReportBatch) -> trace::Report {
        let mut spans = trace::Report::default();
        self.traced.clear();
        for report in &mut batch.instances {
            let Some(slot) = self.slots.get(report.uid.as_str()) else { continue };
            let Some(trace) = &slot.trace else { continue };
            spans.add(&self.config.tracer, &self.config.node, report, trace);
            if slot.is_settled(report.gone) {
                self.traced.push(slot.id.uid.clone());
            }
        }
        spans
    }

    pub(super) fn reported(&mut self, sequence: u64, answer: store::Result<(Revision, Vec<Key>)>) {
        match answer {
            Ok((_, refused)) => {
                self.report_failures = 0;
                self.metrics.reported.add(1);
                self.outbox.acknowledged(sequence, &refused);
                for uid in std::mem::take(&mut self.traced) {
                    self.slots.get_mut(&uid).into_iter().for_each(|slot| slot.trace = None);
                }
            }
            Err(error) => {
                if let Some(times) = self.config.together.report_failed() {
                    tracing::warn!(node = %self.config.node, %error, times, "a report failed; it's said again");
                }
                self.report_failures = self.report_failures.saturating_add(1);
                self.metrics.report_failed.add(1);
                self.outbox.failed(
                    sequence,
                    match error {
                        // Of what is in it. A denial isn't: it may be of the store's own making, and pass.
                        Error::Invalid(_) | Error::TooLarge(_) | Error::Corrupt(_) => Failed::Refused,
                        _ => Failed::Retry,
                    },
                );
                if error.class() == Class::Fenced {
                    self.doubt.notify_one();
                }
            }
        }
    }

    /// Removes the releases that are done with: nothing is here (any more) of the instances that they name. One that speaks
    /// of another machine is left to the leader. What fails is tried again with the next change or sweep.
    pub(super) fn clear_releases(&mut self) {
        let Some(link) = self.link.as_ref().filter(|_| !self.clearing) else { return };
        let machine = &self.node.memory.machine_id;
        let ours = self.view.records.releases.iter().filter(|(_, release)| release.is_for(machine));
        let done = ours.filter(|(uid, _)| !self.slots.contains_key(*uid));
        let removal = |(_, release): (&Arc<str>, &Release)| Write::Remove {
            key: release.key.clone(),
            uid: release.uid.clone(),
            revision: release.revision,
        };
        let writes: Vec<Write> = done.take(RELEASES_MAX).map(removal).collect();
        if writes.is_empty() {
            return;
        }
        let transaction = Transaction {
            incarnation: self.view.incarnation.clone().unwrap_or_default(),
            fence: Some(link.fence()),
            actor: Some(Keeper::caller(&self.config).actor),
            step_id: uuid::Uuid::new_v4().simple().to_string(),
            writes,
            note: Some(Note {
                verb: "clear".into(),
                why: v1::Why { reason: "Released".into(), message: "nothing of it is left on its node".into() },
                traceparent: String::new(),
            }),
            ..Transaction::default()
        };
        self.clearing = true;
        let (api, events, config) = (Arc::clone(&self.api), self.events.clone(), Arc::clone(&self.config));
        self.tasks.spawn(async move {
            if let Ok(Err(error)) = tokio::time::timeout(config.call_timeout, api.commit(transaction)).await
                && let Some(times) = config.together.clearing_failed()
            {
                tracing::warn!(node = %config.node, %error, times, "releases could not be cleared");
            }
            let _ = events.send(Event::Cleared).await;
        });
    }
}
