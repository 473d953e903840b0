//! What must be in a store before anything can be placed. It is made by whichever server comes first: at its start, and when
//! the store turns out to be another one, which may be empty.

use api::v1;
use kinds::placement;
use model::{Actor, Domain, Key, Revision};
use store::{Error, Note, Result, Store};

use crate::{
    Config,
    admit::{
        entry::Done,
        rights::{Author, Lineage},
    },
    commit,
    folds::Folding,
    unfenced::Step,
};

pub fn placement() -> Key {
    Key::new(placement::KIND, "", placement::NAME)
}

/// The one record that every placement step writes is made by the first server.
pub async fn make_placement(config: &Config, backend: &dyn Store) -> Result<()> {
    let key = placement();
    if backend.get(&key).await?.is_some() {
        return Ok(());
    }
    let uid = config.stamps.uid();
    let actor = Actor::new("server", &config.name);
    let now = config.stamps.now();
    let lineage = Lineage { shard: 0, root_uid: uid.clone() };
    let step_id = config.stamps.uid();
    let writer = v1::Writer { actor: actor.to_string(), step_id: step_id.clone(), ..Default::default() };
    let metadata = v1::Metadata {
        kind: key.kind().into(),
        name: key.name().into(),
        uid: uid.clone(),
        generation: 1,
        shard: lineage.shard,
        root_uid: lineage.root_uid,
        created_time: Some(now.into()),
        updated_time: Some(now.into()),
        last_writer: Some(writer),
        ..Default::default()
    };
    let resource = v1::Resource {
        metadata: Some(metadata),
        spec: Some(kinds::any(placement::SPEC, &v1::PlacementSpec {})),
        status: None,
    };
    let author = Author { domain: Domain::User, actor: actor.to_string(), step_id, now, traceparent: String::new() };
    let note = Note {
        verb: "create".into(),
        why: v1::Why { reason: "Started".into(), message: "made with the cluster".into() },
        traceparent: String::new(),
    };
    let mut step = Step::default();
    let root_uid = uid.clone();
    step.add(
        commit::put(resource.clone(), Revision::ZERO),
        Done { key, uid, root_uid, replaced: Revision::ZERO, after: Some(resource), traceparent: String::new() },
    );
    match backend.commit(step.transaction(&author, None, &note, &Folding::default())).await {
        // Another server was faster.
        Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
