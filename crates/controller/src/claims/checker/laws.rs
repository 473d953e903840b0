//! What must hold in every state, and between one and the next. What must hold as a step begins or a claim changes is
//! checked where that happens, in `apply.rs`.

use super::world::{Commit, Scope, Violation, World};

impl World {
    /// What must hold between one state and the next: an epoch is one owner's, and the next one is the next number.
    pub fn check_change(&self, scope: &Scope, next: &Self) -> Result<(), Violation> {
        for claim in &scope.claims {
            let (before, after) = (self.seen().claim(claim), next.seen().claim(claim));
            if before != after && after.epoch.0 != before.epoch.0 + 1 {
                return Err(format!("{claim} went from epoch {} to {}", before.epoch, after.epoch));
            }
            if after.epoch > scope.epoch_max {
                return Err(format!("{claim} moved without need, to epoch {}", after.epoch));
            }
        }
        Ok(())
    }

    /// What must hold in every state.
    pub fn check(&self) -> Result<(), Violation> {
        for commit in &self.store.log {
            let now = self.seen().claim(&commit.claim);
            let later = commit.revision > now.revision;
            if commit.epoch > now.epoch || later != (commit.epoch == now.epoch) {
                let Commit { claim, epoch, revision } = commit;
                return Err(format!(
                    "a write to {claim} under epoch {epoch} committed at {revision}; epoch {} began at {}",
                    now.epoch, now.revision
                ));
            }
        }
        for replica in &self.replicas {
            for (claim, hold) in replica.holds.iter() {
                let now = self.seen().claim(claim);
                if hold.epoch > now.epoch || (hold.epoch == now.epoch && now.owner != replica.session) {
                    return Err(format!(
                        "{} holds {claim} at epoch {}, which it never got",
                        replica.session, hold.epoch
                    ));
                }
            }
        }
        Ok(())
    }
}
