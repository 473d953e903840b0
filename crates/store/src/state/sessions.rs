//! Who is alive. Sessions aren't durable: they end with the store's process.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    time::Duration,
};

use api::v1;

use super::Instant;
use crate::{Error, Result, SessionOpen};

/// Ids of ended sessions that are remembered so that they can't be opened again. Ids are random and never reused, so
/// only an open that was delayed this long could slip through.
const ENDED_MAX: usize = 16_384;

#[derive(Clone, Debug)]
pub struct Session {
    role: String,
    name: String,
    server: String,
    server_address: String,
    pub attach: u64,
    ttl: Duration,
    pub deadline: Instant,
    report: Option<v1::MemberReport>,
}

impl Session {
    pub fn new(open: SessionOpen, attach: u64, now: Instant) -> Self {
        let SessionOpen { role, name, server, server_address, ttl, .. } = open;
        Self { role, name, server, server_address, attach, ttl, deadline: now + ttl, report: None }
    }
}

#[derive(Debug, Default)]
pub struct Sessions {
    live: BTreeMap<String, Session>,
    ended: HashSet<String>,
    /// The same ids, oldest first.
    ended_order: VecDeque<String>,
}

impl Sessions {
    pub fn get(&self, session: &str) -> Option<&Session> {
        self.live.get(session)
    }

    pub fn has_ended(&self, session: &str) -> bool {
        self.ended.contains(session)
    }

    /// Whether what members say of themselves changed.
    pub fn beat(&mut self, session: &str, now: Instant, report: Option<v1::MemberReport>) -> Result<bool> {
        let live = self.live.get_mut(session).ok_or_else(|| Error::SessionEnded(session.into()))?;
        live.deadline = live.deadline.max(now + live.ttl);
        let changed = report.is_some() && report != live.report;
        if changed {
            live.report = report;
        }
        Ok(changed)
    }

    /// When the next one expires unless it beats.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.live.values().map(|s| s.deadline).min()
    }

    /// Who should have beaten by now.
    pub fn overdue(&self, now: Instant) -> Vec<(String, Instant)> {
        let overdue = self.live.iter().filter(|(_, s)| s.deadline <= now);
        overdue.map(|(id, s)| (id.clone(), s.deadline)).collect()
    }

    pub fn members(&self) -> Vec<v1::Member> {
        let member = |(id, s): (&String, &Session)| v1::Member {
            session: id.clone(),
            role: s.role.clone(),
            name: s.name.clone(),
            server: s.server.clone(),
            server_address: s.server_address.clone(),
            attach: s.attach,
            report: s.report.clone(),
        };
        self.live.iter().map(member).collect()
    }

    /// Takes over what was staged: opened or attached sessions, and ended ones.
    pub fn publish(&mut self, staged: BTreeMap<String, Option<Session>>) {
        for (id, session) in staged {
            let before = self.live.remove(&id);
            match (session, before) {
                (Some(mut session), Some(before)) => {
                    // It may have beaten while the attachment was being staged.
                    session.deadline = session.deadline.max(before.deadline);
                    session.report = before.report;
                    self.live.insert(id, session);
                }
                (Some(session), None) => drop(self.live.insert(id, session)),
                (None, _) => self.remember_ended(id),
            }
        }
    }

    fn remember_ended(&mut self, id: String) {
        if self.ended.insert(id.clone()) {
            self.ended_order.push_back(id);
        }
        if self.ended_order.len() > ENDED_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}
