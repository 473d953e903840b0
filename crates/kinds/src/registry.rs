//! What a kind has to say of itself, and what a reconciler is.

use std::{any::Any as StdAny, sync::Arc, time::Duration};

use api::{manifest::Range, v1};
use bytes::Bytes;
use model::{
    Conditions, Decision, Domain, Key, Violation, Why,
    fields::{self, Fields},
};
use prost::Message;
use prost_types::Any;

use crate::{Item, View, World};

/// The fixed facts about a kind.
#[derive(Debug)]
pub struct Info {
    /// "Service": in manifests and keys.
    pub kind: &'static str,
    /// "services": on the command line.
    pub plural: &'static str,
    pub short: &'static [&'static str],
    pub namespaced: bool,
    /// Read by every shard, so every replica watches all of them.
    pub global: bool,
    /// Users may Apply it.
    pub declared: bool,
    /// "driftless.v1.ServiceSpec".
    pub spec_type: &'static str,
    pub status_type: &'static str,
    /// Columns of its table, between NAME and AGE.
    pub columns: &'static [Column],
}

#[derive(Debug)]
pub struct Column {
    pub title: &'static str,
    /// Only with `-o wide`.
    pub wide: bool,
}

impl Column {
    pub const fn new(title: &'static str) -> Self {
        Self { title, wide: false }
    }

    pub const fn wide(title: &'static str) -> Self {
        Self { title, wide: true }
    }
}

/// What one domain may write of a kind. Nobody else may.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    pub create: bool,
    /// Set the deletion time.
    pub delete: bool,
    /// Delete the record.
    pub remove: bool,
    pub spec: Fields,
    pub status: Fields,
    pub conditions: Conditions,
}

impl Rights {
    pub const NONE: Self = Self {
        create: false,
        delete: false,
        remove: false,
        spec: Fields::NONE,
        status: Fields::NONE,
        conditions: Conditions::NONE,
    };
}

/// A field that a command sets beside the manifests: one that leaves it out keeps what the command set, one that names it
/// takes it over.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Within the spec: "rollout.pause".
    pub path: &'static str,
    /// The command: in `metadata.field_owners`.
    pub owner: &'static str,
    /// What somebody should know whose manifest kept it, by the spec as it is then.
    pub kept: fn(&Bytes) -> Option<String>,
}

/// What admission found out about a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Goes into `metadata.template_hash`; empty for kinds without children.
    pub hash: String,
    pub warnings: Vec<String>,
}

/// One kind of resource.
pub trait Kind: Send + Sync {
    fn info(&self) -> &'static Info;

    /// Refuses what can't be right, with every violation at once (paths start with "spec.").
    fn admit(&self, spec: &Bytes) -> Result<Template, Vec<Violation>>;

    fn rights(&self, domain: Domain) -> Rights;

    /// The numbers of its spec that `admit` bounds, by the full names of their fields, for whoever reads a manifest.
    fn ranges(&self) -> &'static [Range<'static>] {
        &[]
    }

    /// Which fields of its spec commands set, too.
    fn shared(&self) -> &'static [Shared] {
        &[]
    }

    /// The values that decisions work on. A stored resource passed admission once, yet an older or newer version may
    /// have written it: whatever does not parse is a violation, never a panic.
    fn parse(&self, resource: &v1::Resource) -> Result<Arc<dyn StdAny + Send + Sync>, Violation>;

    /// The node that it's bound to, or is.
    fn node(&self, _resource: &v1::Resource) -> Option<String> {
        None
    }

    /// Whether one may be made while its owner is on its way out, since it tells of what is left, and stays after it.
    fn outlives_owner(&self) -> bool {
        false
    }

    /// What it can't be acted on without, with the field that names it.
    fn uses(&self, _resource: &v1::Resource) -> Vec<(&'static str, Key)> {
        Vec::new()
    }

    /// The newest generation of something that it uses of which its status speaks. None where the status doesn't say.
    fn has_seen(&self, _resource: &v1::Resource, _used: &Key) -> Option<i64> {
        None
    }

    /// The kinds whose resources may use one of this kind, in the same namespace.
    fn users(&self) -> &'static [&'static str] {
        &[]
    }

    /// What a deletion would take at once from those that are bound to it, while its agent is there; it's refused for that,
    /// unless it says that it means it.
    fn in_use(&self, _key: &Key, _bound: &mut dyn Iterator<Item = Key>) -> Option<String> {
        None
    }

    /// The record that is written with whatever is bound to one of these: as long as it's unchanged, nothing was.
    fn bound_with(&self) -> Option<Key> {
        None
    }

    /// What a user's change of its spec means, for the history: in plain words that follow its name. None where there's no
    /// more to say than that it was declared.
    fn told(&self, _before: &v1::Resource, _after: &v1::Resource) -> Option<String> {
        None
    }

    /// What an agent's report tells of it, for the history; without moving values. `after`: none where its record goes.
    fn news(&self, before: &v1::Resource, after: Option<&v1::Resource>) -> Why {
        changed_condition(before, after).unwrap_or_else(|| Why::new("Observed", "its status was reported"))
    }

    /// Whether that condition of it tells of something that isn't as it should be; whoever asks why is told.
    fn amiss(&self, condition: &v1::Condition) -> bool {
        condition.status != "True"
    }

    /// What it lacks though it's ready, for whoever declared it and waits for no more than that.
    fn caveat(&self, _resource: &v1::Resource) -> Option<String> {
        None
    }

    /// Why it's still there and isn't being deleted, where somebody asked for it to go.
    fn asked_to_go(&self, _resource: &v1::Resource) -> Option<String> {
        None
    }

    /// How long it must have been ready until somebody who waits for it should believe that. For what says so by merely
    /// running.
    fn proof(&self, _resource: &v1::Resource) -> Duration {
        Duration::ZERO
    }

    /// Why what is declared won't come about unless somebody does something, by the judgement of its controller. None where
    /// that isn't known of the declared generation.
    fn failed(&self, _resource: &v1::Resource) -> Option<String> {
        None
    }

    /// One cell for each of `Info::columns`.
    fn row(&self, resource: &v1::Resource) -> Vec<String>;
}

/// The first condition that says something else than before, or something at all.
pub fn changed_condition(before: &v1::Resource, after: Option<&v1::Resource>) -> Option<Why> {
    let of = |resource: &v1::Resource| {
        let status = resource.status.clone().unwrap_or_default();
        fields::conditions_of(&status.value.into()).unwrap_or_default()
    };
    let known = of(before);
    let same =
        |a: &v1::Condition, b: &v1::Condition| (&a.r#type, &a.status, &a.message) == (&b.r#type, &b.status, &b.message);
    let new = of(after?).into_iter().find(|now| !known.iter().any(|before| same(before, now)))?;
    let words = if new.message.is_empty() { &new.reason } else { &new.message };
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    Some(Why::new("Condition", format!("{} is {}{words}", new.r#type, new.status)))
}

/// Under which claim a reconciler works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// That of the resource's shard.
    Shard,
    /// `leader`: what needs one global view.
    Leader,
}

/// Decides what to do next about the resources of one kind.
pub trait Reconciler: Send + Sync {
    /// A metric label and a part of step ids: "service".
    fn name(&self) -> &'static str;

    /// The kind of its keys.
    fn kind(&self) -> &'static str;

    fn scope(&self) -> Scope;

    /// Whether one step of it serves many declarations at once. Each of its writes stays in its own's trace then.
    fn serves_many(&self) -> bool {
        false
    }

    /// Which keys to look at again when this item appeared, changed or went. `world` is as it is after that.
    fn wakes(&self, world: &World, item: &Item) -> Vec<Key>;

    /// The one next step. Pure and total: any view, also an odd one, has an answer.
    fn plan(&self, view: &View<'_>, item: &Item) -> Decision;
}

/// Wraps a message as a resource's spec or status.
pub fn any<M: Message>(type_name: &str, message: &M) -> Any {
    Any { type_url: format!("type.googleapis.com/{type_name}"), value: message.encode_to_vec() }
}

/// Reads a spec or status; absent is the default.
pub fn typed<M: Message + Default>(field: &str, message: Option<&Any>) -> Result<M, Violation> {
    let bytes = message.map_or(&[][..], |any| any.value.as_slice());
    M::decode(bytes).map_err(|error| Violation::new(field, format!("not the declared message type: {error}")))
}
