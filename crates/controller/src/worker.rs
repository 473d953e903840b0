//! THE loop: observe, decide, take at most one step, look again.
//!
//! Everything that can go wrong with a step ends in "look again": at once, after a pause, or after a barrier. The worker
//! alone turns an error's class into a delay.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::SystemTime,
};

use kinds::{RECONCILERS, Reconciler, Scope, moves};
use model::{Fence, LEADER, Next, Revision, Time, Until, shard_claim};
use store::{Class, Error, Transaction};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::{
    Shared,
    cache::until,
    causes::Cause,
    execute::{self, Under, Wanted},
    holdings::Busy,
    queue::{Done, Work},
    stats::{Outcome, add},
    trace::{self, Own, Traced},
};

/// Looks at one key after another, for ever.
pub async fn run(shared: Arc<Shared>) {
    loop {
        let (work, _waited) = shared.queue.pop().await;
        let done = shared.look(&work).await;
        shared.queue.done(&work, done);
    }
}

/// What a look decided.
enum Decided {
    /// The key is gone, or nothing can be known yet.
    Nothing,
    /// The decision itself is defective.
    Panicked,
    Rest(Next, Time),
    Write(Box<Transaction>, Next, Own),
}

impl Shared {
    async fn look(&self, work: &Work) -> Done {
        self.look_by(RECONCILERS[work.reconciler], work).await
    }

    async fn look_by(&self, reconciler: &dyn Reconciler, work: &Work) -> Done {
        // Before all else: what is held and seen from here on is of this store or, where it becomes another one meanwhile,
        // refused by that.
        let incarnation = self.cache.incarnation();
        let claim = self.claim_of(reconciler, work);
        // Not the owner (any more): whoever is looks at everything of the claim when it takes it.
        let Some(busy) = claim.and_then(|claim| self.holdings.enter(&claim)) else {
            self.causes.take(work);
            return Done::Forget;
        };
        if !self.cache.has_own_write(&work.key) {
            // The event of that very write wakes this key again. But there is none where the write never happened, or is
            // lost: then it's the time.
            add(&self.stats.put_off, 1);
            return Done::Backoff;
        }
        let mut cause = self.causes.take(work);
        let began = SystemTime::now();
        let _timer = self.stats.looks.of(work.reconciler).duration.time();
        match self.try_to_decide(reconciler, work, &incarnation, &busy.fence) {
            Decided::Nothing => Done::Forget,
            Decided::Panicked => {
                self.stats.count(work.reconciler, Outcome::Failed);
                cause.into_iter().for_each(|cause| self.causes.put_back(work, cause));
                Done::Backoff
            }
            Decided::Rest(next, now) => self.rest(work, &next, now, cause),
            Decided::Write(mut transaction, next, own) => {
                // A change may have come into the view after that.
                match (&mut cause, self.causes.late(work)) {
                    (Some(cause), Some(late)) => cause.join(late),
                    (cause, late) => *cause = cause.take().or(late),
                }
                let (tracer, claim, fence) = (&self.config.tracer, busy.claim(), &busy.fence);
                let look = trace::Look { tracer, work, own, claim, fence, next: &next, began };
                let traced = look.begin(cause, &mut transaction);
                self.write(work, &busy, *transaction, &next, traced).await
            }
        }
    }

    fn claim_of(&self, reconciler: &dyn Reconciler, work: &Work) -> Option<String> {
        match reconciler.scope() {
            Scope::Leader => Some(LEADER.to_owned()),
            Scope::Shard => self.cache.world(|world| Some(shard_claim(world.get(&work.key)?.metadata().shard))),
        }
    }

    /// One resource about which nothing can be decided must not take the others' owner with it, nor the next owner.
    fn try_to_decide(&self, reconciler: &dyn Reconciler, work: &Work, incarnation: &str, fence: &Fence) -> Decided {
        // A decision changes nothing, so nothing is left half done.
        catch_unwind(AssertUnwindSafe(|| self.decide(reconciler, work, incarnation, fence))).unwrap_or_else(|_| {
            error!(key = %work.key, reconciler = reconciler.name(), "the decision panicked, which is a defect");
            Decided::Panicked
        })
    }

    fn decide(&self, reconciler: &dyn Reconciler, work: &Work, incarnation: &str, fence: &Fence) -> Decided {
        let decided = self.cache.view(|view| {
            let Some(own) = view.world.get(&work.key) else { return Decided::Nothing };
            let decision = reconciler.plan(view, own);
            debug!(key = %work.key, next = decision.next.outcome(), why = decision.next.why().reason, "looked");
            let step = match &decision.next {
                Next::Do(step, _) => Some(step),
                Next::Settled(_) | Next::Wait(..) | Next::Blocked(_) => None,
            };
            let domain = execute::domain(reconciler);
            let status = moves::status_to_write(domain, own, decision.status.as_ref(), view.now);
            if step.is_none() && status.is_none() {
                return Decided::Rest(decision.next, view.now);
            }
            let why = decision.next.why();
            let wanted = Wanted { reconciler, own, step, status: decision.status.as_ref(), why };
            let actor = format!("controller/{}", self.config.name);
            let moves_max = self.holdings.moves_max(&work.key);
            let under = Under { incarnation, fence: fence.clone(), actor: &actor, now: view.now, moves_max };
            let transaction = execute::transaction(view.world, &wanted, &under);
            Decided::Write(Box::new(transaction), decision.next, Own::of(own))
        });
        decided.unwrap_or(Decided::Nothing)
    }

    fn rest(&self, work: &Work, next: &Next, now: Time, cause: Option<Cause>) -> Done {
        let outcome = match next {
            Next::Settled(_) => Outcome::Settled,
            Next::Wait(..) | Next::Do(..) => Outcome::Waiting,
            Next::Blocked(_) => Outcome::Blocked,
        };
        self.stats.count(work.reconciler, outcome);
        match next {
            Next::Wait(Until::Time(at), _) => {
                // What is done then is done for the same reason.
                cause.into_iter().for_each(|cause| self.causes.put_back(work, cause));
                Done::After(until(now, *at))
            }
            _ => Done::Forget,
        }
    }

    async fn write(&self, work: &Work, busy: &Busy<'_>, transaction: Transaction, next: &Next, traced: Traced) -> Done {
        let (verb, writes) =
            (transaction.note.as_ref().map(|n| n.verb.clone()).unwrap_or_default(), transaction.writes.len());
        let incarnation = transaction.incarnation.clone();
        let committed = tokio::time::timeout(self.config.commit_timeout, self.store.commit(transaction)).await;
        let result = committed.unwrap_or_else(|_| Err(Error::OutcomeUnknown("no answer in time".into())));
        traced.end(&self.causes, work, &result, next);
        match result {
            Ok(revision) => {
                tell(work, next, &verb, writes, busy.claim(), revision);
                self.stats.count(work.reconciler, Outcome::Stepped);
                self.holdings.reset_moves(&work.key);
                self.cache.note_write(&incarnation, &work.key, revision);
                // Usually the event has not come back yet, and wakes the key; if it came before the answer, look now.
                if self.cache.has_own_write(&work.key) { Done::Again } else { Done::Forget }
            }
            Err(error) => self.failed(work, busy, &verb, &error).await,
        }
    }

    async fn failed(&self, work: &Work, busy: &Busy<'_>, verb: &str, error: &Error) -> Done {
        match error.class() {
            Class::Conflict => {
                debug!(key = %work.key, %verb, %error, "the world moved");
                self.stats.count(work.reconciler, Outcome::Conflict);
                if !self.holdings.halve_moves(&work.key) {
                    self.tell_stuck(work, verb, error);
                }
                Done::Backoff
            }
            Class::Fenced => {
                warn!(key = %work.key, %verb, claim = busy.claim(), %error, "write refused: not the owner any more");
                self.stats.count(work.reconciler, Outcome::Fenced);
                busy.fenced();
                Done::Forget
            }
            Class::Unknown => {
                warn!(key = %work.key, %verb, %error, "outcome unknown: waiting for a barrier");
                self.stats.count(work.reconciler, Outcome::Unknown);
                self.barrier(work).await;
                Done::Backoff
            }
            Class::Retry => {
                debug!(key = %work.key, %verb, %error, "not done");
                self.stats.count(work.reconciler, Outcome::Failed);
                Done::Backoff
            }
            Class::Terminal => {
                error!(key = %work.key, %verb, %error, "step refused");
                if matches!(error, Error::TooLarge(_)) {
                    // A part of it may fit.
                    self.holdings.halve_moves(&work.key);
                }
                self.stats.count(work.reconciler, Outcome::Failed);
                Done::Backoff
            }
        }
    }

    /// A world that moves lets a step of a single move through before long. Where it doesn't, the step itself is in the way.
    fn tell_stuck(&self, work: &Work, verb: &str, error: &Error) {
        let told = self.stuck.lock().expect("no holder panics").failed(1, Instant::now());
        if let Some(count) = told {
            warn!(key = %work.key, %verb, %error, count, "a step conflicts again and again, though it's a single move");
        }
    }

    /// Whatever became of the step, it happened at or below a `head` that is read now; the key is not looked at before
    /// the cache is there.
    async fn barrier(&self, work: &Work) {
        let incarnation = self.cache.incarnation();
        let head = crate::retry(&self.config, || self.store.head()).await;
        self.cache.note_write(&incarnation, &work.key, head.revision);
    }
}

/// Where somebody else has to do something it's a warning. It's told with the write that says so, so once.
fn tell(work: &Work, next: &Next, verb: &str, writes: usize, claim: &str, revision: Revision) {
    let (key, why) = (&work.key, next.why());
    match next {
        Next::Blocked(_) => warn!(%key, %verb, writes, %claim, %revision, why = why.reason, "{}", why.message),
        Next::Do(..) | Next::Settled(_) | Next::Wait(..) => {
            info!(%key, %verb, writes, %claim, %revision, why = why.reason, "{}", why.message);
        }
    }
}

#[cfg(test)]
mod tests;
