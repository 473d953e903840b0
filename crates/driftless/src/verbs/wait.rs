//! `driftless wait`: by watch, never by polling; never from a status older than the declared generation, nor from one
//! that nobody vouches for any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::v1;
use futures::StreamExt;
use model::{Filter, Key, Revision, Time};
use tokio::time::{Instant, sleep_until};

use super::{apply, users::Used};
use crate::{
    client::Client,
    exit::Trouble,
    follow::{Follow, Update},
    output::{self, Progress},
    standing::{self, Goal, Head},
    vouched::{self, Vouched},
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless wait service web --for ready --timeout 30s
  driftless wait service/web --for deleted
  driftless wait service web --for Progressing=False")]
pub struct Args {
    /// KIND NAME..., or KIND/NAME...
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    /// ready (the status speaks of the declared generation, and says Ready), deleted, or a condition: TYPE or
    /// TYPE=True|False|Unknown.
    #[arg(long = "for", default_value = "ready", value_name = "GOAL", value_parser = Goal::parse)]
    goal: Goal,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    #[command(flatten)]
    hold: Hold,
    /// How long to wait; then exit with 5.
    #[arg(long, default_value = "60s", value_parser = words::duration)]
    timeout: Duration,
}

/// What is waited for, and for how long.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub goal: Goal,
    pub hold: Hold,
    pub timeout: Duration,
    pub failure: Failure,
    /// A status that speaks of an older one of these says nothing of what is waited for.
    pub used: Vec<Used>,
    /// Says so where what is waited for isn't asked for any more.
    pub taken_back: fn(&v1::Resource) -> Option<String>,
}

/// What becomes of the wait when a controller judges that what is declared won't come about by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It goes on: somebody may be about to help.
    MayHeal,
    /// It ends, as a failure, where that was said after this revision.
    Ends(Revision),
}

impl Failure {
    fn ends(self, said_at: i64) -> bool {
        matches!(self, Self::Ends(after) if said_at > after.0)
    }
}

impl Waiting {
    /// Patiently, without a hold.
    pub fn new(goal: Goal, timeout: Duration) -> Self {
        let (hold, failure) = (Hold::default(), Failure::MayHeal);
        Self { goal, hold, timeout, failure, used: Vec::new(), taken_back: |_| None }
    }

    /// What its status doesn't speak of yet, in words.
    fn outdated(&self, resource: &v1::Resource) -> Option<String> {
        self.used.iter().find_map(|used| {
            let (name, declared, seen) = (words::short(&used.key), used.generation, used.outdated(resource)?);
            Some(format!("generation {declared} of {name} is not yet looked at (the status is of {seen})"))
        })
    }

    /// Until a rollout is complete, or has failed.
    pub fn rollout(timeout: Duration) -> Self {
        Self { failure: Failure::Ends(Revision::ZERO), ..Self::new(Goal::ready(), timeout) }
    }
}

/// How long it must have been ready until that is believed.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Hold {
    /// How long it must stay ready before that is believed [default: 2s for what has no readiness check, else 0s]. A process
    /// that first crashes later is believed ready until then: give it a readiness check, or rollout.min_ready.
    #[arg(long, value_name = "DURATION", value_parser = words::duration)]
    hold: Option<Duration>,
}

impl Hold {
    fn of(self, resource: &v1::Resource) -> Duration {
        let kind = kinds::kind(apply::key(resource).kind());
        self.hold.unwrap_or_else(|| kind.map_or(Duration::ZERO, |kind| kind.proof(resource)))
    }
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let keys = words::keys(&args.words, &args.namespace)?;
    // Any generation will do: what's declared when the watch starts.
    let wanted = keys.into_iter().map(|key| (key, Wanted::default())).collect();
    wait(client, wanted, &Waiting { hold: args.hold, ..Waiting::new(args.goal, args.timeout) }).await
}

/// Waits for these resources, as they were answered by a server: not for an older generation, or another uid.
pub async fn until(client: &Client, resources: Vec<v1::Resource>, waiting: &Waiting) -> anyhow::Result<()> {
    let wanted = resources.into_iter().map(|r| {
        let metadata = r.metadata.clone().unwrap_or_default();
        (apply::key(&r), Wanted { uid: metadata.uid, revision: metadata.revision, seen: Some(r), ..Wanted::default() })
    });
    wait(client, wanted.collect(), waiting).await
}

#[derive(Default)]
struct Wanted {
    /// Empty: the first one seen.
    uid: String,
    /// What is older doesn't count.
    revision: i64,
    seen: Option<v1::Resource>,
    /// The watch spoke of it.
    told: bool,
    /// Why its owner doesn't let it go, where it must go by being asked.
    held_back: Option<String>,
    /// It's as wanted, but not for long enough yet.
    held: Option<Held>,
}

/// It's as wanted since a change of that time, and that is believed from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    since: Time,
    until: Instant,
}

impl Held {
    /// `age`: how long it has been so, by the server's clock.
    fn next(before: Option<Self>, since: Time, age: Duration, hold: Duration, now: Instant) -> Self {
        match before {
            Some(before) if before.since == since => before,
            _ => Self { since, until: now + hold.saturating_sub(age) },
        }
    }
}

async fn wait(client: &Client, mut wanted: BTreeMap<Key, Wanted>, waiting: &Waiting) -> anyhow::Result<()> {
    let timeout = waiting.timeout;
    let mut progress = Progress::start();
    let met = tokio::time::timeout(timeout, follow(client, &mut wanted, waiting, &mut progress)).await;
    progress.end();
    match met {
        Ok(result) => result,
        Err(_) => {
            let reasons: Vec<String> = wanted.iter().map(|(key, wanted)| unmet(key, wanted, waiting)).collect();
            Err(Trouble::TimedOut(format!("timed out after {timeout:?}: {}", reasons.join("; "))).into())
        }
    }
}

fn unmet(key: &Key, wanted: &Wanted, waiting: &Waiting) -> String {
    let name = words::short(key);
    match &wanted.seen {
        Some(resource) => format!("{name} {}", told(resource, waiting, wanted.held_back.as_deref())),
        None => format!("{name} was not seen"),
    }
}

fn told(resource: &v1::Resource, waiting: &Waiting, held_back: Option<&str>) -> String {
    let words = waiting.outdated(resource).unwrap_or_else(|| standing::words(resource, &waiting.goal));
    match held_back.filter(|_| is_asked(resource)) {
        Some(why) => format!("{words}: {why}"),
        None => words,
    }
}

/// It isn't being deleted yet, since its owner decides when it goes.
fn is_asked(resource: &v1::Resource) -> bool {
    let metadata = resource.metadata.as_ref();
    let kind = metadata.filter(|m| m.deletion_time.is_none()).and_then(|m| kinds::kind(&m.kind));
    kind.is_some_and(|kind| kind.asked_to_go(resource).is_some())
}

fn owner(resource: &v1::Resource) -> Option<Key> {
    resource.metadata.as_ref()?.owner.as_ref().map(Key::of_owner)
}

/// The owners of those that were asked to go, which say what holds them; none where nothing was.
fn owners<'a>(client: &'a Client, wanted: &BTreeMap<Key, Wanted>) -> Option<Follow<'a>> {
    let asked = wanted.values().filter_map(|wanted| wanted.seen.as_ref()).filter(|resource| is_asked(resource));
    let owners: BTreeSet<Key> = asked.filter_map(owner).collect();
    (!owners.is_empty()).then(|| Follow::new(client, filter(owners.iter())))
}

async fn next(owners: &mut Option<Follow<'_>>) -> anyhow::Result<Vec<Update>> {
    match owners {
        Some(owners) => owners.next().await,
        None => std::future::pending().await,
    }
}

/// What the owners say now. Everything is to be looked at again.
fn held_back(wanted: &mut BTreeMap<Key, Wanted>, owners: Vec<Update>) -> Vec<Update> {
    for update in owners {
        let Update::Put(service) = update else { continue };
        let said = Head::of(&service).condition(kinds::service::evictions::HELD).map(|held| held.message.clone());
        let key = apply::key(&service);
        for wanted in wanted.values_mut().filter(|w| w.seen.as_ref().and_then(owner).as_ref() == Some(&key)) {
            wanted.held_back = said.clone();
        }
    }
    again(wanted)
}

/// Until nothing is wanted any more.
async fn follow(
    client: &Client,
    wanted: &mut BTreeMap<Key, Wanted>,
    waiting: &Waiting,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let goal = &waiting.goal;
    let mut follow = Follow::new(client, filter(wanted.keys()));
    let mut owners = owners(client, wanted);
    let mut states = Box::pin(vouched::follow(client));
    let mut vouched = Vouched::read(client).await?;
    while !wanted.is_empty() {
        let due = wanted.values().filter_map(|wanted| wanted.held).map(|held| held.until).min();
        let updates = tokio::select! {
            updates = follow.next() => heard(wanted, updates?),
            updates = next(&mut owners) => held_back(wanted, updates?),
            Some(newer) = states.next() => {
                vouched = newer;
                // What is ready by its status may be vouched for now.
                again(wanted)
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => again(wanted),
        };
        for update in updates {
            match update {
                Update::Put(resource) => put(wanted, *resource, waiting, &vouched, progress)?,
                Update::Gone(key) => gone(wanted, &key, goal)?,
                Update::Complete(revision) => absent(wanted, revision, goal)?,
            }
        }
    }
    Ok(())
}

/// The watch spoke of these; what it doesn't name by the end of its snapshot isn't there.
fn heard(wanted: &mut BTreeMap<Key, Wanted>, updates: Vec<Update>) -> Vec<Update> {
    for update in &updates {
        if let Update::Put(resource) = update
            && let Some(want) = wanted.get_mut(&apply::key(resource))
        {
            want.told = true;
        }
    }
    updates
}

/// Everything is to be looked at again.
fn again(wanted: &mut BTreeMap<Key, Wanted>) -> Vec<Update> {
    wanted.values_mut().filter_map(|wanted| wanted.seen.take()).map(|seen| Update::Put(Box::new(seen))).collect()
}

/// As narrow as one filter can be.
fn filter<'a>(keys: impl Iterator<Item = &'a Key>) -> Filter {
    let keys: Vec<&Key> = keys.collect();
    let mut kinds: Vec<String> = keys.iter().map(|k| k.kind().to_owned()).collect();
    kinds.sort();
    kinds.dedup();
    let only = |part: fn(&Key) -> &str| match keys.split_first() {
        Some((first, rest)) if rest.iter().all(|k| part(k) == part(first)) => part(first).to_owned(),
        _ => String::new(),
    };
    Filter { kinds, namespace: only(Key::namespace), name: only(Key::name), ..Filter::default() }
}

fn put(
    wanted: &mut BTreeMap<Key, Wanted>,
    resource: v1::Resource,
    waiting: &Waiting,
    vouched: &Vouched,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let goal = &waiting.goal;
    let key = apply::key(&resource);
    let Some(want) = wanted.get_mut(&key) else { return Ok(()) };
    let metadata = resource.metadata.clone().unwrap_or_default();
    if metadata.revision < want.revision {
        return Ok(());
    }
    if !want.uid.is_empty() && want.uid != metadata.uid {
        return gone(wanted, &key, goal);
    }
    want.uid = metadata.uid;
    let shown = vouched.show(resource.clone());
    progress.show(&words::short(&key), &told(&shown, waiting, want.held_back.as_deref()));
    if let Some(told) = (waiting.taken_back)(&shown) {
        return Err(Trouble::TakenBack(told).into());
    }
    if waiting.outdated(&shown).is_some() {
        (want.held, want.seen) = (None, Some(resource));
        return Ok(());
    }
    if let Some(failed) = failed(&shown).filter(|_| waiting.failure.ends(metadata.revision)) {
        return Err(failed.into());
    }
    want.held = match goal.since(&shown) {
        Some(since) if goal.is_ready() => {
            let (age, hold, now) = (vouched.time().since(since), waiting.hold.of(&shown), Instant::now());
            Some(Held::next(want.held, since, age, hold, now)).filter(|held| held.until > now)
        }
        _ => None,
    };
    if goal.is_met(Some(&shown)) && want.held.is_none() {
        return met(wanted, &key, goal, "");
    }
    want.seen = Some(resource);
    Ok(())
}

/// The judgement that what is declared won't come about by itself.
pub fn failed(resource: &v1::Resource) -> Option<Trouble> {
    let key = apply::key(resource);
    let words = kinds::kind(key.kind())?.failed(resource)?;
    Some(Trouble::RolloutFailed(format!("{}: {words}", words::short(&key))))
}

fn gone(wanted: &mut BTreeMap<Key, Wanted>, key: &Key, goal: &Goal) -> anyhow::Result<()> {
    match (wanted.contains_key(key), goal) {
        (false, _) => Ok(()),
        (true, Goal::Deleted) => met(wanted, key, goal, ""),
        (true, _) => Err(Trouble::NotFound(format!("{} was deleted meanwhile", words::short(key))).into()),
    }
}

/// The snapshot is complete, so what it didn't name doesn't exist; unless it is older than what is waited for.
fn absent(wanted: &mut BTreeMap<Key, Wanted>, revision: Revision, goal: &Goal) -> anyhow::Result<()> {
    let unseen = |w: &Wanted| !w.told && w.revision <= revision.0;
    let missing: Vec<Key> = wanted.iter().filter(|(_, w)| unseen(w)).map(|(k, _)| k.clone()).collect();
    for key in missing {
        match goal {
            // Of what was seen before it was certainly so.
            Goal::Deleted if wanted.get(&key).is_some_and(|w| w.seen.is_none()) => {
                met(wanted, &key, goal, "does not exist")?
            }
            Goal::Deleted => met(wanted, &key, goal, "")?,
            _ => return Err(words::missing(&key).into()),
        }
    }
    Ok(())
}

/// `what`: instead of the goal's own words.
fn met(wanted: &mut BTreeMap<Key, Wanted>, key: &Key, goal: &Goal, what: &str) -> anyhow::Result<()> {
    wanted.remove(key);
    let what = match goal {
        _ if !what.is_empty() => what.to_owned(),
        Goal::Deleted => "deleted".to_owned(),
        Goal::Condition { condition_type, status } if status == "True" => condition_type.to_lowercase(),
        Goal::Condition { condition_type, status } => format!("{condition_type}={status}"),
    };
    output::print(&format!("{} {what}\n", words::short(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ready_must_stay_so_for_the_whole_hold() {
        let (now, hold) = (Instant::now(), Duration::from_secs(2));
        let first = Held::next(None, Time(1), Duration::from_millis(500), hold, now);
        assert_eq!(first.until, now + Duration::from_millis(1_500), "it had been so for a while");
        let later = now + Duration::from_secs(1);
        let same = Held::next(Some(first), Time(1), Duration::ZERO, hold, later);
        assert_eq!(same, first, "looking again begins nothing anew");
        let flapped = Held::next(Some(first), Time(9), Duration::ZERO, hold, later);
        assert_eq!(flapped.until, later + hold, "it wasn't so in between");
        let old = Held::next(None, Time(1), Duration::from_secs(3_600), hold, now);
        assert_eq!(old.until, now, "nothing is left to wait for");
    }

    #[test]
    fn to_look_again_at_what_was_answered_is_not_to_hear_of_it() {
        let metadata = v1::Metadata { kind: "Service".into(), name: "web".into(), ..Default::default() };
        let resource = v1::Resource { metadata: Some(metadata), ..Default::default() };
        let key = apply::key(&resource);
        let mut wanted = BTreeMap::from([(key.clone(), Wanted { seen: Some(resource.clone()), ..Wanted::default() })]);
        let looked_at = again(&mut wanted);
        assert!(matches!(looked_at.as_slice(), [Update::Put(_)]));
        assert!(!wanted[&key].told, "it may be gone by now, and the watch will never name it");
        heard(&mut wanted, looked_at);
        assert!(wanted[&key].told);
    }
}
