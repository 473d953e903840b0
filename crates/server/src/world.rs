//! The cache as decisions see it: a copy of the part that a few resources' future depends on.

use std::{collections::BTreeSet, sync::Arc};

use api::v1;
use kinds::{Item, World, config, instance, node, placement, release, service};
use model::{Filter, Key};

use crate::{cache::Cache, members::Members};

const AROUND: [&str; 5] = [instance::KIND, node::KIND, config::KIND, placement::KIND, release::KIND];

/// These resources, and whatever else their reconcilers look at: every node, Config, instance and release. Services
/// that aren't named are left out, so nothing is decided about them.
pub fn around(cache: &Cache, members: &Members, keys: &BTreeSet<Key>) -> World {
    of_kinds(cache, members, &AROUND, keys)
}

/// The same with every service: for a word about one resource, of which others may have something to say.
pub fn whole(cache: &Cache, members: &Members) -> World {
    let kinds: Vec<&str> = AROUND.into_iter().chain([service::KIND]).collect();
    of_kinds(cache, members, &kinds, &BTreeSet::new())
}

fn of_kinds(cache: &Cache, members: &Members, kinds: &[&str], keys: &BTreeSet<Key>) -> World {
    let mut world = World::default();
    let filter = Filter { kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(), ..Filter::default() };
    let named = keys.iter().filter_map(|key| Some(cache.get(key)?.object(key)));
    for object in cache.matching(&filter, None).chain(named) {
        if let Ok(item) = Item::read(&object) {
            world.put(Arc::new(item));
        }
    }
    let state = members.state();
    let agents = state.members.iter().filter(|member| member.role == "agent").map(|member| member.name.clone());
    world.set_agents(agents.collect());
    world
}

/// What a plan about these resources reads.
pub fn pins(cache: &Cache, declared: &[Key]) -> v1::Pins {
    let declared_pins = declared.iter().map(|key| {
        let known = cache.get(key).and_then(|record| record.object(key).resource().ok()).and_then(|r| r.metadata);
        let known = known.unwrap_or_default();
        v1::Pin { key: Some(key.into()), uid: known.uid, generation: known.generation }
    });
    let owners: BTreeSet<&str> = declared
        .iter()
        .filter(|key| key.kind() == service::KIND)
        .filter_map(|key| Some(cache.get(key)?.uid()))
        .collect();
    let of = |kind: &str, keep: &dyn Fn(&str) -> bool| {
        let filter = Filter::kind(kind);
        let objects: Vec<Key> = cache.matching(&filter, None).map(|object| object.key).collect();
        let records = objects.into_iter().filter_map(|key| Some((cache.get(&key)?.clone(), key)));
        let kept = records.filter(|(record, _)| keep(record.owner_uid()));
        kept.map(|(record, key)| v1::Pin { key: Some((&key).into()), uid: record.uid().into(), generation: 0 })
            .collect()
    };
    v1::Pins {
        declared: declared_pins.collect(),
        nodes: of(node::KIND, &|_| true),
        instances: of(instance::KIND, &|owner| owners.contains(owner)),
    }
}

/// The first thing that is not as it was pinned.
pub fn moved(pinned: &v1::Pins, now: &v1::Pins) -> Option<(Key, String)> {
    let pairs = [(&pinned.declared, &now.declared), (&pinned.nodes, &now.nodes), (&pinned.instances, &now.instances)];
    pairs.into_iter().find_map(|(pinned, now)| moved_pin(pinned, now))
}

fn moved_pin(pinned: &[v1::Pin], now: &[v1::Pin]) -> Option<(Key, String)> {
    let key = |pin: &v1::Pin| pin.key.as_ref().map(Key::from).unwrap_or_else(|| Key::new("", "", ""));
    for pin in pinned {
        let words = match now.iter().find(|other| other.key == pin.key) {
            None => "is gone since the plan was made",
            Some(other) if other.uid != pin.uid && pin.uid.is_empty() => "was created since the plan was made",
            Some(other) if other.uid.is_empty() && !pin.uid.is_empty() => "was deleted since the plan was made",
            Some(other) if other.uid != pin.uid => "was deleted and created anew since the plan was made",
            Some(other) if other.generation != pin.generation => "was declared differently since the plan was made",
            Some(_) => continue,
        };
        return Some((key(pin), format!("{words}; plan again")));
    }
    let new = now.iter().find(|other| !pinned.iter().any(|pin| pin.key == other.key))?;
    Some((key(new), "came up since the plan was made; plan again".into()))
}
