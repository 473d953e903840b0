//! Health and reflection, as any gRPC tool asks for them.

use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use wire::Config;

use crate::{
    double::Double,
    setup::{Server, eventually, one, soon},
};

async fn channel(server: &Server) -> Channel {
    Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap()
}

async fn health(channel: &Channel, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.into() };
    let checked = HealthClient::new(channel.clone()).check(request).await.map_err(|status| status.code())?;
    Ok(checked.into_inner().status())
}

#[tokio::test]
async fn health_follows_readiness() {
    let (ready, receiver) = watch::channel(false);
    let config = Config { ready: Some(receiver), ..Config::new("s1") };
    let server = Server::with(Arc::new(Double::default()), config).await;
    let channel = channel(&server).await;
    for status in [ServingStatus::NotServing, ServingStatus::Serving, ServingStatus::NotServing] {
        ready.send_replace(status == ServingStatus::Serving);
        for service in
            ["", "driftless.v1.ResourceService", "driftless.v1.CoordinationService", "driftless.v1.AgentService"]
        {
            eventually(service, || async { health(&channel, service).await == Ok(status) }).await;
        }
    }
    assert_eq!(health(&channel, "no.such.Service").await, Err(Code::NotFound));
}

#[tokio::test]
async fn a_health_watch_ends_with_the_drain() {
    let (_double, server, _remote) = one().await;
    let mut client = HealthClient::new(channel(&server).await);
    let mut statuses = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(soon(statuses.message()).await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.drain().await;
    let mut last = ServingStatus::Serving;
    while let Ok(Some(status)) = soon(statuses.message()).await {
        last = status.status();
    }
    assert_eq!(last, ServingStatus::NotServing);
}

macro_rules! reflection {
    ($version:ident) => {
        #[tokio::test]
        async fn $version() {
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };
            let (_double, server, _remote) = one().await;
            let mut client = ServerReflectionClient::new(channel(&server).await);
            let mut ask = async |message_request| {
                let request = ServerReflectionRequest { host: String::new(), message_request: Some(message_request) };
                let answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
                soon(answers.into_inner().message()).await.unwrap().unwrap().message_response.unwrap()
            };
            let MessageResponse::ListServicesResponse(listed) = ask(MessageRequest::ListServices(String::new())).await
            else {
                panic!("a list was asked for")
            };
            let names: Vec<&str> = listed.service.iter().map(|service| service.name.as_str()).collect();
            for service in ["AgentService", "CoordinationService", "ResourceService"] {
                assert!(names.contains(&format!("driftless.v1.{service}").as_str()), "{names:?}");
            }
            for service in ["health.v1.Health", "reflection.v1.ServerReflection", "reflection.v1alpha.ServerReflection"]
            {
                assert_eq!(names.iter().filter(|n| **n == format!("grpc.{service}")).count(), 1, "{names:?}");
            }
            // Types that no method names, which travel inside an Any.
            for symbol in ["driftless.v1.ServiceSpec", "driftless.v1.ResourceService", "google.protobuf.Any"] {
                let answer = ask(MessageRequest::FileContainingSymbol(symbol.into())).await;
                assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{symbol}: {answer:?}");
            }
        }
    };
}

mod reflection {
    use super::*;

    reflection!(v1);
    reflection!(v1alpha);
}
