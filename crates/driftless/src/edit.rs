//! Changes a few fields of a declared spec and leaves everything else as it is, fields that this binary doesn't know
//! included. Tried again while others write the same resource.

use anyhow::{Context, bail};
use api::v1;
use model::Key;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use crate::{client::Client, words};

/// Attempts while others write the same resource.
const ATTEMPTS: usize = 20;

/// Declares the spec anew after `change`. Returns the resource as it is then.
pub async fn spec(
    client: &Client,
    key: &Key,
    manager: &str,
    mut change: impl FnMut(&mut DynamicMessage) -> anyhow::Result<()>,
) -> anyhow::Result<v1::Resource> {
    resource(client, key, manager, |resource| {
        let Some(spec) = &mut resource.spec else { bail!("{key} has no spec") };
        let kind = kinds::kind(key.kind()).with_context(|| format!("kind {} is unknown here", key.kind()))?;
        let descriptor = api::descriptors().get_message_by_name(kind.info().spec_type).context("the kind's message")?;
        let decoded = DynamicMessage::decode(descriptor, spec.value.as_slice());
        let mut message = decoded.context("the spec can't be decoded")?;
        change(&mut message)?;
        spec.value = prost::Message::encode_to_vec(&message);
        Ok(())
    })
    .await
}

/// The same of the whole resource.
pub async fn resource(
    client: &Client,
    key: &Key,
    manager: &str,
    mut change: impl FnMut(&mut v1::Resource) -> anyhow::Result<()>,
) -> anyhow::Result<v1::Resource> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match attempt(client, key, manager, &mut change).await {
            Err(error) if matches!(error.downcast_ref(), Some(store::Error::Conflict { .. })) => last = Some(error),
            result => return result,
        }
    }
    Err(last.expect("there was an attempt")).with_context(|| format!("{ATTEMPTS} attempts"))
}

async fn attempt(
    client: &Client,
    key: &Key,
    manager: &str,
    change: &mut impl FnMut(&mut v1::Resource) -> anyhow::Result<()>,
) -> anyhow::Result<v1::Resource> {
    let mut resource = get(client, key).await?;
    let revision = resource.metadata.as_ref().map_or(0, |metadata| metadata.revision);
    change(&mut resource)?;
    let declaration = v1::Declaration { resource: Some(resource), expected_revision: Some(revision) };
    let request =
        v1::ApplyRequest { declarations: vec![declaration], field_manager: manager.into(), ..Default::default() };
    let applied = client.api.apply(&client.caller, request).await?;
    Ok(applied.results.into_iter().next().and_then(|result| result.resource).unwrap_or_default())
}

pub async fn get(client: &Client, key: &Key) -> anyhow::Result<v1::Resource> {
    let object = client.api.get(key).await?;
    let object = object.ok_or_else(|| words::missing(key))?;
    object.resource().with_context(|| format!("{key} can't be decoded"))
}

/// Whether the spec says something at that path.
pub fn is_set(resource: &v1::Resource, spec_type: &str, path: &str) -> bool {
    let bytes = resource.spec.as_ref().map_or(&[][..], |spec| spec.value.as_slice());
    let descriptor = api::descriptors().get_message_by_name(spec_type);
    let decoded = descriptor.and_then(|descriptor| DynamicMessage::decode(descriptor, bytes).ok());
    let Some(mut message) = decoded else { return false };
    let (way, last) = path.rsplit_once('.').unwrap_or(("", path));
    for name in way.split('.').filter(|name| !name.is_empty()) {
        match message.get_field_by_name(name).map(|value| value.into_owned()) {
            Some(Value::Message(inner)) => message = inner,
            _ => return false,
        }
    }
    message.has_field_by_name(last)
}

/// Sets a field by its proto name; a dot goes into a message ("rollout.pause").
pub fn set(message: &mut DynamicMessage, path: &str, value: Value) -> anyhow::Result<()> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let field = message.descriptor().get_field_by_name(name);
    let field = field.with_context(|| format!("{} has no field {name}", message.descriptor().full_name()))?;
    match rest {
        None => message.set_field(&field, value),
        Some(rest) => match message.get_field_mut(&field) {
            Value::Message(inner) => set(inner, rest, value)?,
            _ => bail!("{name} is no message"),
        },
    }
    Ok(())
}

/// Unsets a field by its proto name, and a message on the way to it that says nothing else.
pub fn clear(message: &mut DynamicMessage, path: &str) -> anyhow::Result<()> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let field = message.descriptor().get_field_by_name(name);
    let field = field.with_context(|| format!("{} has no field {name}", message.descriptor().full_name()))?;
    if let Some(rest) = rest
        && let Value::Message(inner) = message.get_field_mut(&field)
    {
        clear(inner, rest)?;
        if prost::Message::encoded_len(inner) > 0 {
            return Ok(());
        }
    }
    message.clear_field(&field);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> DynamicMessage {
        DynamicMessage::new(api::descriptors().get_message_by_name(kinds::service::SPEC).expect("ours"))
    }

    #[test]
    fn what_was_set_and_is_cleared_again_leaves_nothing_behind() {
        let mut edited = spec();
        set(&mut edited, "rollout.pause", Value::Bool(true)).expect("there is such a field");
        assert_ne!(edited, spec());
        clear(&mut edited, "rollout.pause").expect("there is such a field");
        assert_eq!(edited, spec(), "not even an empty rollout, which a manifest would differ from");
        set(&mut edited, "rollout.max_surge", Value::I32(2)).expect("there is such a field");
        let before = edited.clone();
        set(&mut edited, "rollout.pause", Value::Bool(true)).expect("there is such a field");
        clear(&mut edited, "rollout.pause").expect("there is such a field");
        assert_eq!(edited, before, "what else is said stays");
        assert!(clear(&mut edited, "rollout.nonsense").is_err());
    }
}
