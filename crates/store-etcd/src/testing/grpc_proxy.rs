//! A proxy that speaks gRPC, before etcd or before one of our servers: it can hold back what is asked or answered, change
//! it, and tell what became of each call. It knows no message but as bytes.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use prost::bytes::{Buf, BufMut, Bytes};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::StreamingService,
    transport::{Channel, Endpoint, Server},
};

/// Who stands between. Calls are numbered in the order of their arrival.
pub trait Between: Send + Sync + 'static {
    fn request(&self, _path: &str, _call: usize, message: Bytes) -> Bytes {
        message
    }

    fn answer(&self, _path: &str, _call: usize, message: Bytes) -> Result<Bytes, Status> {
        Ok(message)
    }

    /// How a call began: its first answer, or why there was none; and whether it had been held.
    fn answered(&self, _path: &str, _held: bool, _answer: Result<(), &Status>) {}
}

/// What doesn't pass at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// Whatever is asked.
    Requests,
    /// What is answered on that method.
    Answers(&'static str),
}

pub struct GrpcProxy {
    pub address: SocketAddr,
    pub hold: watch::Sender<Hold>,
    task: JoinHandle<()>,
}

impl Drop for GrpcProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GrpcProxy {
    pub async fn start(target: &str, between: Arc<dyn Between>) -> Self {
        let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).await.expect("a port is free");
        Self::on(listener, target, between)
    }

    /// On that port. Within a runtime, which ends all connections when it ends; dropping the proxy ends no more than that
    /// new ones are taken.
    pub fn on(listener: TcpListener, target: &str, between: Arc<dyn Between>) -> Self {
        let address = listener.local_addr().expect("it is bound");
        let hold = watch::Sender::new(Hold::Nothing);
        let target = Endpoint::from_shared(format!("http://{target}")).expect("an address").connect_lazy();
        let forward = Forward { target, between, hold: hold.clone(), calls: Arc::default() };
        let incoming = TcpListenerStream::new(listener);
        let task = tokio::spawn(async move {
            let served = Server::builder().serve_with_incoming(forward, incoming).await;
            served.expect("the proxy serves until it's dropped");
        });
        Self { address, hold, task }
    }
}

#[derive(Clone)]
struct Forward {
    target: Channel,
    between: Arc<dyn Between>,
    hold: watch::Sender<Hold>,
    calls: Arc<AtomicUsize>,
}

impl tower::Service<http::Request<Body>> for Forward {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (path, number) = (request.uri().path().to_owned(), self.calls.fetch_add(1, Ordering::Relaxed));
        let call = Call { path, number, forward: self.clone() };
        async move { Ok(tonic::server::Grpc::new(Raw).streaming(call, request).await) }.boxed()
    }
}

struct Call {
    path: String,
    number: usize,
    forward: Forward,
}

type Answers = BoxStream<'static, Result<Bytes, Status>>;

impl StreamingService<Bytes> for Call {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        // A task of its own: what was taken from a client goes on though the client gives up, as on any network.
        let passed = tokio::spawn(pass(self.path.clone(), self.number, self.forward.clone(), request));
        async move { passed.await.unwrap_or_else(|_| Err(Status::internal("the proxy failed"))).map(Response::new) }
            .boxed()
    }
}

async fn pass(path: String, number: usize, on: Forward, request: Request<Streaming<Bytes>>) -> Result<Answers, Status> {
    let held = Arc::new(AtomicBool::new(false));
    let (metadata, extensions, messages) = request.into_parts();
    let requests = {
        let (path, between, hold, held) = (path.clone(), on.between.clone(), on.hold.clone(), held.clone());
        let messages = messages.filter_map(|message| async { message.ok() });
        messages.then(move |message| {
            let message = between.request(&path, number, message);
            let (mut hold, held) = (hold.subscribe(), held.clone());
            async move {
                held.fetch_or(*hold.borrow() == Hold::Requests, Ordering::Relaxed);
                // The sender lives as long as the proxy.
                let _ = hold.wait_for(|hold| *hold != Hold::Requests).await;
                message
            }
        })
    };
    let mut client = tonic::client::Grpc::new(on.target);
    client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
    let method = path.parse().map_err(|_| Status::internal("no path"))?;
    let answered = client.streaming(Request::from_parts(metadata, extensions, requests), method, Raw).await;
    let mut answers = match answered {
        Ok(answers) => answers.into_inner(),
        Err(status) => {
            on.between.answered(&path, held.load(Ordering::Relaxed), Err(&status));
            return Err(status);
        }
    };
    let first = answers.next().await;
    if let Some(first) = &first {
        on.between.answered(&path, held.load(Ordering::Relaxed), first.as_ref().map(|_| ()));
    }
    let (between, hold) = (on.between, on.hold);
    let answers = futures::stream::iter(first).chain(answers).then(move |answer| {
        let answer = answer.and_then(|message| between.answer(&path, number, message));
        let (mut hold, path) = (hold.subscribe(), path.clone());
        async move {
            let _ = hold.wait_for(|hold| !matches!(hold, Hold::Answers(of) if path.ends_with(of))).await;
            answer
        }
    });
    Ok(answers.boxed())
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
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
