//! A proxy in front of etcd that can change what a watch says, or cut everybody off.

use std::sync::{Arc, Mutex};

use driftless_store_etcd::testing::grpc_proxy::{Between, GrpcProxy};
use prost::{Message, bytes::Bytes};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};
use tonic::Status;

/// What a watch is to say instead.
pub type Lie = Box<dyn FnMut(&mut WatchResponse) + Send>;

/// etcd's answer, as far as lies need it. The header is passed on as it is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchResponse {
    #[prost(bytes = "vec", tag = "1")]
    header: Vec<u8>,
    #[prost(int64, tag = "2")]
    watch_id: i64,
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(bool, tag = "4")]
    canceled: bool,
    #[prost(int64, tag = "5")]
    compact_revision: i64,
    #[prost(string, tag = "6")]
    cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Event {
    /// 0: put, 1: delete.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
    #[prost(int64, tag = "6")]
    lease: i64,
}

impl Event {
    /// Whether its key ends so.
    pub fn is_of(&self, end: &str) -> bool {
        self.kv.as_ref().is_some_and(|kv| kv.key.ends_with(end.as_bytes()))
    }
}

/// What watches say, unless nobody wants them to lie.
#[derive(Default)]
struct Lies(Mutex<Option<Lie>>);

impl Between for Lies {
    fn answer(&self, path: &str, _call: usize, message: Bytes) -> Result<Bytes, Status> {
        match &mut *self.0.lock().expect("lies don't panic") {
            Some(lie) if path == "/etcdserverpb.Watch/Watch" => {
                let mut answer = WatchResponse::decode(message).expect("etcd speaks its own protocol");
                lie(&mut answer);
                Ok(answer.encode_to_vec().into())
            }
            _ => Ok(message),
        }
    }
}

pub struct Proxy {
    pub endpoint: String,
    etcd: String,
    listener: std::net::TcpListener,
    lies: Arc<Lies>,
    /// Each connection is a task of its own, so cutting all of them takes a runtime that ends.
    serving: Option<(GrpcProxy, Runtime)>,
}

impl Proxy {
    pub fn start(etcd: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        let endpoint = listener.local_addr().expect("it is bound").to_string();
        let mut proxy = Self { endpoint, etcd: etcd.into(), listener, lies: Arc::default(), serving: None };
        proxy.mend();
        proxy
    }

    /// Every answer of a watch passes through it from now on.
    pub fn lie(&self, lie: impl FnMut(&mut WatchResponse) + Send + 'static) {
        *self.lies.0.lock().expect("nobody panics with it") = Some(Box::new(lie));
    }

    /// Drops the first event that matches.
    pub fn drop_first(&self, matches: impl Fn(&Event) -> bool + Send + 'static) {
        let mut dropped = false;
        self.lie(move |answer| {
            answer.events.retain(|event| {
                let drop = !dropped && matches(event);
                dropped |= drop;
                !drop
            });
        });
    }

    /// Ends all connections; new ones wait.
    pub fn cut(&mut self) {
        if let Some((_, runtime)) = self.serving.take() {
            runtime.shutdown_background();
        }
    }

    pub fn mend(&mut self) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts");
        let listener = self.listener.try_clone().expect("a socket can be cloned");
        let proxy = {
            let _within = runtime.enter();
            let listener = TcpListener::from_std(listener).expect("a listener");
            GrpcProxy::on(listener, &self.etcd, self.lies.clone())
        };
        self.serving = Some((proxy, runtime));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}
