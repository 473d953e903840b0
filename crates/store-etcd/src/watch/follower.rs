//! The task behind a watch: opens etcd's watch again whenever it ends, and hands out what the assembler makes of it.

use std::{sync::Arc, time::Duration};

use etcd_client::{WatchOptions as EtcdOptions, WatchResponse, WatchStream};
use model::{Filter, Object, Revision, Time};
use store::{Bookmark, Class, Error, Group, Result, ResumeToken, WatchItem, WatchOptions};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

use super::{
    OPEN_MAX,
    age::Age,
    assembler::{Assembler, Event, Taken},
    lag::Lag,
    view::View,
};
use crate::{
    Failure, backend::Inner, counters::Relist, layout::range_end, pause::Backoff, pool::Current, probe::Seen,
    read::Everything,
};

/// Readers should hear that often that they are up to date.
const BOOKMARK_EVERY: Duration = Duration::from_secs(5);
/// Between attempts to watch or list, so that a dead etcd isn't asked in a hot loop.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Objects in one part of a snapshot.
const SNAPSHOT_PART_MAX: usize = 500;
/// Keys named in the log when a watch lied.
const NAMED_MAX: usize = 5;

type Out = mpsc::Sender<Result<WatchItem>>;

/// What a watch begins with.
pub struct Start {
    incarnation: String,
    everything: Everything,
    /// The reader has all of it already.
    resumed: bool,
}

/// Why a watch ends for good.
enum Stop {
    ReaderGone,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Why one of etcd's watches ended.
enum Ended {
    Broken(String),
    /// Another member is in use now.
    Moved,
    Relist(Relist),
}

impl Start {
    pub async fn of(store: &Inner, options: &WatchOptions) -> Result<Self> {
        let incarnation = store.record().await?.cluster.incarnation;
        let token = options.resume.as_ref().filter(|token| token.incarnation == incarnation);
        let resumed = match token {
            Some(token) => resume(store, token).await?,
            None => None,
        };
        Ok(match resumed {
            Some(everything) => Self { incarnation, everything, resumed: true },
            None => Self { incarnation, everything: store.everything(None).await?, resumed: false },
        })
    }

    pub async fn run(self, store: Arc<Inner>, options: WatchOptions, out: Out) {
        let stop = match Follower::start(self, store, options, out.clone()).await {
            Ok(mut follower) => follower.run().await,
            Err(stop) => stop,
        };
        if let Stop::Failed(error) = stop {
            out.send(Err(error)).await.ok(); // A reader that is gone needs no reason.
        }
    }
}

/// What the reader of that token has; none where it must start anew.
async fn resume(store: &Inner, token: &ResumeToken) -> Result<Option<Everything>> {
    let at = token.revision;
    if at > store.head_at(None).await?.revision {
        return Ok(None); // From a history that this store never had.
    }
    let everything = match store.everything(Some(at)).await {
        // Compaction may be ahead of the last commit: then what is now is what was then.
        Err(Error::Compacted(_)) => store.everything(None).await?,
        result => result?,
    };
    Ok(Some(everything).filter(|everything| everything.head.revision == at))
}

struct Follower {
    store: Arc<Inner>,
    out: Out,
    incarnation: String,
    filter: Filter,
    view: View,
    assembler: Assembler,
    /// etcd's revision that the next watch starts from.
    next: Revision,
    /// A bookmark is owed once this is reached.
    owed: Option<Revision>,
    bookmarked: Instant,
    lag: Lag,
    age: Age,
    backoff: Backoff,
}

impl Follower {
    async fn start(start: Start, store: Arc<Inner>, options: WatchOptions, out: Out) -> Result<Self, Stop> {
        let Start { incarnation, everything, resumed } = start;
        let (head, next) = (everything.head, Revision(everything.etcd.0 + 1));
        let (view, objects) = View::new(options.filter.clone(), store.uids.clone(), everything)?;
        let owed = (options.min_revision > Revision::ZERO).then_some(options.min_revision);
        let (filter, assembler) = (options.filter, Assembler::after(head));
        let (bookmarked, lag, age) = (Instant::now(), Lag::default(), Age::default());
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        let mut follower =
            Self { store, out, incarnation, filter, view, assembler, next, owed, bookmarked, lag, age, backoff };
        if !resumed {
            follower.send_snapshot(objects).await?;
        }
        follower.pay_bookmark().await?;
        Ok(follower)
    }

    async fn run(&mut self) -> Stop {
        loop {
            let ended = match self.follow().await {
                Ok(ended) => ended,
                Err(stop) => return stop,
            };
            let healed = match ended {
                Ended::Relist(cause) => self.relist(cause).await,
                Ended::Moved => Ok(()),
                Ended::Broken(why) => {
                    debug!(why, "watch of objects broke");
                    self.pause().await
                }
            };
            if let Err(stop) = healed {
                return stop;
            }
            self.store.counters.reopened();
        }
    }

    /// Follows one of etcd's watches until it ends.
    async fn follow(&mut self) -> Result<Ended, Stop> {
        let (current, mut watch) = match self.open().await {
            Ok(opened) => opened,
            Err(failure) => return Ok(Ended::Broken(format!("{failure:?}"))),
        };
        if let Some(ended) = self.check_incarnation().await? {
            return Ok(ended);
        }
        // What another watch still owed has as much time again with this one.
        self.lag = Lag::default();
        let mut seen = self.store.seen.clone();
        seen.mark_changed();
        loop {
            tokio::select! {
                // What came while a slow reader was waited for, or before the probe's answer, isn't late.
                biased;
                message = watch.message() => {
                    let ended = match message {
                        Ok(Some(message)) => self.take(&message).await?,
                        Ok(None) => Some(Ended::Broken("it ended".into())),
                        Err(error) => Some(Ended::Broken(error.to_string())),
                    };
                    if let Some(ended) = ended {
                        return Ok(ended);
                    }
                }
                changed = seen.changed() => {
                    let seen = *seen.borrow_and_update();
                    if changed.is_err() {
                        // Nothing tells any more what the watch should have delivered.
                        return Ok(Ended::Broken("the probe of etcd ended".into()));
                    }
                    if self.store.pool.turn() != current.turn {
                        return Ok(Ended::Moved);
                    }
                    if let Some(ended) = self.compare(seen).await? {
                        return Ok(ended);
                    }
                }
                () = self.out.closed() => return Err(Stop::ReaderGone),
            }
        }
    }

    async fn open(&self) -> Result<(Current, WatchStream), Failure> {
        let current = self.store.pool.current().await?;
        let prefix = self.store.layout.watched();
        let options = EtcdOptions::new().with_range(range_end(&prefix)).with_start_revision(self.next.0);
        let mut client = current.connection.watch.clone();
        let opening = tokio::time::timeout(OPEN_MAX, client.watch(prefix, Some(options))).await;
        let opened = opening.map_err(|_| Failure::timed_out("opening a watch")).and_then(|w| Ok(w?));
        match opened {
            Ok(watch) => Ok((current, watch)),
            Err(failure) => {
                self.store.pool.pass_over(current.turn, &failure);
                Err(failure)
            }
        }
    }

    /// While no watch was open the store may have been replaced by another, or restored.
    async fn check_incarnation(&mut self) -> Result<Option<Ended>, Stop> {
        let record = match self.store.record_anew().await {
            Ok(record) => record,
            Err(error) => return broken(error).map(Some),
        };
        if record.cluster.incarnation == self.incarnation {
            return Ok(None);
        }
        warn!(was = self.incarnation, is = record.cluster.incarnation, "the store is of another incarnation");
        let everything = match self.store.everything(None).await {
            Ok(everything) => everything,
            Err(error) => return broken(error).map(Some),
        };
        self.incarnation = record.cluster.incarnation;
        self.move_to(&everything);
        self.store.uids.forget();
        let (view, objects) = View::new(self.filter.clone(), self.store.uids.clone(), everything)?;
        self.view = view;
        self.send_snapshot(objects).await?;
        Ok(Some(Ended::Moved))
    }

    async fn take(&mut self, message: &WatchResponse) -> Result<Option<Ended>, Stop> {
        if message.canceled() {
            return Ok(Some(match message.compact_revision() {
                0 => Ended::Broken(message.cancel_reason().into()),
                _ => Ended::Relist(Relist::Compacted),
            }));
        }
        for event in message.events() {
            let Some(event) = event.kv().and_then(|kv| Event::read(&self.store.layout, event.event_type(), kv)) else {
                continue;
            };
            match self.assembler.take(event) {
                Taken::Nothing => {}
                Taken::Repeated => self.store.counters.repeated(1),
                Taken::Lie(cause) => return Ok(Some(Ended::Relist(cause))),
                Taken::Commit(commit) => {
                    self.next = Revision(commit.revision.0 + 1);
                    self.backoff.reset();
                    let group = self.view.apply(commit)?;
                    self.send_group(group).await?;
                }
            }
        }
        Ok(None)
    }

    /// What was delivered with what `head` proves.
    async fn compare(&mut self, seen: Seen) -> Result<Option<Ended>, Stop> {
        let here = self.assembler.head().revision;
        let Some(head) = seen.head else { return Ok(None) };
        if self.age.probed(head.revision, here) {
            return Err(restored(head.revision, here).into());
        }
        if self.lag.probed(Instant::now(), head.revision, here) {
            return Ok(Some(Ended::Relist(Relist::Lag)));
        }
        if head.revision == here && self.bookmarked.elapsed() >= BOOKMARK_EVERY {
            self.backoff.reset();
            self.send_bookmark().await?;
        }
        Ok(None)
    }

    /// Lists everything and tells the reader what changed since what it was told.
    async fn relist(&mut self, cause: Relist) -> Result<(), Stop> {
        let everything = loop {
            match self.store.everything(None).await {
                Ok(everything) if everything.head.revision >= self.assembler.head().revision => break everything,
                Ok(stale) => {
                    let (shown, here) = (stale.head.revision, self.assembler.head().revision);
                    if self.age.shown(shown, here) {
                        return Err(restored(shown, here).into());
                    }
                }
                Err(error) => {
                    broken(error.clone())?;
                    debug!(%error, "etcd can't be listed");
                }
            }
            self.pause().await?;
        };
        let (before, now) = (self.assembler.head(), everything.head);
        self.move_to(&everything);
        if now == before {
            return Ok(()); // Compaction went past the last commit; nothing is missing.
        }
        self.store.counters.relisted(cause);
        let group = self.view.catch_up(everything)?;
        report(cause, before.revision, now.revision, group.as_ref());
        self.send_group(group).await
    }

    fn move_to(&mut self, everything: &Everything) {
        self.assembler = Assembler::after(everything.head);
        self.next = Revision(everything.etcd.0 + 1);
        self.lag = Lag::default();
    }

    async fn send_snapshot(&mut self, objects: Vec<Object>) -> Result<(), Stop> {
        let (incarnation, revision) = (self.incarnation.clone(), self.assembler.head().revision);
        self.send(WatchItem::SnapshotStart { incarnation, revision, time: Time::default(), partial: None }).await?;
        for part in objects.chunks(SNAPSHOT_PART_MAX) {
            self.send(WatchItem::Snapshot(part.to_vec())).await?;
        }
        self.send(WatchItem::SnapshotEnd { revision }).await
    }

    async fn send_group(&mut self, group: Option<Group>) -> Result<(), Stop> {
        if let Some(group) = group {
            self.send(WatchItem::Changes(group)).await?;
        }
        self.pay_bookmark().await
    }

    async fn pay_bookmark(&mut self) -> Result<(), Stop> {
        match self.owed {
            Some(owed) if self.assembler.head().revision >= owed => self.send_bookmark().await,
            _ => Ok(()),
        }
    }

    async fn send_bookmark(&mut self) -> Result<(), Stop> {
        let (incarnation, revision) = (self.incarnation.clone(), self.assembler.head().revision);
        self.owed = self.owed.filter(|owed| *owed > revision);
        self.bookmarked = Instant::now();
        self.send(WatchItem::Bookmark(Bookmark { incarnation, revision, ..Bookmark::default() })).await
    }

    async fn send(&self, item: WatchItem) -> Result<(), Stop> {
        self.out.send(Ok(item)).await.map_err(|_| Stop::ReaderGone)
    }

    /// Longer each time, until something is heard of etcd again.
    async fn pause(&mut self) -> Result<(), Stop> {
        let pause = self.backoff.pause();
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = self.out.closed() => Err(Stop::ReaderGone),
        }
    }
}

/// What may pass is tried again; the reader is told of the rest, and of what must be done about it.
fn broken(error: Error) -> Result<Ended, Stop> {
    match error.class() {
        Class::Terminal => Err(error.into()),
        _ => Ok(Ended::Broken(error.to_string())),
    }
}

/// A state that stays older than what the reader was told is another history: it must start over, and know why.
fn restored(now: Revision, here: Revision) -> Error {
    Error::Corrupt(format!("etcd is at revision {now}, but told of {here} before: was it restored from a backup?"))
}

fn report(cause: Relist, from: Revision, to: Revision, group: Option<&Group>) {
    let changes = group.map_or(&[][..], |group| &group.changes);
    let named: Vec<String> = changes.iter().take(NAMED_MAX).map(|change| change.key().to_string()).collect();
    let (changed, named) = (changes.len(), named.join(" "));
    match cause {
        Relist::Compacted => info!(%from, %to, changed, named, "listed anew after compaction"),
        cause => warn!(?cause, %from, %to, changed, named, "etcd's watch left something out; listed anew"),
    }
}
