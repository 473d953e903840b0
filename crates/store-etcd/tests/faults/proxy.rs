//! A proxy in front of etcd that speaks gRPC, so that it can change what a watch says, or cut everybody off.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use prost::{Message, bytes::Bytes};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::StreamingService,
    transport::{Channel, Endpoint, Server},
};

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

pub struct Proxy {
    pub endpoint: String,
    etcd: String,
    listener: std::net::TcpListener,
    lie: Arc<Mutex<Option<Lie>>>,
    /// Each connection is a task of its own, so cutting all of them takes a runtime that ends.
    serving: Option<Runtime>,
}

impl Proxy {
    pub fn start(etcd: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        let endpoint = listener.local_addr().expect("it is bound").to_string();
        let mut proxy = Self { endpoint, etcd: etcd.into(), listener, lie: Arc::default(), serving: None };
        proxy.mend();
        proxy
    }

    /// Every answer of a watch passes through it from now on.
    pub fn lie(&self, lie: impl FnMut(&mut WatchResponse) + Send + 'static) {
        *self.lie.lock().expect("nobody panics with it") = Some(Box::new(lie));
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
        if let Some(serving) = self.serving.take() {
            serving.shutdown_background();
        }
    }

    pub fn mend(&mut self) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts");
        let listener = self.listener.try_clone().expect("a socket can be cloned");
        let (etcd, lie) = (format!("http://{}", self.etcd), self.lie.clone());
        runtime.spawn(async move {
            let etcd = Endpoint::from_shared(etcd).expect("an address").connect_lazy();
            let incoming = TcpListenerStream::new(TcpListener::from_std(listener).expect("a listener"));
            let served = Server::builder().serve_with_incoming(Forward { etcd, lie }, incoming).await;
            served.expect("the proxy serves until its runtime ends");
        });
        self.serving = Some(runtime);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Passes on every call, whatever its kind, as streams of messages.
#[derive(Clone)]
struct Forward {
    etcd: Channel,
    lie: Arc<Mutex<Option<Lie>>>,
}

impl tower::Service<http::Request<Body>> for Forward {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = Call { path: request.uri().path().to_owned(), forward: self.clone() };
        async move { Ok(tonic::server::Grpc::new(Raw).streaming(call, request).await) }.boxed()
    }
}

struct Call {
    path: String,
    forward: Forward,
}

impl StreamingService<Bytes> for Call {
    type Response = Bytes;
    type ResponseStream = BoxStream<'static, Result<Bytes, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (path, Forward { etcd, lie }) = (self.path.clone(), self.forward.clone());
        async move {
            let (metadata, extensions, messages) = request.into_parts();
            let messages = messages.filter_map(|message| async { message.ok() });
            let request = Request::from_parts(metadata, extensions, messages);
            let mut client = tonic::client::Grpc::new(etcd);
            client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
            let is_watch = path == "/etcdserverpb.Watch/Watch";
            let path = path.parse().map_err(|_| Status::internal("no path"))?;
            let answers = client.streaming(request, path, Raw).await?.into_inner();
            let told = answers.map(move |answer| if is_watch { answer.map(|a| told(&lie, a)) } else { answer });
            Ok(Response::new(told.boxed() as Pin<Box<dyn Stream<Item = _> + Send>>))
        }
        .boxed()
    }
}

fn told(lie: &Mutex<Option<Lie>>, answer: Bytes) -> Bytes {
    match &mut *lie.lock().expect("lies don't panic") {
        None => answer,
        Some(lie) => {
            let mut answer = WatchResponse::decode(answer).expect("etcd speaks its own protocol");
            lie(&mut answer);
            answer.encode_to_vec().into()
        }
    }
}

/// Messages as bytes.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        use prost::bytes::Buf;
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
