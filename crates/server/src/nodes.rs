//! An agent's registration: its Node appears, or gets the agent's part of its status anew.

use api::v1;
use kinds::{Kind, any, instance, node};
use model::{Domain, Fence, Filter, Key, Revision, shard_of};
use store::{Caller, Error, Note, Result, SessionOpen};

use crate::{
    admit::{
        entry::Done,
        rights::{self, Author, Lineage},
        syntax,
    },
    commit::{known_kind, put},
    heads::Heads,
    members::Members,
    reads::barrier,
    record::Record,
    shared::Shared,
    unfenced::{ATTEMPTS_MAX, Step, author},
};

/// Returns the Node's uid.
pub async fn register(
    shared: &Shared,
    heads: &Heads,
    members: &Members,
    caller: &Caller,
    hello: v1::NodeHello,
) -> Result<String> {
    check(&hello)?;
    let key = Key::new(node::KIND, "", &hello.node);
    let kind = known_kind(&key)?;
    check_session(members, &hello).await?;
    for _ in 0..ATTEMPTS_MAX {
        barrier(shared, heads, Revision::ZERO).await?;
        let record = shared.cache().get(&key).cloned();
        let before = record.as_deref().map(|record| rights::read(&key, record)).transpose()?;
        let machine = hello.status.as_ref().map_or("", |status| status.machine_id.as_str());
        if is_another_machines(machine, before.as_ref()) {
            // Its agent may have gone a moment ago.
            let alone = members.only_agent(&hello.node, &hello.session).await;
            alone
                .and_then(|()| nothing_bound(shared, &key))
                .inspect_err(|why| refused(shared, &hello.node, machine, why))?;
        }
        let others = others(members, &hello);
        let author = author(shared, caller, Domain::Agent);
        let Some((step, uid)) = step(shared, &author, kind, &key, record.as_deref(), before, &hello)? else {
            let record = record.expect("what is unchanged is there");
            replace(shared, others).await?;
            return Ok(record.uid().to_owned());
        };
        let fence = Fence::Session { session: hello.session.clone(), attach: hello.attach };
        match step.commit(shared, &author, Some(fence), note(caller, &hello, record.is_none())).await {
            Ok(_) => {
                replace(shared, others).await?;
                return Ok(uid);
            }
            Err(Error::Conflict { .. }) => shared.counters.retries.add(1),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Unavailable(format!("{key} kept changing; {ATTEMPTS_MAX} attempts were made")))
}

fn check(hello: &v1::NodeHello) -> Result<()> {
    let mut violations: Vec<_> = syntax::name("node", &hello.node, syntax::NAME_MAX).into_iter().collect();
    violations.extend(syntax::labels("labels", &hello.labels));
    if violations.is_empty() { Ok(()) } else { Err(Error::Invalid(violations)) }
}

/// The session must be an agent's, under that very name: by it instances are matched to their nodes.
async fn check_session(members: &Members, hello: &v1::NodeHello) -> Result<()> {
    let member = members.session(&hello.session).await?;
    if member.role == "agent" && member.name == hello.node {
        return Ok(());
    }
    let (role, name, node) = (&member.role, &member.name, &hello.node);
    Err(Error::Denied(format!("the session is {role}/{name}'s; registering node {node:?} takes agent/{node}'s")))
}

/// Live sessions under the node's name beside the one that registers.
fn others(members: &Members, hello: &v1::NodeHello) -> Vec<v1::Member> {
    members.agents(&hello.node).into_iter().filter(|member| member.session != hello.session).collect()
}

/// Refuses an agent on another machine while something is bound to the Node, which may run where nobody hears of it. Looked
/// at before a session is opened, since by that the node would count as heard, and nothing would ever be given up.
pub fn may_attach(shared: &Shared, open: &SessionOpen) -> Result<()> {
    let key = Key::new(node::KIND, "", &open.name);
    let record = shared.cache().get(&key).filter(|_| open.role == "agent" && !open.machine_id.is_empty()).cloned();
    let before = record.map(|record| rights::read(&key, &record)).transpose()?;
    let (node, machine) = (&open.name, &open.machine_id);
    if is_another_machines(machine, before.as_ref()) {
        return nothing_bound(shared, &key).inspect_err(|why| refused(shared, node, machine, why));
    }
    shared.refused.forget(node, machine);
    Ok(())
}

fn refused(shared: &Shared, node: &str, machine: &str, why: &Error) {
    shared.counters.nodes_refused.add(1);
    shared.refused.note(node, machine, why);
}

/// Whether the Node was last said to be another machine than that one.
fn is_another_machines(machine: &str, before: Option<&v1::Resource>) -> bool {
    let status = before.and_then(|before| before.status.as_ref());
    let known: v1::NodeStatus = kinds::typed("status", status).unwrap_or_default();
    !known.machine_id.is_empty() && known.machine_id != machine
}

fn nothing_bound(shared: &Shared, key: &Key) -> Result<()> {
    let (cache, name) = (shared.cache(), key.name());
    let there = Filter { node: name.into(), ..Filter::default() };
    let bound = cache.matching(&there, None).filter(|object| object.key.kind() == instance::KIND).count();
    if bound == 0 {
        return Ok(());
    }
    let them = if bound == 1 { "1 instance is" } else { &format!("{bound} instances are") };
    Err(Error::Denied(format!(
        "node {name:?} is another machine's (or its agent had another data dir), and {them} bound to it, which may run \
         there still; use another name, or wait until they were given up and replaced, or, if that machine is gone for \
         good, run: driftless delete node {name}"
    )))
}

/// An agent that came back takes the place of its own older incarnation.
async fn replace(shared: &Shared, older: Vec<v1::Member>) -> Result<()> {
    for member in older {
        shared.backend.end_session(&member.session, Some(member.attach)).await?;
    }
    Ok(())
}

/// None where the Node says all of it already.
fn step(
    shared: &Shared,
    author: &Author,
    kind: &dyn Kind,
    key: &Key,
    record: Option<&Record>,
    before: Option<v1::Resource>,
    hello: &v1::NodeHello,
) -> Result<Option<(Step, String)>> {
    let status = hello.status.as_ref().map(|status| any(node::STATUS, status));
    let (after, replaced) = match (before, record) {
        (Some(before), Some(record)) => {
            let next = with(before.clone(), hello, status);
            let after = rights::update(author, kind, before.clone(), next)?;
            let labels = |resource: &v1::Resource| resource.metadata.as_ref().map(|m| m.labels.clone());
            if after.status == before.status && labels(&after) == labels(&before) {
                return Ok(None);
            }
            (after, record.revision)
        }
        _ => {
            let uid = shared.stamps().uid();
            let shard = if kind.info().global { 0 } else { shard_of(&uid, shared.config.shards) };
            let lineage = Lineage { shard, root_uid: uid.clone() };
            let metadata = v1::Metadata { kind: key.kind().into(), name: key.name().into(), ..Default::default() };
            let draft = v1::Resource { metadata: Some(metadata), ..Default::default() };
            (rights::create(author, kind, with(draft, hello, status), uid, &lineage)?, Revision::ZERO)
        }
    };
    let metadata = after.metadata.clone().unwrap_or_default();
    let mut step = Step::default();
    step.add(
        put(after.clone(), replaced),
        Done {
            key: key.clone(),
            uid: metadata.uid.clone(),
            root_uid: metadata.root_uid,
            replaced,
            after: Some(after),
            traceparent: author.traceparent.clone(),
        },
    );
    Ok(Some((step, metadata.uid)))
}

fn with(mut resource: v1::Resource, hello: &v1::NodeHello, status: Option<prost_types::Any>) -> v1::Resource {
    resource.metadata.get_or_insert_default().labels = hello.labels.clone();
    resource.status = status;
    resource
}

fn note(caller: &Caller, hello: &v1::NodeHello, new: bool) -> Note {
    // A session that was attached before and finds no Node has lost it.
    let again = if new && hello.attach > 1 { " again: its record was gone while its agent ran" } else { "" };
    let why = v1::Why { reason: "Registered".into(), message: format!("node {} registered{again}", hello.node) };
    Note { verb: "register".into(), why, traceparent: caller.traceparent.clone() }
}
