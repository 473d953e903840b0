//! Claims: permanent keys that change only when ownership does, by compare. Views decide who tries; the compare decides
//! who owns.

use api::v1::Claim;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use model::{Epoch, Revision};
use store::{ClaimChange, Error, Result};

use crate::{
    backend::{Inner, Record},
    commit::{Found, put_head, revision_of},
    layout::{read_claim, write_claim},
};

impl Inner {
    /// Writes `head` too, so that a watch which has reached it has seen all that the old owner wrote.
    pub async fn change_claim(&self, change: ClaimChange) -> Result<Claim> {
        let record = self.record().await?;
        let epoch = Epoch(change.expected_epoch.0 + 1);
        let put = TxnOp::put(self.layout.claim(&change.name), write_claim(&change.owner, epoch), None);
        let reads = self.claim_keys(&change).map(|key| TxnOp::get(key, None));
        let txn = Txn::new()
            .when(self.claim_compares(&change, &record))
            .and_then([put, put_head(&self.layout, 0)])
            .or_else(reads.collect::<Vec<_>>());
        let answer = self.transact("changing a claim", txn).await?;
        if !answer.succeeded() {
            return Err(self.claim_verdict(&change, &record, &Found::of(&answer)));
        }
        let Revision(revision) = revision_of(&answer);
        Ok(Claim { name: change.name, owner: change.owner, epoch: epoch.0, revision, ..Default::default() })
    }

    fn claim_compares(&self, change: &ClaimChange, record: &Record) -> Vec<Compare> {
        let claim = self.layout.claim(&change.name);
        let unchanged = match (change.expected_owner.as_str(), change.expected_epoch) {
            ("", Epoch(0)) => Compare::create_revision(claim, CompareOp::Equal, 0),
            (owner, epoch) => Compare::value(claim, CompareOp::Equal, write_claim(owner, epoch)),
        };
        let mut compares =
            vec![Compare::value(self.layout.cluster(), CompareOp::Equal, record.value.clone()), unchanged];
        compares.push(Compare::version(self.layout.session(&change.owner), CompareOp::Greater, 0));
        if must_be_dead(change) {
            compares.push(Compare::version(self.layout.session(&change.expected_owner), CompareOp::Equal, 0));
        }
        compares
    }

    fn claim_keys(&self, change: &ClaimChange) -> impl Iterator<Item = String> + use<> {
        let session = self.layout.session(&change.owner);
        [self.layout.cluster(), self.layout.claim(&change.name), session].into_iter()
    }

    fn claim_verdict(&self, change: &ClaimChange, record: &Record, found: &Found) -> Error {
        if found.value(&self.layout.cluster()) != Some(record.value.as_slice()) {
            self.forget_record();
            return Error::WrongIncarnation(record.cluster.incarnation.clone());
        }
        let conflict = |message: String| Error::ClaimConflict { claim: change.name.clone(), message };
        let current = match found.value(&self.layout.claim(&change.name)).map(read_claim) {
            Some(Err(error)) => return error,
            Some(Ok(current)) => current,
            None => (String::new(), Epoch(0)),
        };
        if (current.0.as_str(), current.1) != (change.expected_owner.as_str(), change.expected_epoch) {
            let (owner, epoch) = current;
            return conflict(format!("it is {owner:?}'s at epoch {epoch}"));
        }
        match found.get(&self.layout.session(&change.owner)) {
            None => conflict(format!("its new owner, session {:?}, isn't alive", change.owner)),
            Some(_) => conflict(format!("its owner, session {:?}, is alive", change.expected_owner)),
        }
    }
}

fn must_be_dead(change: &ClaimChange) -> bool {
    change.owner_must_be_dead && !change.expected_owner.is_empty()
}
