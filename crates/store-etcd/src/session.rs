//! Sessions: who is alive, by etcd's clock. The session's key is the truth; an answer to a keep-alive is only a hint.
//!
//! An id that ended can't be opened again: beside the session, `ever/<id>` is written on a much longer lease, and opening
//! compares that it doesn't exist.

use etcd_client::{Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp};
use prost::Message;
use store::{Error, Result, SessionOpen};

use crate::{Failure, backend::Inner};

/// Other servers may attach the same session at the same time.
const ATTACH_TRIES_MAX: usize = 8;

impl Inner {
    pub async fn open_session(&self, open: SessionOpen) -> Result<u64> {
        if open.session.is_empty() || open.session.contains('/') {
            return Err(Error::invalid("session", "a session needs an id, without '/'"));
        }
        if open.ttl.is_zero() {
            return Err(Error::invalid("ttl", "a session needs a time to live"));
        }
        for _ in 0..ATTACH_TRIES_MAX {
            let attached = match self.session(&open.session).await? {
                Some(kv) => self.attach(&open, &kv).await?,
                None if self.was_ever(&open.session).await? => return Err(Error::SessionEnded(open.session)),
                None => self.create(&open).await?,
            };
            if let Some(attach) = attached {
                return Ok(attach);
            }
        }
        Err(Error::Unavailable(format!("session {} is being attached elsewhere all the time", open.session)))
    }

    async fn session(&self, id: &str) -> Result<Option<KeyValue>, Failure> {
        self.get_one("reading a session", self.layout.session(id)).await
    }

    async fn was_ever(&self, id: &str) -> Result<bool, Failure> {
        Ok(self.get_one("reading whether a session ever was", self.layout.ever(id)).await?.is_some())
    }

    /// None: another attached meanwhile, or it ended. It moves to a lease of its own, with what was reported.
    async fn attach(&self, open: &SessionOpen, kv: &KeyValue) -> Result<Option<u64>> {
        let (session, report) = (self.layout.session(&open.session), self.layout.report(&open.session));
        let lease = self.grant(open.ttl).await?;
        let on_lease = PutOptions::new().with_lease(lease);
        let moved = TxnOp::put(report.clone(), "", Some(on_lease.clone().with_ignore_value()));
        let move_report = Txn::new().when([Compare::version(report, CompareOp::Greater, 0)]).and_then([moved]);
        let txn = Txn::new()
            .when([Compare::mod_revision(session.clone(), CompareOp::Equal, kv.mod_revision())])
            .and_then([TxnOp::put(session, member(open), Some(on_lease)), TxnOp::txn(move_report)]);
        match self.transact("attaching a session", txn).await {
            Ok(answer) if answer.succeeded() => {
                self.revoke(kv.lease()).await;
                Ok(Some(attach_of(kv) + 1))
            }
            Ok(_) | Err(Failure::LeaseGone) => {
                self.revoke(lease).await;
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// None: another opened it meanwhile, or it ended at once.
    async fn create(&self, open: &SessionOpen) -> Result<Option<u64>> {
        let (session, ever) = (self.layout.session(&open.session), self.layout.ever(&open.session));
        let (lease, ever_lease) = futures::try_join!(self.grant(open.ttl), self.ever_lease())?;
        let on = |lease| Some(PutOptions::new().with_lease(lease));
        let txn = Txn::new()
            .when([
                Compare::create_revision(session.clone(), CompareOp::Equal, 0),
                Compare::create_revision(ever.clone(), CompareOp::Equal, 0),
            ])
            .and_then([TxnOp::put(session, member(open), on(lease)), TxnOp::put(ever, "", on(ever_lease))]);
        match self.transact("opening a session", txn).await {
            Ok(answer) if answer.succeeded() => Ok(Some(1)),
            Ok(_) => {
                self.revoke(lease).await;
                Ok(None)
            }
            Err(Failure::LeaseGone) => {
                self.forget_ever_lease(ever_lease);
                self.revoke(lease).await;
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    pub async fn beat(&self, id: &str, report: Option<api::v1::MemberReport>) -> Result<()> {
        for _ in 0..ATTACH_TRIES_MAX {
            let kv = self.session(id).await?.ok_or_else(|| Error::SessionEnded(id.into()))?;
            match (self.renew(kv.lease()).await, &report) {
                // It ends just now, or attached anew and so changed its lease; etcd also errs now and then.
                (Err(Failure::LeaseGone), _) => continue,
                (Err(failure), _) => return Err(failure.into()),
                (Ok(()), None) => return Ok(()),
                (Ok(()), Some(report)) if self.put_report(id, &kv, report).await? => return Ok(()),
                (Ok(()), Some(_)) => continue,
            }
        }
        Err(Error::Unavailable(format!("the lease of session {id} can't be renewed, though the session exists")))
    }

    /// False: the session changed meanwhile. What is there already isn't written again: members repeat themselves.
    async fn put_report(&self, id: &str, kv: &KeyValue, report: &api::v1::MemberReport) -> Result<bool> {
        let options = PutOptions::new().with_lease(kv.lease());
        let (key, value) = (self.layout.report(id), report.encode_to_vec());
        let known = Compare::value(key.clone(), CompareOp::Equal, value.clone());
        let put = Txn::new().when([known]).or_else([TxnOp::put(key, value, Some(options))]);
        let same = Compare::mod_revision(self.layout.session(id), CompareOp::Equal, kv.mod_revision());
        match self.transact("reporting a member", Txn::new().when([same]).and_then([TxnOp::txn(put)])).await {
            Ok(answer) => Ok(answer.succeeded()),
            Err(Failure::LeaseGone) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    pub async fn end_session(&self, id: &str, attach: Option<u64>) -> Result<bool> {
        let Some(kv) = self.session(id).await? else { return Ok(false) };
        if attach.is_some_and(|attach| attach != attach_of(&kv)) {
            return Ok(false);
        }
        let key = self.layout.session(id);
        let newest = match attach {
            Some(_) => Compare::version(key.clone(), CompareOp::Equal, kv.version()),
            None => Compare::version(key.clone(), CompareOp::Greater, 0),
        };
        let deletes = [TxnOp::delete(key, None), TxnOp::delete(self.layout.report(id), None)];
        let ended = self.transact("ending a session", Txn::new().when([newest]).and_then(deletes)).await?.succeeded();
        if ended {
            self.revoke(kv.lease()).await;
        }
        Ok(ended)
    }
}

fn member(open: &SessionOpen) -> Vec<u8> {
    let SessionOpen { session, role, name, server, server_address, .. } = open.clone();
    api::v1::Member { session, role, name, server, server_address, ..Default::default() }.encode_to_vec()
}

/// Each attach writes the key once, and it dies with the session.
pub fn attach_of(kv: &KeyValue) -> u64 {
    u64::try_from(kv.version()).unwrap_or_default()
}
