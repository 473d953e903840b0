//! This replica as a member: its session, its claims, and which shards it watches. The shell around `claims.rs`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::v1;
use futures::StreamExt;
use model::{Epoch, Fence, Key, LEADER, Time, shard_claim, shard_of_claim};
use store::{Error, SessionOpen};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::{debug, info, warn};

use crate::{
    Shared,
    claims::{self, Action, Hold, Holds, Local, Owned, Phase, Request, Seen},
    execute::MOVES_MAX,
    ring,
    stats::add,
    tenure::Tenures,
};

/// How often decisions that wait for time (orphan guard, retries of claim requests) are made anew.
const TICK: Duration = Duration::from_millis(100);

/// What this replica holds, as workers see it. Whoever looks at the cache may ask it, so nobody who holds its lock asks
/// the cache: with a writer waiting between them, both would wait for ever.
#[derive(Default)]
pub struct Holdings {
    inner: Mutex<Held>,
    /// A step ended, or a claim was lost.
    changed: Notify,
}

#[derive(Default)]
struct Held {
    session: String,
    holds: Holds,
    busy: HashMap<String, usize>,
    /// Moves in a step, where conflicts made them fewer.
    moves: HashMap<Key, usize>,
    checked: bool,
    tenures: Tenures,
}

/// A look in work under a claim.
pub struct Busy<'a> {
    holdings: &'a Holdings,
    claim: String,
    /// What its step is compared with: the epoch that was active when the look began, and no later one, whose barrier
    /// the cache may not have reached.
    pub fence: Fence,
    epoch: Epoch,
}

impl Busy<'_> {
    pub fn claim(&self) -> &str {
        &self.claim
    }

    /// The store refused the step.
    pub fn fenced(&self) {
        self.holdings.lock().holds.end(&self.claim, self.epoch);
        self.holdings.changed.notify_one();
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut held = self.holdings.lock();
        if let Some(count) = held.busy.get_mut(&self.claim) {
            *count -= 1;
            if *count == 0 {
                held.busy.remove(&self.claim);
                // It may be handed over now; or handed to us, where the step was an older session's.
                let waits = !held.holds.is_active(&self.claim);
                drop(held);
                if waits {
                    self.holdings.changed.notify_one();
                }
            }
        }
    }
}

impl Holdings {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a look under the claim, if it's active.
    pub fn enter(&self, claim: &str) -> Option<Busy<'_>> {
        let mut held = self.lock();
        let epoch = held.holds.get(claim).filter(|hold| hold.phase == Phase::Active)?.epoch;
        *held.busy.entry(claim.to_owned()).or_default() += 1;
        let fence = Fence::Claim { claim: claim.to_owned(), epoch, session: held.session.clone() };
        Some(Busy { holdings: self, claim: claim.to_owned(), fence, epoch })
    }

    pub fn is_active(&self, claim: &str) -> bool {
        self.lock().holds.is_active(claim)
    }

    /// Those that it may act on.
    pub fn shards(&self) -> BTreeSet<u32> {
        let held = self.lock();
        let active = held.holds.iter().filter(|(_, hold)| hold.phase == Phase::Active);
        active.filter_map(|(claim, _)| shard_of_claim(claim)).collect()
    }

    pub fn moves_max(&self, key: &Key) -> usize {
        self.lock().moves.get(key).copied().unwrap_or(MOVES_MAX)
    }

    pub fn halve_moves(&self, key: &Key) {
        let mut held = self.lock();
        let moves = held.moves.entry(key.clone()).or_insert(MOVES_MAX);
        *moves = (*moves / 2).max(1);
    }

    pub fn reset_moves(&self, key: &Key) {
        self.lock().moves.remove(key);
    }

    pub fn set_checked(&self) {
        self.lock().checked = true;
    }

    pub fn take_checked(&self) -> bool {
        std::mem::take(&mut self.lock().checked)
    }

    /// More may be due: more is covered, or a hold changed.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Everything of these shards that the sweep put up until now was looked at.
    pub fn swept(&self, shards: &BTreeSet<u32>, now: Time) {
        self.lock().tenures.swept(shards, now);
        self.changed.notify_one();
    }
}

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
    while !*shutdown.borrow() {
        let session = open(&shared).await;
        let member = Member::new(shared.clone(), session, shards);
        if let End::Left = member.live(&mut shutdown).await {
            return;
        }
        shared.holdings.lock().holds = Holds::default();
        shared.queue.retain(|_| false);
    }
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
            ttl: shared.config.ttl,
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
    said: v1::MemberReport,
    beating: bool,
    leaving: Option<Instant>,
}

impl Member {
    fn new(shared: Arc<Shared>, session: String, shards: u32) -> Self {
        shared.holdings.lock().session = session.clone();
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
            leaving: None,
        }
    }

    async fn live(mut self, shutdown: &mut watch::Receiver<bool>) -> End {
        let shared = self.shared.clone();
        let mut coordination = crate::retry(&shared.config, || shared.store.coordination()).await;
        // Three renewals in a TTL: two may be lost.
        let mut renew = interval(shared.config.ttl / 3);
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut revisions = shared.cache.revisions();
        loop {
            tokio::select! {
                word = coordination.next() => match word {
                    Some(Ok(state)) => self.see(&state),
                    _ => {
                        coordination = crate::retry(&shared.config, || shared.store.coordination()).await;
                        shared.cache.set_live_since_now();
                    }
                },
                Some(answer) = self.requests.join_next() => if let Ok(answer) = answer
                    && self.answered(answer) { return End::Lost },
                _ = renew.tick() => self.beat(true),
                _ = tick.tick(), if self.waits_for_time() => {}
                Ok(()) = revisions.changed(), if self.in_barrier() => {}
                () = shared.holdings.changed.notified() => {}
                // A sender that is gone means that whoever ran us is.
                _ = shutdown.changed(), if self.leaving.is_none() => self.leaving = Some(Instant::now()),
            }
            self.act();
            self.beat(false);
            if self.has_left() {
                let ended = shared.store.end_session(&self.session, None).await;
                info!(?ended, "left");
                return End::Left;
            }
        }
    }

    /// Something may be due though nothing is heard: a refused request, an orphan, the end of a leave.
    fn waits_for_time(&self) -> bool {
        !self.pending.is_empty() || !self.unowned.is_empty() || self.leaving.is_some()
    }

    fn in_barrier(&self) -> bool {
        self.shared.holdings.lock().holds.iter().any(|(_, hold)| hold.phase == Phase::Barrier)
    }

    /// Leaving, and nothing is held, or nobody takes it, or it took too long.
    fn has_left(&self) -> bool {
        let Some(since) = self.leaving else { return false };
        let alone = !self.seen.controllers.iter().any(|(session, peer)| *session != self.session && peer.ready);
        let held = self.shared.holdings.lock();
        let idle = held.busy.is_empty();
        (idle && (alone || held.holds.is_empty())) || since.elapsed() > self.shared.config.leave_timeout
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
                match result {
                    Ok(()) => self.said = report,
                    Err(Error::SessionEnded(_)) => {
                        warn!(session = %self.session, "the session has ended; opening another");
                        return true;
                    }
                    // The session may live on; only the store knows, and the fence asks it.
                    Err(error) => warn!(%error, "renewal failed"),
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
                self.shared.holdings.lock().holds.granted(&self.session, &request.claim, &Owned::of(&claim));
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
        let actions = {
            let held = self.shared.holdings.lock();
            claims::decide(&self.session, &self.names, &self.seen, &held.holds, &self.local(&held))
        };
        for action in actions {
            match action {
                Action::Take(request) | Action::HandOver(request) => self.request(request),
                Action::Set(claim, hold) => self.set(claim, hold),
                Action::Drop(claim, epoch) => {
                    info!(%claim, %epoch, "not ours any more");
                    self.shared.holdings.lock().holds.end(&claim, epoch);
                    self.shared.holdings.look_again();
                }
            }
        }
        self.choose_shards();
    }

    fn local(&self, held: &Held) -> Local {
        let guard = self.shared.config.orphan_guard;
        Local {
            cache: self.shared.cache.revision(),
            busy: held.busy.keys().cloned().collect(),
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
        let was = self.shared.holdings.lock().holds.set(&claim, hold.clone());
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
        let (store, timeout) = (self.shared.store.clone(), self.shared.config.commit_timeout);
        self.requests.spawn(async move {
            let answer = tokio::time::timeout(timeout, store.change_claim((&request).into())).await;
            let result = answer.unwrap_or_else(|_| Err(Error::OutcomeUnknown("no answer in time".into())));
            Answer::Claim { request, result }
        });
    }

    /// Watches what it holds and what it should hold; the leader watches everything.
    fn choose_shards(&mut self) {
        let held = self.shared.holdings.lock();
        let mine = |name: &&String| held.holds.contains(name) || self.assignment.get(*name) == Some(&self.session);
        let names: Vec<&String> = self.names.iter().filter(mine).collect();
        let shards: Vec<u32> = match names.iter().any(|n| *n == LEADER) {
            true => (0..self.shards).collect(),
            false => names.iter().filter_map(|n| shard_of_claim(n)).collect(),
        };
        drop(held);
        self.shared.wanted.send_if_modified(|wanted| {
            let changed = wanted.as_deref() != Some(&shards);
            *wanted = Some(Arc::new(shards));
            changed
        });
    }

    /// Renews; or says something new of itself at once.
    fn beat(&mut self, renew: bool) {
        let report = self.report();
        let news = report != self.said;
        if self.beating || !(renew || news) {
            return;
        }
        self.beating = true;
        let said = self.with_depths(report.clone());
        let (store, session, timeout) = (self.shared.store.clone(), self.session.clone(), self.shared.config.ttl);
        self.requests.spawn(async move {
            let beat = store.beat(&session, news.then_some(said));
            let result = tokio::time::timeout(timeout, beat).await;
            let result = result.unwrap_or_else(|_| Err(Error::Unavailable("no answer in time".into())));
            Answer::Beat { report, result }
        });
    }

    /// Warm is said only of what it should own and doesn't yet, and not while an older session's step is in flight: until
    /// that ends its key can't be worked on here. Sweeps are said only of what it owns.
    fn report(&self) -> v1::MemberReport {
        // Depths move all the time: they are not news, and are filled in when something is said anyway.
        let assignment = self.seen.assignment(&self.names);
        let due: Vec<&String> = {
            let held = self.shared.holdings.lock();
            let mine = |name: &&String| assignment.get(*name) == Some(&self.session);
            let free = |name: &&String| !held.holds.contains(name) && !held.busy.contains_key(*name);
            self.names.iter().filter(mine).filter(free).collect()
        };
        let warm = due.into_iter().filter(|name| self.is_warm(name)).cloned().collect();
        let now = self.shared.cache.now();
        let mut held = self.shared.holdings.lock();
        let held = &mut *held;
        if let Some(now) = now {
            held.tenures.update(held.holds.iter(), now);
        }
        v1::MemberReport {
            ready: self.seen_any,
            leaving: self.leaving.is_some(),
            warm,
            shards: held.tenures.shards(),
            sweep_interval: self.shared.config.sweep.try_into().ok(),
            owned_since_millis: held.tenures.owned_since_millis(),
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
