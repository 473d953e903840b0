//! What people write on the command line: kinds, names, durations; and how times are told to them.

use std::{ops::RangeInclusive, time::Duration};

use anyhow::Context;
use api::{
    DURATION, brief,
    manifest::{KindTypes, Kinds, Range, nearest},
};
use kinds::{KINDS, Kind};
use model::{Domain, Key, Time, fields::Fields};

use crate::{
    exit::Trouble,
    verbs::cluster::{PARTS, Part},
};

pub const DEFAULT_NAMESPACE: &str = "default";

/// The kinds of this binary, as manifests need them.
pub fn manifest_kinds<T>(with: impl FnOnce(&Kinds<'_>) -> T) -> T {
    let declared = |kind: &&&dyn Kind| kind.info().declared || kind.rights(Domain::User).spec != Fields::NONE;
    let names: Vec<&str> = KINDS.iter().filter(declared).map(|k| k.info().kind).collect();
    let types = |name: &str| {
        let info = kinds::kind(name)?.info();
        Some(KindTypes { spec: info.spec_type.to_owned(), status: info.status_type.to_owned() })
    };
    let ranges: Vec<Range<'_>> = KINDS.iter().flat_map(|kind| kind.ranges()).cloned().collect();
    with(&Kinds { names: &names, types: &types, ranges: &ranges })
}

/// "service", "services", "svc", "Service".
pub fn kind(word: &str) -> Result<&'static dyn Kind, Trouble> {
    kinds::kind_for(word).ok_or_else(|| Trouble::Usage(no_kind(word)))
}

/// Says what there is: the kinds, and what only `get` shows.
fn no_kind(word: &str) -> String {
    if let Some((_, name)) = Part::named(word) {
        return format!("{word:?} is no kind; it's shown as a whole, by 'driftless get {name}'");
    }
    let plurals = || KINDS.iter().map(|k| k.info().plural);
    let parts = || PARTS.iter().map(|(_, names)| names[0]);
    let near = nearest(word, plurals().chain(parts()));
    let word = brief(word);
    match near {
        Some(near) => format!("unknown kind {word:?}; did you mean {near:?}?"),
        None => {
            let join = |names: Vec<&str>| names.join(", ");
            let (kinds, parts) = (join(plurals().collect()), join(parts().collect()));
            format!("unknown kind {word:?}; there is {kinds}; 'get' also shows {parts}, and all")
        }
    }
}

/// What a verb speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Everything of these kinds, by their names.
    Kinds(Vec<&'static str>),
    /// These ones.
    Keys(Vec<Key>),
}

/// Reads `KIND`, `KIND,KIND`, `all`, `KIND NAME...` and `KIND/NAME...`; a kind before the latter is one word too many, but
/// means the same.
pub fn targets(words: &[String], namespace: &str) -> Result<Targets, Trouble> {
    let Some((first, names)) = words.split_first() else {
        return Err(Trouble::Usage("say of what kind: services, instances, nodes, ..., or all".into()));
    };
    if names.iter().any(|name| name.contains('/')) && !first.contains('/') {
        return kind(first).and_then(|kind| of_one_kind(kind, names, namespace)).map(Targets::Keys);
    }
    if words.iter().any(|w| w.contains('/')) {
        return words.iter().map(|w| slashed(w, namespace)).collect::<Result<_, _>>().map(Targets::Keys);
    }
    if first == "all" && names.is_empty() {
        return Ok(Targets::Kinds(KINDS.iter().map(|k| k.info().kind).collect()));
    }
    let found = first.split(',').map(kind).collect::<Result<Vec<_>, _>>()?;
    match (found.as_slice(), names) {
        (kinds, []) => Ok(Targets::Kinds(kinds.iter().map(|k| k.info().kind).collect())),
        ([kind], names) => Ok(Targets::Keys(names.iter().map(|n| key(*kind, namespace, n)).collect())),
        _ => Err(Trouble::Usage("names go with one kind; write KIND/NAME KIND/NAME for several".into())),
    }
}

fn slashed(word: &str, namespace: &str) -> Result<Key, Trouble> {
    match word.split_once('/') {
        Some((k, name)) if !name.is_empty() && !name.contains('/') => Ok(key(kind(k)?, namespace, name)),
        _ => {
            let word = brief(word);
            Err(Trouble::Usage(format!("{word:?} should be KIND/NAME; write KIND NAME..., or KIND/NAME for each")))
        }
    }
}

/// As `get -o name` prints them, after the kind.
fn of_one_kind(kind: &'static dyn Kind, names: &[String], namespace: &str) -> Result<Vec<Key>, Trouble> {
    names.iter().map(|name| of_kind(kind, name, namespace)).collect()
}

fn key(kind: &'static dyn Kind, namespace: &str, name: &str) -> Key {
    let info = kind.info();
    Key::new(info.kind, if info.namespaced { namespace } else { "" }, name)
}

/// Exactly named resources; for verbs that don't speak of whole kinds.
pub fn keys(words: &[String], namespace: &str) -> Result<Vec<Key>, Trouble> {
    match targets(words, namespace)? {
        Targets::Keys(keys) => Ok(keys),
        Targets::Kinds(_) => Err(Trouble::Usage("say which one: KIND NAME, or KIND/NAME".into())),
    }
}

pub fn single(words: &[String], namespace: &str) -> Result<Key, Trouble> {
    let mut keys = keys(words, namespace)?;
    match (keys.pop(), keys.is_empty()) {
        (Some(key), true) => Ok(key),
        _ => Err(Trouble::Usage("say one only: KIND NAME, or KIND/NAME".into())),
    }
}

/// One resource where only one kind is meant, which may be named as other verbs take it: "web", "service/web", "service web".
pub fn one_of_kind(kind: &'static dyn Kind, words: &[String], namespace: &str) -> Result<Key, Trouble> {
    match words {
        [word] => of_kind(kind, word, namespace),
        [named, name] if kinds::kind_for(named).is_some_and(|k| k.info().kind == kind.info().kind) => {
            of_kind(kind, name, namespace)
        }
        _ => {
            let (words, meant) = (words.join(" "), kind.info().kind.to_ascii_lowercase());
            let words = brief(&words);
            Err(Trouble::Usage(format!("{words:?} should be the name of one {meant}: NAME, or {meant} NAME")))
        }
    }
}

/// A name where only one kind is meant; the kind may stand before it: "web", "service/web".
pub fn of_kind(kind: &'static dyn Kind, word: &str, namespace: &str) -> Result<Key, Trouble> {
    let meant = kind.info().kind;
    match word.contains('/').then(|| slashed(word, namespace)) {
        None => Ok(key(kind, namespace, word)),
        Some(Ok(named)) if named.kind() == meant => Ok(named),
        Some(_) => {
            let (word, meant) = (brief(word), meant.to_ascii_lowercase());
            Err(Trouble::Usage(format!("{word:?} should be the name of a {meant}")))
        }
    }
}

/// "service/web", as commands take it.
pub fn short(key: &Key) -> String {
    format!("{}/{}", key.kind().to_ascii_lowercase(), key.name())
}

/// What is said of what isn't there.
pub fn missing(key: &Key) -> Trouble {
    let place = if key.namespace().is_empty() { String::new() } else { format!(" in namespace {}", key.namespace()) };
    Trouble::NotFound(format!("{} not found{place}", brief(&short(key))))
}

/// A namespace, or a node, as it could exist.
pub fn name(text: &str) -> Result<String, String> {
    match server::name_violation(text) {
        None => Ok(text.to_owned()),
        Some(message) => Err(message),
    }
}

/// What a server or a controller may be called.
pub fn member(text: &str) -> Result<String, String> {
    let known = model::Actor::parse(&format!("controller/{text}"));
    known.map(|_| text.to_owned()).ok_or_else(|| "1 to 253 printable ASCII characters without spaces".into())
}

/// A whole number within bounds.
pub fn number(range: RangeInclusive<i32>) -> impl Fn(&str) -> Result<i32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let read = text.parse().ok().filter(|n| range.contains(n));
        read.ok_or_else(|| match *range.end() {
            i32::MAX => format!("write a whole number from {}", range.start()),
            end => format!("write a whole number from {} to {end}", range.start()),
        })
    }
}

/// As manifests take it.
pub fn duration(text: &str) -> anyhow::Result<Duration> {
    api::duration(text).with_context(|| format!("write {DURATION}"))
}

/// A time between two doings of something: none at all would be a hot loop.
pub fn period(text: &str) -> anyhow::Result<Duration> {
    const MIN: Duration = Duration::from_millis(10);
    let period = duration(text)?;
    anyhow::ensure!(period >= MIN, "at least {MIN:?}");
    Ok(period)
}

/// "2026-01-31T08:00:00Z", or how long ago: "10m".
pub fn since(text: &str) -> anyhow::Result<Time> {
    if let Ok(time) = text.parse::<prost_types::Timestamp>() {
        return Ok(Time::from(&time));
    }
    let ago =
        duration(text).context("write a time, e.g. 2026-01-31T08:00:00Z, or how long ago, e.g. 30s, 10m or 2h")?;
    Ok(now().minus(ago.min(Duration::from_secs(86_400 * 3_650))))
}

/// How long ago, in at most two units: "4s", "3m20s", "5h", "12d".
pub fn age(then: Option<&prost_types::Timestamp>, now: Time) -> String {
    let Some(then) = then else { return String::new() };
    let seconds = now.since(Time::from(then)).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => format!("{}m{}s", seconds / 60, seconds % 60),
        600..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

pub fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn keyed(text: &str) -> String {
        match targets(&words(text), "ns") {
            Ok(Targets::Keys(keys)) => keys.iter().map(Key::to_string).collect::<Vec<_>>().join(" "),
            Ok(Targets::Kinds(kinds)) => kinds.join(" "),
            Err(trouble) => trouble.to_string(),
        }
    }

    #[test]
    fn targets_are_read_in_every_spelling() {
        assert_eq!(keyed("svc"), "Service");
        assert_eq!(keyed("services,no"), "Service Node");
        assert_eq!(keyed("svc web api"), "Service/ns/web Service/ns/api");
        assert_eq!(keyed("svc/web node/n1"), "Service/ns/web Node/n1");
        assert_eq!(keyed("node n1"), "Node/n1");
        assert_eq!(keyed("instance instance/a inst/b c"), "Instance/ns/a Instance/ns/b Instance/ns/c");
        assert!(keyed("all").contains("Instance"));
    }

    #[test]
    fn wrong_targets_are_told() {
        assert_eq!(keyed("servics"), "unknown kind \"servics\"; did you mean \"services\"?");
        assert_eq!(keyed("leadr"), "unknown kind \"leadr\"; did you mean \"leader\"?");
        assert_eq!(keyed("leader x"), "\"leader\" is no kind; it's shown as a whole, by 'driftless get leader'");
        let all = keyed("nonsense");
        let listed = KINDS.iter().map(|k| k.info().plural).chain(PARTS.iter().map(|(_, names)| names[0]));
        assert!(listed.chain(["all"]).all(|name| all.contains(name)), "{all}");
        assert_eq!(keyed("svc,node web"), "names go with one kind; write KIND/NAME KIND/NAME for several");
        assert_eq!(keyed("svc/"), "\"svc/\" should be KIND/NAME; write KIND NAME..., or KIND/NAME for each");
        assert_eq!(keyed("svc/a b"), "\"b\" should be KIND/NAME; write KIND NAME..., or KIND/NAME for each");
        assert_eq!(keyed("svc node/n1"), "\"node/n1\" should be the name of a service");
        assert!(keyed("svc/a/b").starts_with("\"svc/a/b\" should be KIND/NAME"));
        assert!(single(&words("svc a b"), "ns").is_err());
        assert!(keys(&words("svc"), "ns").is_err());
    }

    #[test]
    fn where_one_kind_is_meant_it_may_be_named() {
        let read = |word| of_kind(&kinds::service::ServiceKind, word, "ns").map_err(|trouble| trouble.to_string());
        for word in ["web", "service/web", "svc/web"] {
            assert_eq!(read(word).map(|key| key.to_string()), Ok("Service/ns/web".to_owned()), "{word}");
        }
        for word in ["node/web", "nonsense/web", "service/", "service/a/b"] {
            assert_eq!(read(word), Err(format!("{word:?} should be the name of a service")));
        }
    }

    #[test]
    fn where_one_resource_of_one_kind_is_meant_its_kind_may_be_a_word_of_its_own() {
        let read = |text| one_of_kind(&kinds::service::ServiceKind, &words(text), "ns").map_err(|e| e.to_string());
        for text in ["web", "service/web", "service web", "svc web", "services svc/web"] {
            assert_eq!(read(text).map(|key| key.to_string()), Ok("Service/ns/web".to_owned()), "{text}");
        }
        assert_eq!(read("service service").map(|key| key.to_string()), Ok("Service/ns/service".to_owned()));
        for text in ["node web", "web api", "service web api"] {
            assert_eq!(read(text), Err(format!("{text:?} should be the name of one service: NAME, or service NAME")));
        }
        assert_eq!(read("service node/n1"), Err("\"node/n1\" should be the name of a service".into()));
    }

    #[test]
    fn durations_are_read_as_in_manifests() {
        assert_eq!(duration("1m30s").unwrap(), Duration::from_secs(90));
        let told = duration("10").unwrap_err().to_string();
        assert_eq!(told, "write a number with its unit, or several: 500ms, 30s, 1m30s, 2h");
    }

    #[test]
    fn a_time_is_read_in_both_forms_and_a_wrong_one_is_told_both() {
        assert_eq!(since("1970-01-01T00:00:01Z").unwrap(), Time(1_000_000));
        assert!(since("2h").unwrap() <= now().minus(Duration::from_secs(7_200)));
        for wrong in ["2026-13-45", "yesterday", "10"] {
            let told = since(wrong).unwrap_err().to_string();
            assert!(told.contains("2026-01-31T08:00:00Z") && told.contains("10m"), "{told}");
        }
    }

    #[test]
    fn what_is_long_is_not_repeated_as_a_whole() {
        let long = "x".repeat(10_000);
        for text in [long.clone(), format!("svc/{long}/x")] {
            assert!(keyed(&text).len() < 300, "{}", keyed(&text));
        }
        assert!(missing(&Key::new("Service", "default", &long)).to_string().len() < 300);
    }

    #[test]
    fn a_period_is_never_nothing() {
        assert_eq!(period("10ms").unwrap(), Duration::from_millis(10));
        assert!(period("0s").is_err() && period("9ms").is_err());
    }

    #[test]
    fn ages_are_short() {
        let age = |seconds: i64| age(Some(&prost_types::Timestamp { seconds: 0, nanos: 0 }), Time(seconds * 1_000_000));
        assert_eq!([age(0), age(119), age(200), age(4_000), age(90_000)], ["0s", "119s", "3m20s", "66m", "25h"]);
        assert_eq!(age(864_000), "10d");
        assert_eq!(age(-5), "0s");
    }
}
