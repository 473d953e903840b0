//! What no client of ours would send.

use std::sync::Arc;

use api::v1;
use model::{Actor, Revision};
use store::{Api, Caller, Error, Store, conformance::resource};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, Request};
use tonic_types::StatusExt;
use wire::rpc::{
    agent_service_client::AgentServiceClient, coordination_service_client::CoordinationServiceClient,
    resource_service_client::ResourceServiceClient,
};

use crate::{
    double::Double,
    setup::{PATIENCE, Server, one, soon},
};

#[tokio::test]
async fn a_request_beyond_the_limit_is_refused_clearly() {
    let (double, _server, remote) = one().await;
    let mut big = resource("web");
    big.spec.get_or_insert_default().value = vec![7; wire::REQUEST_BYTES_MAX];
    let declarations = vec![v1::Declaration { resource: Some(big), expected_revision: None }];
    let caller = Caller::new(Actor::anonymous());
    let refused = remote.apply(&caller, v1::ApplyRequest { declarations, ..Default::default() }).await;
    assert!(matches!(&refused, Err(Error::TooLarge(why)) if why.contains("4194304 bytes")), "{refused:?}");
    assert_eq!(double.heard(), [""; 0]);
    remote.head().await.unwrap();
}

#[tokio::test]
async fn a_message_beyond_the_limit_on_a_stream_is_refused_clearly() {
    let (_double, server, _remote) = one().await;
    let mut client = ResourceServiceClient::connect(format!("http://{}", server.address)).await.unwrap();
    let labels = "a".repeat(wire::REQUEST_BYTES_MAX + 1);
    let filter = v1::Filter { labels, ..Default::default() };
    let request = v1::WatchRequest { filter: Some(filter), ..Default::default() };
    let refused = client.watch(futures::stream::iter([request])).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.get_error_details().error_info().unwrap().reason, "TOO_LARGE");
}

#[tokio::test]
async fn a_malformed_identity_is_refused() {
    let (_double, server, _remote) = one().await;
    let mut client = ResourceServiceClient::connect(format!("http://{}", server.address)).await.unwrap();
    for identity in ["root", "admin/root", "user/", "user/a b"] {
        let mut request = Request::new(v1::HeadRequest {});
        request.metadata_mut().insert("driftless-identity", identity.parse().unwrap());
        let refused = client.head(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{identity}");
        let details = refused.get_error_details();
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "driftless-identity");
    }
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// What is heard of a call with these entries.
async fn heard_with(entries: &[(&'static str, String)]) -> String {
    let (double, server, _remote) = one().await;
    let mut client = ResourceServiceClient::connect(format!("http://{}", server.address)).await.unwrap();
    let mut request = Request::new(v1::ApplyRequest::default());
    for (name, value) in entries {
        request.metadata_mut().append(*name, value.parse().unwrap());
    }
    client.apply(request).await.unwrap();
    double.heard().concat()
}

#[tokio::test]
async fn a_trace_context_that_is_none_fails_nothing_and_is_not_kept() {
    let long = format!("{TRACE}-{}", "f".repeat(4000));
    for bad in ["not a trace", &TRACE.to_uppercase(), &long] {
        let heard = heard_with(&[("traceparent", bad.to_owned())]).await;
        assert!(!heard.contains(&TRACE[3..35]) && heard.len() < 100, "another trace: {heard}");
    }
    let twice = heard_with(&[("traceparent", TRACE.into()), ("traceparent", TRACE.into())]).await;
    assert!(!twice.contains(&TRACE[3..35]), "{twice}");
    let later = heard_with(&[("traceparent", long.replacen("00", "01", 1))]).await;
    assert_eq!(later, format!("user/anonymous {TRACE} \"apply\""));
    // More than W3C's 512 characters and 32 members.
    let members = (0..100).map(|n| format!("vendor{n}={}", "x".repeat(20))).collect::<Vec<_>>().join(",");
    let stated = heard_with(&[("traceparent", TRACE.into()), ("tracestate", members)]).await;
    assert_eq!(stated, format!("user/anonymous {TRACE} \"apply\""), "what others say of it is nobody's here");
}

#[tokio::test]
async fn who_says_nothing_is_anonymous_and_begins_a_trace() {
    let (double, server, _remote) = one().await;
    let mut client = ResourceServiceClient::connect(format!("http://{}", server.address)).await.unwrap();
    client.apply(v1::ApplyRequest::default()).await.unwrap();
    let heard = double.heard().concat();
    let trace = heard.strip_prefix("user/anonymous 00-").and_then(|rest| rest.strip_suffix("-00 \"apply\""));
    assert_eq!(trace.map(str::len), Some(32 + 1 + 16), "a trace that isn't sampled: {heard}");
}

#[tokio::test]
async fn requests_that_lack_a_part() {
    let (_double, server, _remote) = one().await;
    let address = format!("http://{}", server.address);
    let mut resources = ResourceServiceClient::connect(address.clone()).await.unwrap();
    let mut sessions = CoordinationServiceClient::connect(address.clone()).await.unwrap();
    let mut agents = AgentServiceClient::connect(address).await.unwrap();
    let nothing = || v1::CommitRequest { writes: vec![v1::Write::default()], ..Default::default() };
    let list = |page_size, page_token: &str| v1::ListRequest {
        page_size,
        page_token: page_token.into(),
        ..Default::default()
    };
    let refused = [
        ("key", resources.get(v1::GetRequest::default()).await.unwrap_err()),
        ("writes[0]", resources.commit(nothing()).await.unwrap_err()),
        ("page_size", resources.list(list(-1, "")).await.unwrap_err()),
        ("page_token", resources.list(list(0, "nonsense")).await.unwrap_err()),
        ("page_token", resources.list(list(0, "5/not-a-key")).await.unwrap_err()),
        ("", resources.watch(futures::stream::empty()).await.unwrap_err()),
        ("open", sessions.session(futures::stream::iter([v1::SessionRequest::default()])).await.unwrap_err()),
        ("request", agents.report(futures::stream::iter([v1::ReportRequest::default()])).await.unwrap_err()),
    ];
    for (field, status) in refused {
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status}");
        assert_eq!(status.get_error_details().bad_request().unwrap().field_violations[0].field, field);
    }
    let ahead =
        v1::GetRequest { key: Some((&model::Key::new("Service", "default", "web")).into()), min_revision: 1_000_000 };
    assert_eq!(resources.get(ahead).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_log_that_nobody_asked_for_is_refused() {
    let (_double, server, _remote) = one().await;
    let mut agents = AgentServiceClient::connect(format!("http://{}", server.address)).await.unwrap();
    let chunk = v1::LogChunk { id: 7, ..Default::default() };
    let request = v1::ReportRequest { request: Some(v1::report_request::Request::Log(chunk)) };
    assert_eq!(agents.report(futures::stream::iter([request])).await.unwrap_err().code(), Code::Unavailable);
}

/// HTTP/2 that is right as far as it goes; then the message that it announced doesn't come, or isn't one.
#[tokio::test]
async fn a_body_that_is_no_message() {
    let (_double, server, remote) = one().await;
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", server.address)).unwrap().connect_lazy();
    for body in [&[0xff_u8; 64][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = "/driftless.v1.ResourceService/Apply".parse().unwrap();
        let raw = prost::bytes::Bytes::copy_from_slice(body);
        let refused = grpc.unary(Request::new(raw), path, Raw).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("malformed message"), "{refused}");
    }
    assert_eq!(remote.head().await.unwrap().revision, Revision::ZERO);
}

/// Sends bytes as if they were a message.
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = prost::bytes::Bytes;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = prost::bytes::Bytes;
    type Error = tonic::Status;

    fn encode(&mut self, item: Self::Item, buf: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), tonic::Status> {
        prost::bytes::BufMut::put(buf, item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = ();
    type Error = tonic::Status;

    fn decode(&mut self, _: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<()>, tonic::Status> {
        Ok(Some(()))
    }
}

/// Every prefix of a valid conversation, and garbage after it, on connections of their own.
#[tokio::test]
async fn garbage_and_truncated_frames() {
    let double = Arc::new(Double::default());
    let server = Server::start(double.clone()).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let headers = [0, 0, 5, 1, 4, 0, 0, 0, 1, 0x83, 0x86, 0xff, 0xff, 0xff];
    let conversation = [&preface[..], &settings, &headers].concat();
    let mut openings: Vec<Vec<u8>> = (0..conversation.len()).map(|end| conversation[..end].to_vec()).collect();
    openings.push(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec());
    openings.push(vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
    for opening in openings {
        let garbage: Vec<u8> = (0_u32..512).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for rest in [&garbage[..], &[]] {
            let mut socket = TcpStream::connect(server.address).await.unwrap();
            // It may close at any point of this.
            let _ = socket.write_all(&[&opening[..], rest].concat()).await;
            let _ = socket.shutdown().await;
            let mut answer = Vec::new();
            let _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("it closes");
        }
    }
    soon(server.remote().head()).await.expect("it serves on");
}

/// Some servers take frequent pings for abuse; clients here depend on them.
#[tokio::test]
async fn pings_are_answered_however_often() {
    let (_double, server, _remote) = one().await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    for sent in 0..500_u64 {
        let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &sent.to_be_bytes()].concat();
        socket.write_all(&ping).await.unwrap();
        let answered = loop {
            let mut head = [0; 9];
            soon(socket.read_exact(&mut head)).await.unwrap();
            let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            soon(socket.read_exact(&mut body)).await.unwrap();
            assert_ne!(head[3], 7, "GOAWAY");
            if head[3] == 6 && head[4] & 1 == 1 {
                break body;
            }
        };
        assert_eq!(answered, sent.to_be_bytes());
    }
}
