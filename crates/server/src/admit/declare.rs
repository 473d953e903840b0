//! Declarations: what an Apply says, checked as far as it can be without a state, and then merged into one.

use std::collections::{BTreeMap, BTreeSet};

use api::{brief, v1};
use bytes::Bytes;
use kinds::{KINDS, Kind, SPEC_BYTES_MAX, Template, kind, kind_for};
use model::{Domain, Key, Revision, Violation, fields::Fields};
use prost_types::Any;
use store::{Error, Result};

use super::{
    message, owners,
    rights::{Author, unwrap, wrap},
    syntax,
};

/// Declarations in one Apply, which is one transaction.
pub const DECLARATIONS_MAX: usize = 100;
pub const DEFAULT_NAMESPACE: &str = "default";

/// Who declares which fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// The whole spec, by a manifest.
    Apply,
    /// The number of replicas alone.
    Scale,
    /// The whole spec as it was read, but for a few fields.
    Edit,
}

impl Manager {
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "" | "apply" => Ok(Self::Apply),
            owners::SCALE => Ok(Self::Scale),
            "edit" => Ok(Self::Edit),
            other => {
                let words = format!("{:?}: must be \"apply\", \"scale\" or \"edit\"", brief(other));
                Err(Error::invalid("field_manager", words))
            }
        }
    }
}

/// A declaration that can't be refused for what it says.
pub struct Declared {
    pub key: Key,
    pub kind: &'static dyn Kind,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub finalizers: Vec<String>,
    pub owner: Option<v1::OwnerReference>,
    pub spec: Bytes,
    pub template: Template,
    pub expected: Option<Revision>,
}

/// Reads all declarations, or says everything that is wrong with any of them.
pub fn read(request: &v1::ApplyRequest) -> Result<Vec<Declared>> {
    let count = request.declarations.len();
    if count > DECLARATIONS_MAX {
        return Err(Error::TooLarge(format!(
            "{count} declarations in one Apply; at most {DECLARATIONS_MAX} commit together: apply them in batches"
        )));
    }
    let mut violations = Vec::new();
    let mut declared: Vec<Declared> = Vec::new();
    let mut keys = BTreeSet::new();
    for (i, declaration) in request.declarations.iter().enumerate() {
        match one(declaration) {
            Ok(one) if !keys.insert(one.key.clone()) => {
                violations.push(at(i, Violation::new("metadata.name", format!("{} is declared twice", one.key))));
            }
            Ok(one) => declared.push(one),
            Err(found) => violations.extend(found.into_iter().map(|violation| at(i, violation))),
        }
    }
    if violations.is_empty() { Ok(declared) } else { Err(Error::Invalid(violations)) }
}

fn at(index: usize, violation: Violation) -> Violation {
    Violation { field: format!("declarations[{index}].{}", violation.field), ..violation }
}

fn one(declaration: &v1::Declaration) -> Result<Declared, Vec<Violation>> {
    let resource = declaration.resource.as_ref().ok_or_else(|| vec![Violation::new("resource", "missing")])?;
    let metadata = resource.metadata.clone().unwrap_or_default();
    let kind = declarable(&metadata.kind).map_err(|violation| vec![violation])?;
    let info = kind.info();
    let mut violations = Vec::new();
    let namespace = match (info.namespaced, metadata.namespace.as_str()) {
        (true, "") => DEFAULT_NAMESPACE.to_owned(),
        (true, namespace) => namespace.to_owned(),
        (false, "") => String::new(),
        (false, _) => {
            violations.push(Violation::new("metadata.namespace", format!("a {} has none; leave it out", info.kind)));
            String::new()
        }
    };
    if info.namespaced {
        violations.extend(syntax::name("metadata.namespace", &namespace, syntax::NAME_MAX));
    }
    violations.extend(syntax::labels("metadata.labels", &metadata.labels));
    violations.extend(syntax::annotations("metadata.annotations", &metadata.annotations));
    violations.extend(syntax::finalizers("metadata.finalizers", &metadata.finalizers));
    violations.extend(metadata.owner.as_ref().and_then(|owner| check_owner(owner, &namespace)));
    let expected = declaration.expected_revision;
    if expected.is_some_and(|revision| revision < 0) {
        violations.push(Violation::new("expected_revision", "must not be negative"));
    }
    let (spec, template) = match admit(kind, resource.spec.as_ref()) {
        Ok(admitted) => admitted,
        Err(found) => {
            violations.extend(found);
            Default::default()
        }
    };
    // Kinds with a template have children, whose names are made from theirs.
    let most = if template.hash.is_empty() { syntax::NAME_MAX } else { syntax::PARENT_NAME_MAX };
    violations.extend(syntax::name("metadata.name", &metadata.name, most));
    if !violations.is_empty() {
        return Err(violations);
    }
    Ok(Declared {
        key: Key::new(info.kind, &namespace, &metadata.name),
        kind,
        labels: metadata.labels,
        annotations: metadata.annotations,
        finalizers: metadata.finalizers,
        owner: metadata.owner.map(|owner| v1::OwnerReference { namespace: owned_in(&owner, &namespace), ..owner }),
        spec,
        template,
        expected: expected.map(Revision),
    })
}

/// A kind that users declare, or at least one whose spec is theirs once it exists.
fn declarable(name: &str) -> Result<&'static dyn Kind, Violation> {
    let field = "metadata.kind";
    if name.is_empty() {
        return Err(Violation::new(field, "missing: say what it is, e.g. kind: Service"));
    }
    let Some(kind) = kind(name) else {
        let names = KINDS.iter().map(|kind| kind.info()).filter(|info| info.declared).map(|info| info.kind);
        let near = kind_for(name).map(|kind| kind.info().kind).or_else(|| api::manifest::nearest(name, names.clone()));
        let hint = match near {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there is {}", names.collect::<Vec<_>>().join(", ")),
        };
        return Err(Violation::new(field, format!("unknown kind {:?}; {hint}", brief(name))));
    };
    let info = kind.info();
    if info.declared || kind.rights(Domain::User).spec != Fields::NONE { Ok(kind) } else { Err(not_declared(kind)) }
}

/// Says how such resources come about.
fn not_declared(kind: &dyn Kind) -> Violation {
    let maker = match [Domain::Shard, Domain::Leader, Domain::Agent].into_iter().find(|d| kind.rights(*d).create) {
        Some(Domain::Shard | Domain::Leader) => "by controllers, from what is declared",
        Some(Domain::Agent) => "by an agent that registers",
        Some(Domain::User) | None => "by the server",
    };
    let name = kind.info().kind;
    Violation::new("metadata.kind", format!("{name} resources are not declared; they are made {maker}"))
}

fn admit(kind: &dyn Kind, spec: Option<&Any>) -> Result<(Bytes, Template), Vec<Violation>> {
    let Some(spec) = spec else {
        return Err(vec![Violation::new("spec", "missing: say what should exist")]);
    };
    let spec = unwrap("spec", spec, kind.info().spec_type).map_err(|violation| vec![violation])?;
    if spec.len() > SPEC_BYTES_MAX {
        return Err(vec![Violation::new("spec", format!("{} bytes; at most {SPEC_BYTES_MAX}", spec.len()))]);
    }
    let template = kind.admit(&spec)?;
    Ok((spec, template))
}

fn owned_in(owner: &v1::OwnerReference, namespace: &str) -> String {
    match kind(&owner.kind) {
        Some(kind) if kind.info().namespaced && owner.namespace.is_empty() => namespace.to_owned(),
        _ => owner.namespace.clone(),
    }
}

fn check_owner(owner: &v1::OwnerReference, namespace: &str) -> Option<Violation> {
    let Some(kind) = kind(&owner.kind) else {
        return Some(Violation::new("metadata.owner.kind", format!("unknown kind {:?}", brief(&owner.kind))));
    };
    if kind.info().namespaced && owned_in(owner, namespace) != namespace {
        let other = &owner.namespace;
        return Some(Violation::new(
            "metadata.owner.namespace",
            format!("{:?} is not the resource's own", brief(other)),
        ));
    }
    syntax::name("metadata.owner.name", &owner.name, syntax::NAME_MAX)
}

/// What a declaration makes of what is stored.
#[derive(Debug)]
pub enum Merged {
    /// As it is already.
    Unchanged(v1::Resource),
    Updated(v1::Resource),
}

/// The merged resource, and what to tell of it.
pub type Told = (Merged, Vec<String>);

/// Merges a declaration into the stored resource.
pub fn merge(author: &Author, declared: &Declared, manager: Manager, current: v1::Resource) -> Result<Told> {
    let mut metadata = current.metadata.clone().unwrap_or_default();
    if let Some(owner) = &declared.owner
        && metadata.owner.as_ref().is_none_or(|o| (&o.kind, &o.name) != (&owner.kind, &owner.name))
    {
        return Err(Error::invalid("metadata.owner", format!("the owner of {} is fixed at create", declared.key)));
    }
    let type_name = declared.kind.info().spec_type;
    let stored = current.spec.as_ref().map(|spec| Bytes::copy_from_slice(&spec.value)).unwrap_or_default();
    let (spec, kept) = owners::settle(declared, manager, &stored, &mut metadata.field_owners)?;
    // Labels are the maker's, and `scale` declares none.
    if manager == Manager::Apply && declared.kind.rights(Domain::User).create {
        metadata.labels = declared.labels.clone();
        metadata.annotations = declared.annotations.clone();
    }
    match manager {
        // They are put there by whoever has something to finish, not by every manifest.
        Manager::Apply if declared.finalizers.is_empty() => {}
        Manager::Apply | Manager::Edit => metadata.finalizers = declared.finalizers.clone(),
        Manager::Scale => {}
    }
    let same_spec = message::same(type_name, &stored, &spec);
    if metadata.deletion_time.is_some() && !(same_spec && frees(&current, &metadata)) {
        return Err(Error::BeingDeleted(declared.key.clone()));
    }
    if same_spec && current.metadata.as_ref() == Some(&metadata) {
        return Ok((Merged::Unchanged(current), kept));
    }
    if !same_spec {
        metadata.generation += 1;
        metadata.template_hash = declared.kind.admit(&spec).map_err(Error::Invalid)?.hash;
        metadata.traceparent = author.traceparent.clone();
    }
    metadata.updated_time = Some(author.now.into());
    metadata.last_writer = Some(author.writer());
    let value = if same_spec { stored } else { spec };
    let spec = wrap(type_name, value);
    let updated = v1::Resource { metadata: Some(metadata), spec: Some(spec), status: current.status };
    Ok((Merged::Updated(updated), kept))
}

/// Whether nothing but finalizers went, the one change that a resource on its way out still takes.
fn frees(current: &v1::Resource, next: &v1::Metadata) -> bool {
    let before = current.metadata.clone().unwrap_or_default();
    let kept = next.finalizers.iter().all(|finalizer| before.finalizers.contains(finalizer));
    kept && v1::Metadata { finalizers: next.finalizers.clone(), ..before } == *next
}

/// A declaration as a resource that doesn't exist yet, if a declaration can make one.
pub fn draft(declared: &Declared, owner: Option<v1::OwnerReference>) -> Result<v1::Resource> {
    if !declared.kind.rights(Domain::User).create {
        return Err(Error::Invalid(vec![not_declared(declared.kind)]));
    }
    let key = &declared.key;
    let metadata = v1::Metadata {
        kind: key.kind().into(),
        namespace: key.namespace().into(),
        name: key.name().into(),
        labels: declared.labels.clone(),
        annotations: declared.annotations.clone(),
        finalizers: declared.finalizers.clone(),
        owner,
        ..Default::default()
    };
    let spec = wrap(declared.kind.info().spec_type, declared.spec.clone());
    Ok(v1::Resource { metadata: Some(metadata), spec: Some(spec), status: None })
}
