//! What instances should be made of now: the declared template with its Configs, or the last good one after a failed
//! rollout was given up.

use std::collections::BTreeMap;

use api::v1;
use model::{Key, Time, Why};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::Service;
use crate::{Item, SPEC_BYTES_MAX, View, config};

#[derive(Clone, Debug)]
pub struct Target {
    /// In names and specs of the instances.
    pub hash: String,
    pub version: String,
    pub template: v1::InstanceTemplate,
    /// Of what is declared; differs from `hash` after a rollback.
    pub declared: String,
    /// Generations of the Configs that `declared` covers, by name.
    pub configs: BTreeMap<String, i64>,
}

impl Target {
    pub fn of(view: &View<'_>, item: &Item, service: &Service) -> Result<Self, Why> {
        let declared = declared(view, item, service)?;
        let good = service.status.last_good.as_ref();
        match good.filter(|_| service.status.rolled_back == declared.hash) {
            Some(good) => Ok(Self {
                hash: good.template_hash.clone(),
                version: good.version.clone(),
                template: good.template.clone().unwrap_or_default(),
                declared: declared.hash,
                configs: declared.configs,
            }),
            None => Ok(declared),
        }
    }

    pub fn is_declared(&self) -> bool {
        self.hash == self.declared
    }
}

/// The declared template, its `env_from` filled in. Its identity covers the Configs' contents.
fn declared(view: &View<'_>, item: &Item, service: &Service) -> Result<Target, Why> {
    let mut template = service.template.clone();
    let mut identity = item.metadata().template_hash.clone();
    let (mut env, mut configs) = (BTreeMap::new(), BTreeMap::new());
    for from in &template.env_from {
        let key = Key::new(config::KIND, item.key.namespace(), &from.config);
        let Some((config, data)) = view.world.get(&key).and_then(|c| Some((c, c.body::<v1::ConfigSpec>()?))) else {
            let words = format!("spec.template.env_from names {key}, which does not exist; declare it");
            return Err(Why::new("ConfigMissing", words).because_of([key]));
        };
        identity =
            format!("{:010x}", xxh3_64(format!("{identity}\0{}", config.metadata().template_hash).as_bytes()) >> 24);
        configs.insert(from.config.clone(), config.metadata().generation);
        env.extend(data.data.iter().map(|(name, value)| (format!("{}{name}", from.prefix), value.clone())));
    }
    env.extend(std::mem::take(&mut template.env));
    template.env = env;
    let bytes = template.encoded_len();
    if bytes > SPEC_BYTES_MAX {
        let words = format!(
            "the template has {bytes} bytes with the values that spec.template.env_from brings; at most {SPEC_BYTES_MAX}"
        );
        return Err(Why::new("TemplateTooLarge", words));
    }
    let version = service.version.clone();
    Ok(Target { declared: identity.clone(), hash: identity, version, template, configs })
}

/// How the rollout to the target goes, as of this look.
#[derive(Clone, Debug, Default)]
pub struct Going {
    /// To be stored.
    pub progress: Option<v1::Progress>,
    /// When it counts as failed.
    pub fails_at: Option<Time>,
    pub failed: bool,
}

impl Going {
    /// `ready` of the target's instances are ready now; `complete` if that is all there is to it.
    pub fn of(service: &Service, target: &Target, ready: usize, complete: bool, now: Time) -> Self {
        // Nothing is expected of a paused rollout; its clock starts anew when it's resumed.
        if complete || service.pause {
            return Self::default();
        }
        let ready = i32::try_from(ready).unwrap_or(i32::MAX);
        let known = service.status.progress.clone().filter(|p| p.template_hash == target.hash);
        let progress = match known {
            Some(known) if ready <= known.ready => known,
            known => v1::Progress {
                template_hash: target.hash.clone(),
                time: Some(now.into()),
                ready: known.map_or(ready, |known| known.ready.max(ready)),
            },
        };
        let since = progress.time.as_ref().map_or(now, Time::from);
        let fails_at = service.progress_deadline.map(|deadline| since.plus(deadline));
        Self { progress: Some(progress), fails_at, failed: fails_at.is_some_and(|at| now >= at) }
    }
}
