//! Versions that are one minor step apart: every message of a controller, an agent and a client, and everything that a
//! server answers them, carries fields that the other side doesn't know; and so does what is declared. They work together,
//! and what is stored keeps what none of them understands.

use std::{sync::Arc, time::Duration};

use driftless_tests::command;
use model::Key;
use prost::{
    bytes::Bytes,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field},
};
use prost_reflect::{Kind, MessageDescriptor};
use store::{Api, Store};
use store_etcd::testing::grpc_proxy::{Between, GrpcProxy};
use tonic::Status;

use crate::{
    recorder::{caller, wish},
    state::{converged, service_spec, settled},
    world::{Shape, World},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// A field that no message has yet.
const NEWER_TAG: u32 = 12_345;
const NEWER: &[u8] = b"from a newer minor version";

/// That message as the next version would send it: one more field in it, and in each that it contains. What `keep` names
/// stays as it is.
fn newer(message: &[u8], of: &MessageDescriptor, keep: fn(&MessageDescriptor) -> bool) -> Vec<u8> {
    let (mut rest, mut out) = (message, Vec::new());
    while !rest.is_empty() {
        let start = rest;
        let (tag, wire_type) = decode_key(&mut rest).expect("a message");
        let field = of.get_field(tag).filter(|field| wire_type == WireType::LengthDelimited && !field.is_map());
        match field.map(|field| field.kind()) {
            Some(Kind::Message(inner)) if !keep(&inner) => {
                let length = usize::try_from(decode_varint(&mut rest).expect("a length")).expect("a short one");
                let (value, after) = rest.split_at(length);
                put(&mut out, tag, &newer(value, &inner, keep));
                rest = after;
            }
            _ => {
                skip_field(wire_type, tag, &mut rest, DecodeContext::default()).expect("a field");
                out.extend_from_slice(&start[..start.len() - rest.len()]);
            }
        }
    }
    put(&mut out, NEWER_TAG, NEWER);
    out
}

fn put(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn count(bytes: &[u8]) -> usize {
    bytes.windows(NEWER.len()).filter(|window| *window == NEWER).count()
}

/// Well-known types don't grow, and a resource's bytes are what digests are made of.
fn is_fixed(message: &MessageDescriptor) -> bool {
    message.full_name().starts_with("google.") || message.full_name() == "driftless.v1.Resource"
}

struct Skew;

impl Skew {
    fn method(path: &str) -> Option<prost_reflect::MethodDescriptor> {
        let (service, method) = path.trim_start_matches('/').split_once('/')?;
        api::descriptors().get_service_by_name(service)?.methods().find(|m| m.name() == method)
    }
}

impl Between for Skew {
    fn request(&self, path: &str, _call: usize, message: Bytes) -> Bytes {
        let Some(method) = Self::method(path) else { return message };
        newer(&message, &method.input(), is_fixed).into()
    }

    fn answer(&self, path: &str, _call: usize, message: Bytes) -> Result<Bytes, Status> {
        let Some(method) = Self::method(path) else { return Ok(message) };
        Ok(newer(&message, &method.output(), is_fixed).into())
    }
}

/// What a newer client declares.
fn declaration(version: &str) -> api::v1::ApplyRequest {
    let mut resource = wish("web", 2, version).resource(Default::default());
    let spec = resource.spec.as_mut().expect("it has one");
    let of = api::descriptors().get_message_by_name("driftless.v1.ServiceSpec").expect("it's one of ours");
    spec.value = newer(&spec.value, &of, |_| false);
    let declaration = api::v1::Declaration { resource: Some(resource), expected_revision: None };
    api::v1::ApplyRequest { declarations: vec![declaration], ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_minor_version_apart_they_work_together_and_keep_what_they_do_not_know() {
    let mut world = World::start(Shape { servers: 1, controllers: 0, agents: 0, ..Shape::default() }).await;
    let proxy = GrpcProxy::start(&world.servers[0].address, Arc::new(Skew)).await;
    let through = proxy.address.to_string();
    for name in ["a", "b"] {
        world.add_controller_at(name, &through);
    }
    world.add_agent_at("n0", &through);
    let (tail, coordination) = (world.tail(0), world.coordination());
    coordination.until("all have their shares", PATIENCE, |s| settled(s, 2)).await;
    let (newer, older) = (crate::world::client([through.as_str()]), world.client());
    for version in ["v1", "v2"] {
        newer.apply(&caller(), declaration(version)).await.expect("it's a right declaration");
        tail.until("it is as declared", PATIENCE, |world| {
            let key = Key::new("Service", "default", "web");
            let current = world.get(&key).is_some_and(|s| service_spec(s).version == version);
            converged(world).filter(|_| current)
        })
        .await;
    }
    let declared =
        count(&declaration("v2").declarations[0].resource.clone().expect("it has one").spec.expect("a").value);
    assert!(declared >= 2, "the spec and its template have it");
    // An older client changes one field, and leaves what it doesn't know.
    let scaled = command::run(
        {
            let mut scale = driftless_tests::driftless(&world.servers[0].address);
            scale.args(["scale", "service", "web", "--replicas", "3"]);
            scale
        },
        b"",
    );
    scaled.ok();
    tail.until("it is as scaled", PATIENCE, |world| converged(world).filter(|instances| *instances == 3)).await;
    for client in [&newer, &older] {
        let web = client.get(&Key::new("Service", "default", "web")).await.expect("it answers").expect("it exists");
        let web = web.resource().expect("it can be read");
        let newer = [web.spec, web.status].map(|any| count(&any.expect("it has both").value));
        assert_eq!(newer, [declared, declared - 1], "the service keeps them, and with what it would go back to");
    }
    let instances = tail.look_now(|world| {
        let instances = world.iter().filter(|(key, _)| key.kind() == kinds::instance::KIND);
        instances.map(|(_, resource)| count(&resource.spec.as_ref().expect("a spec").value)).collect::<Vec<_>>()
    });
    assert!(instances.len() == 3 && instances.iter().all(|n| *n == declared - 1), "{instances:?}: their templates too");
    world.check(vec![tail]).await;
}
