//! Who uses what: the resources that can't be acted on without another one.

use api::v1;
use model::{Filter, Key};

use super::{apply, get};
use crate::client::Client;

/// Those that use it and stay.
pub async fn of(client: &Client, used: &Key) -> anyhow::Result<Vec<v1::Resource>> {
    let mut users = Vec::new();
    for kind in kinds::kind(used.kind()).map(|kind| kind.users()).unwrap_or_default() {
        let filter = Filter { namespace: used.namespace().into(), ..Filter::kind(kind) };
        let (resources, _) = get::all(client, filter).await?;
        let stays = |resource: &v1::Resource| resource.metadata.as_ref().is_none_or(|m| m.deletion_time.is_none());
        users.extend(resources.into_iter().filter(|resource| stays(resource) && uses(resource, used)));
    }
    Ok(users)
}

pub fn uses(resource: &v1::Resource, used: &Key) -> bool {
    let kind = kinds::kind(apply::key(resource).kind());
    kind.is_some_and(|kind| kind.uses(resource).iter().any(|(_, key)| key == used))
}

/// A resource that others take something from, as it was declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub key: Key,
    pub generation: i64,
}

impl Used {
    pub fn of(resource: &v1::Resource) -> Self {
        let generation = resource.metadata.as_ref().map_or(0, |metadata| metadata.generation);
        Self { key: apply::key(resource), generation }
    }

    /// The older generation of it that the status speaks of. Where that says nothing of it, as one from an older
    /// controller, it's taken at its word.
    pub fn outdated(&self, resource: &v1::Resource) -> Option<i64> {
        let seen = kinds::kind(apply::key(resource).kind())?.has_seen(resource, &self.key)?;
        (uses(resource, &self.key) && seen < self.generation).then_some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_an_older_config_is_told_from_one_that_says_nothing_of_it() {
        let paint = Used { key: Key::new("Config", "default", "paint"), generation: 2 };
        let outdated = |config: &str, seen: &[(&str, i64)]| {
            let env_from = vec![v1::EnvFrom { config: config.into(), ..Default::default() }];
            let template = v1::InstanceTemplate { env_from, ..Default::default() };
            let spec = v1::ServiceSpec { template: Some(template), ..Default::default() };
            let observed_configs = seen.iter().map(|(name, generation)| ((*name).to_owned(), *generation)).collect();
            let status = v1::ServiceStatus { observed_configs, ..Default::default() };
            let metadata = v1::Metadata {
                kind: kinds::service::KIND.into(),
                namespace: "default".into(),
                name: "web".into(),
                ..Default::default()
            };
            let service = v1::Resource {
                metadata: Some(metadata),
                spec: Some(kinds::any(kinds::service::SPEC, &spec)),
                status: Some(kinds::any(kinds::service::STATUS, &status)),
            };
            (uses(&service, &paint.key), paint.outdated(&service))
        };
        assert_eq!(outdated("paint", &[("paint", 1)]), (true, Some(1)));
        assert_eq!(outdated("paint", &[("paint", 2)]), (true, None));
        assert_eq!(outdated("paint", &[("paint", 3)]), (true, None), "somebody else has declared it since");
        assert_eq!(outdated("paint", &[]), (true, None));
        assert_eq!(outdated("other", &[("paint", 1)]), (false, None), "it isn't used any more");
    }
}
