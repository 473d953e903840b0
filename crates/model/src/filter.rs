//! Which resources a list or a watch speaks of.

use std::collections::BTreeMap;

use api::v1;

use crate::Key;

/// What a filter needs to know of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub key: &'a Key,
    pub labels: &'a dyn Labels,
    pub owner_uid: &'a str,
    pub shard: u32,
    /// Kinds that every shard reads are in every shard's view.
    pub global: bool,
    /// The node it's bound to, or is.
    pub node: Option<&'a str>,
}

/// Anything that labels can be looked up in.
pub trait Labels: std::fmt::Debug {
    fn label(&self, name: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn label(&self, name: &str) -> Option<&str> {
        self.get(name).map(String::as_str)
    }
}

/// A parsed `v1::Filter`: all set conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub kinds: Vec<String>,
    pub namespace: String,
    pub name: String,
    pub owner_uid: String,
    /// None: all of them.
    pub shards: Option<Vec<u32>>,
    pub node: String,
    pub labels: Requirements,
}

/// A parsed label selector; empty where it asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("label selector {selector:?}: {message}; write it like 'app=web,tier!=db,canary,!old,zone in (a,b)'")]
pub struct FilterError {
    selector: String,
    message: String,
}

impl Filter {
    pub fn kind(kind: &str) -> Self {
        Self { kinds: vec![kind.into()], ..Self::default() }
    }

    pub fn with_labels(mut self, selector: &str) -> Result<Self, FilterError> {
        self.labels = Requirements(parse_labels(selector)?);
        Ok(self)
    }

    pub fn parse(filter: &v1::Filter) -> Result<Self, FilterError> {
        Self {
            kinds: filter.kinds.clone(),
            namespace: filter.namespace.clone(),
            name: filter.name.clone(),
            owner_uid: filter.owner_uid.clone(),
            shards: filter.by_shard.then(|| filter.shards.clone()),
            node: filter.node.clone(),
            labels: Requirements::default(),
        }
        .with_labels(&filter.labels)
    }

    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        let key = facts.key;
        (self.kinds.is_empty() || self.kinds.iter().any(|k| k == key.kind()))
            && (self.namespace.is_empty() || self.namespace == key.namespace())
            && (self.name.is_empty() || self.name == key.name())
            && (self.owner_uid.is_empty() || self.owner_uid == facts.owner_uid)
            && (self.node.is_empty() || facts.node == Some(self.node.as_str()))
            && self.shards.as_ref().is_none_or(|s| facts.global || s.contains(&facts.shard))
            && self.labels.0.iter().all(|r| r.matches(facts.labels))
    }
}

impl From<&Filter> for v1::Filter {
    fn from(filter: &Filter) -> Self {
        let labels: Vec<String> = filter.labels.0.iter().map(Requirement::text).collect();
        Self {
            kinds: filter.kinds.clone(),
            namespace: filter.namespace.clone(),
            name: filter.name.clone(),
            labels: labels.join(","),
            owner_uid: filter.owner_uid.clone(),
            by_shard: filter.shards.is_some(),
            shards: filter.shards.clone().unwrap_or_default(),
            node: filter.node.clone(),
        }
    }
}

impl Requirement {
    fn matches(&self, labels: &dyn Labels) -> bool {
        match self {
            Self::In(name, values) => labels.label(name).is_some_and(|l| values.iter().any(|v| v == l)),
            Self::NotIn(name, values) => labels.label(name).is_none_or(|l| values.iter().all(|v| v != l)),
            Self::Exists(name) => labels.label(name).is_some(),
            Self::Absent(name) => labels.label(name).is_none(),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::In(name, values) => format!("{name} in ({})", values.join(",")),
            Self::NotIn(name, values) => format!("{name} notin ({})", values.join(",")),
            Self::Exists(name) => name.clone(),
            Self::Absent(name) => format!("!{name}"),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let name = |n: &str| match n.trim() {
            "" => Err("a label's name is missing".to_owned()),
            n if n.contains(|c: char| c.is_whitespace() || "()=!,".contains(c)) => {
                Err(format!("{n:?} is no label name"))
            }
            n => Ok(n.to_owned()),
        };
        let list = |v: &str| -> Result<Vec<String>, String> {
            let inner = v.trim().strip_prefix('(').and_then(|v| v.strip_suffix(')'));
            let inner = inner.ok_or_else(|| format!("{v:?} should be a list in parentheses"))?;
            Ok(inner.split(',').map(|v| v.trim().to_owned()).collect())
        };
        if let Some((n, v)) = text.split_once(" notin ") {
            return Ok(Self::NotIn(name(n)?, list(v)?));
        }
        if let Some((n, v)) = text.split_once(" in ") {
            return Ok(Self::In(name(n)?, list(v)?));
        }
        if let Some((n, v)) = text.split_once("!=") {
            return Ok(Self::NotIn(name(n)?, vec![v.trim().into()]));
        }
        if let Some((n, v)) = text.split_once("==").or_else(|| text.split_once('=')) {
            return Ok(Self::In(name(n)?, vec![v.trim().into()]));
        }
        match text.strip_prefix('!') {
            Some(n) => Ok(Self::Absent(name(n)?)),
            None => Ok(Self::Exists(name(text)?)),
        }
    }
}

fn parse_labels(selector: &str) -> Result<Vec<Requirement>, FilterError> {
    let fail = |message: String| FilterError { selector: selector.into(), message };
    if selector.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut parts = vec![String::new()];
    let mut depth = 0_i32;
    for c in selector.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            c => parts.last_mut().expect("never empty").push(c),
        }
    }
    parts.iter().map(|part| Requirement::parse(part.trim()).map_err(fail)).collect()
}
