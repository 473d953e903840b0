//! This replica as a member: its session, its claims, and which shards it watches. The shell around `claims.rs`.
//!
//! Its loop waits for nothing but news: every call runs beside it, so none that hangs keeps it from hearing that its
//! session has ended.

mod words;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::resume_unwind,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use api::v1;
use futures::StreamExt;
use model::{LEADER, shard_claim, shard_of_claim};
use store::{Error, SessionOpen};
use telemetry::spell::Spell;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tracing::{debug, info, warn};

use self::words::Word;
use crate::{
    Shared,
    claims::{Action, Hold, Local, Owned, Phase, Request, Seen},
    ring,
    stats::add,
};

/// How often decisions that wait for time (orphan guard, retries of claim requests) are made anew.
const TICK: Duration = Duration::from_millis(100);
/// Longest wait for the store's word that the session has ended; without it the TTL ends it.
const END_MAX: Duration = Duration::from_secs(1);

/// What comes back from the requests that run beside the member's loop.
enum Answer {
    Claim { request: Request, result: store::Result<v1::Claim> },
    Beat { report: v1::MemberReport, result: store::Result<()> },
}

/// Why a session's life ended.
enum End {
    Lost,
    Left,
}

/// One session after another, until the shutdown.
pub async fn run(shared: Arc<Shared>, shards: u32, mut shutdown: watch::Receiver<bool>) {
    loop {
        let session = tokio::select! {
            session = open(&shared) => session,
            () = asked(&mut shutdown) => return,
        };
        let member = Member::new(shared.clone(), session, shards);
        if let End::Left = member.live(&mut shutdown).await {
            return;
        }
        shared.holdings.end_all();
        shared.queue.retain(|_| false);
        shared.causes.clear();
    }
}

/// Returns once it's asked to end. A sender that is gone means that whoever ran us is.
pub async fn asked(shutdown: &mut watch::Receiver<bool>) {
    _ = shutdown.wait_for(|asked| *asked).await;
}

async fn open(shared: &Shared) -> String {
    crate::retry(&shared.config, || async {
        // A new id each time: one that may have been opened can't be opened again.
        let session = uuid::Uuid::new_v4().simple().to_string();
        let open = SessionOpen {
            session: session.clone(),
            role: "controller".into(),
            name: shared.config.name.clone(),
            server: String::new(),
            server_address: String::new(),
            ttl: shared.config.ttl,
            machine_id: String::new(),
        };
        shared.store.open_session(open).await.map(|_| session)
    })
    .await
}

struct Member {
    shared: Arc<Shared>,
    session: String,
    /// All claims of the cluster.
    names: Vec<String>,
    shards: u32,
    seen: Seen,
    /// Who should own what, by `seen`.
    assignment: ring::Assignment,
    seen_any: bool,
    /// Requests in flight, and failed ones until the next word or tick.
    pending: BTreeMap<String, Option<Instant>>,
    /// Since when a claim is seen without a living owner.
    unowned: BTreeMap<String, Instant>,
    requests: JoinSet<Answer>,
    /// What the store knows of it, as far as it knows itself.
    said: v1::MemberReport,
    beating: bool,
    /// When the last beat failed, until one succeeds.
    unheard: Option<Instant>,
    /// Renewals that failed.
    unrenewed: Spell,
    leaving: Option<Instant>,
}

impl Member {
    fn new(shared: Arc<Shared>, session: String, shards: u32) -> Self {
        shared.holdings.begin(&session);
        info!(%session, "session opened");
        Self {
            names: (0..shards).map(shard_claim).chain([LEADER.to_owned()]).collect(),
            shards,
            shared,
            session,
            seen: Seen::default(),
            assignment: ring::Assignment::default(),
            seen_any: false,
            pending: BTreeMap::new(),
            unowned: BTreeMap::new(),
            requests: JoinSet::new(),
            said: v1::MemberReport::default(),
            beating: false,
            unheard: None,
            unrenewed: Spell::default(),
            leaving: None,
        }
    }

    async fn live(mut self, shutdown: &mut watch::Receiver<bool>) -> End {
        let shared = self.shared.clone();
        let mut words = words::all(shared.clone());
        // Three renewals in a TTL: two may be lost.
        let mut renew = interval(shared.config.ttl / 3);
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut revisions = shared.cache.revisions();
        let mut another_store = pin!(shared.cache.another_store());
        loop {
            tokio::select! {
                Some(word) = words.next() => self.hear(word),
                Some(answer) = self.requests.join_next() => {
                    // One that panicked would be waited for for ever.
                    let answer = answer.unwrap_or_else(|error| resume_unwind(error.into_panic()));
                    if self.answered(answer) {
                        return End::Lost;
                    }
                }
                _ = renew.tick() => self.beat(true),
                _ = tick.tick(), if self.waits_for_time() => {}
                Ok(()) = revisions.changed(), if shared.holdings.in_barrier() => {}
                () = shared.holdings.changed() => {}
                () = asked(shutdown), if self.leaving.is_none() => self.leaving = Some(Instant::now()),
                () = &mut another_store => {
                    // Its claims are others, and their epochs begin anew: what this session held says nothing there.
                    info!(session = %self.session, "the store is another one; opening another session");
                    self.end().await;
                    return End::Lost;
                }
            }
            self.act();
            self.beat(false);
            if self.has_left() {
                self.end().await;
                return End::Left;
            }
        }
    }

    async fn end(&self) {
        let ended = timeout(END_MAX, self.shared.store.end_session(&self.session, None)).await;
        info!(session = %self.session, ?ended, "ended");
    }

    /// Something may be due though nothing is heard: a refused request, an orphan, the end of a leave.
    fn waits_for_time(&self) -> bool {
        !self.pending.is_empty() || !self.unowned.is_empty() || self.leaving.is_some() || self.unheard.is_some()
    }

    /// Leaving, and nothing is held or being asked for, or nobody takes it, or it took too long.
    fn has_left(&self) -> bool {
        let Some(since) = self.leaving else { return false };
        let alone = !self.seen.controllers.iter().any(|(session, peer)| *session != self.session && peer.ready);
        let holdings = &self.shared.holdings;
        let asking = self.pending.values().any(Option::is_none);
        let done = holdings.is_idle() && !asking && (alone || holdings.is_empty());
        done || since.elapsed() > self.shared.config.leave_timeout
    }

    fn hear(&mut self, word: Word) {
        match word {
            Word::State(state) => self.see(&state),
            Word::Broken => {
                // Whoever answers next may know nothing of what was said: a store whose sessions ended with its process.
                self.said = v1::MemberReport::default();
                self.shared.cache.set_live_since_now();
            }
        }
    }

    fn see(&mut self, state: &v1::Coordination) {
        self.seen = Seen::of(state);
        self.assignment = self.seen.assignment(&self.names);
        self.seen_any = true;
        self.pending.retain(|_, cooling| cooling.is_none());
        let agents = state.members.iter().filter(|m| m.role == "agent").map(|m| m.name.clone()).collect();
        let changed = self.shared.cache.set_agents(agents);
        if !changed.is_empty() {
            self.shared.enqueue_claim(LEADER);
        }
        let free: BTreeSet<&String> = self.names.iter().filter(|n| self.seen.is_free(&self.seen.claim(n))).collect();
        let now = Instant::now();
        self.unowned.retain(|name, _| free.contains(name));
        for name in free {
            self.unowned.entry(name.clone()).or_insert(now);
        }
    }

    /// Whether the session is dead.
    fn answered(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Claim { request, result } => self.claim_answered(&request, result),
            Answer::Beat { report, result } => {
                self.beating = false;
                self.unheard = result.is_err().then(Instant::now);
                match result {
                    Ok(()) => self.said = report,
                    Err(Error::SessionEnded(_)) => {
                        warn!(session = %self.session, "the session has ended; opening another");
                        return true;
                    }
                    // The session may live on; only the store knows, and the fence asks it.
                    Err(error) => {
                        if let Some(times) = self.unrenewed.failed(1, Instant::now()) {
                            warn!(%error, times, "renewal failed");
                        }
                    }
                }
            }
        }
        false
    }

    fn claim_answered(&mut self, request: &Request, result: store::Result<v1::Claim>) {
        match result {
            Ok(claim) => {
                self.pending.remove(&request.claim);
                let stats = &self.shared.stats;
                add(if claim.owner == self.session { &stats.claims_taken } else { &stats.claims_handed_over }, 1);
                self.shared.holdings.granted(&request.claim, &Owned::of(&claim));
            }
            Err(error) => {
                debug!(claim = %request.claim, %error, "claim request refused");
                self.pending.insert(request.claim.clone(), Some(Instant::now()));
            }
        }
    }

    /// Runs the pure protocol and does what it says.
    fn act(&mut self) {
        if !self.seen_any {
            return;
        }
        self.pending.retain(|_, cooling| cooling.is_none_or(|since| since.elapsed() < TICK));
        for action in self.shared.holdings.decide(&self.names, &self.seen, self.local()) {
            match action {
                Action::Take(request) | Action::HandOver(request) => self.request(request),
                Action::Set(claim, hold) => self.set(claim, hold),
                Action::Drop(claim, epoch) => {
                    info!(%claim, %epoch, "not ours any more");
                    self.shared.holdings.end(&claim, epoch);
                }
            }
        }
        self.choose_shards();
    }

    fn local(&self) -> Local {
        let guard = self.shared.config.orphan_guard;
        Local {
            cache: self.shared.cache.revision(),
            busy: BTreeSet::new(),
            pending: self.pending.keys().cloned().collect(),
            orphans: self.unowned.iter().filter(|(_, since)| since.elapsed() > guard).map(|(n, _)| n.clone()).collect(),
        }
    }

    fn set(&mut self, claim: String, hold: Hold) {
        let active = hold.phase == Phase::Active;
        // Its resources must be here too: a barrier on a revision says nothing of a shard that isn't watched yet.
        if active && !self.is_warm(&claim) {
            return;
        }
        let was = self.shared.holdings.set(&claim, hold.clone());
        if was.as_ref() != Some(&hold) {
            // More may follow at once: a hand-over, once it drains.
            self.shared.holdings.look_again();
        }
        // What came up while it was in the barrier, or draining, was passed over.
        if active && was.is_none_or(|before| before.phase != Phase::Active) {
            debug!(%claim, epoch = %hold.epoch, "owned");
            if claim == LEADER {
                self.shared.cache.set_live_since_now();
            }
            self.shared.enqueue_claim(&claim);
        }
    }

    fn is_warm(&self, claim: &str) -> bool {
        match shard_of_claim(claim) {
            Some(shard) => self.shared.cache.covers(shard),
            None => self.shared.cache.covers_all(&(0..self.shards).collect::<Vec<u32>>()),
        }
    }

    fn request(&mut self, request: Request) {
        let in_flight = self.pending.values().filter(|cooling| cooling.is_none()).count();
        if in_flight >= self.shared.config.claims_in_flight {
            return;
        }
        self.pending.insert(request.claim.clone(), None);
        let (store, patience) = (self.shared.store.clone(), self.shared.config.commit_timeout);
        self.requests.spawn(async move {
            let answer = timeout(patience, store.change_claim((&request).into())).await;
            let result = answer.unwrap_or_else(|_| Err(Error::OutcomeUnknown("no answer in time".into())));
            Answer::Claim { request, result }
        });
    }

    /// Watches what it holds and what it should hold; the leader watches everything.
    fn choose_shards(&mut self) {
        let held = self.shared.holdings.held();
        let mine = |name: &&String| held.contains(*name) || self.assignment.get(*name) == Some(&self.session);
        let names: Vec<&String> = self.names.iter().filter(mine).collect();
        let shards: Vec<u32> = match names.iter().any(|n| *n == LEADER) {
            true => (0..self.shards).collect(),
            false => names.iter().filter_map(|n| shard_of_claim(n)).collect(),
        };
        self.shared.wanted.send_if_modified(|wanted| {
            let changed = wanted.as_deref() != Some(&shards);
            *wanted = Some(Arc::new(shards));
            changed
        });
    }

    /// Renews; or says something new of itself at once. Each renewal says all of it, so that whatever was lost, or came
    /// late and replaced something newer, is right again a third of a TTL later.
    fn beat(&mut self, renew: bool) {
        let report = self.report();
        let cooling = self.unheard.is_some_and(|since| since.elapsed() < TICK);
        let news = report != self.said && !cooling;
        if self.beating || !(renew || news) {
            return;
        }
        self.beating = true;
        let said = self.with_depths(report.clone());
        let (store, session, ttl) = (self.shared.store.clone(), self.session.clone(), self.shared.config.ttl);
        self.requests.spawn(async move {
            let result = timeout(ttl, store.beat(&session, Some(said))).await;
            let result = result.unwrap_or_else(|_| Err(Error::Unavailable("no answer in time".into())));
            Answer::Beat { report, result }
        });
    }

    /// Warm is said only of what it should own and doesn't yet, and not while an older session's step is in flight: until
    /// that ends its key can't be worked on here. Sweeps are said only of what it owns.
    fn report(&self) -> v1::MemberReport {
        // Depths move all the time: they are not news, and are filled in when something is said anyway.
        let occupied = self.shared.holdings.occupied();
        let due = |name: &&String| self.assignment.get(*name) == Some(&self.session) && !occupied.contains(*name);
        let warm = self.names.iter().filter(due).filter(|name| self.is_warm(name)).cloned().collect();
        let (shards, owned_since_millis) = self.shared.holdings.tenures(self.shared.cache.now());
        v1::MemberReport {
            ready: self.seen_any,
            leaving: self.leaving.is_some(),
            warm,
            shards,
            sweep_interval: self.shared.config.sweep.try_into().ok(),
            owned_since_millis,
        }
    }

    /// Counts the waiting keys of each shard.
    fn with_depths(&self, mut report: v1::MemberReport) -> v1::MemberReport {
        let waiting = self.shared.queue.waiting();
        let mut depths: HashMap<u32, u32> = HashMap::new();
        self.shared.cache.world(|world| {
            for shard in waiting.iter().filter_map(|key| Some(world.get(key)?.metadata().shard)) {
                *depths.entry(shard).or_default() += 1;
            }
        });
        for shard in &mut report.shards {
            shard.queue_depth = depths.get(&shard.shard).copied().unwrap_or(0);
        }
        report
    }
}

#[cfg(test)]
mod tests;
